"""From named arrays to parameters: every weight is there, fits and is finite, or an error says which is not."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from agentlab.errors import ModelError
from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import abstract_params
from agentlab.models.sharding import param_shardings
from agentlab.models.tree import Path, flat_arrays, with_arrays
from agentlab.platform.progress import bar

IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints store the rotary frequencies; they follow from the config."""


Span = tuple[tuple[int, int], ...]
"""(first, behind the last) index of a part along each axis."""


class StoredTensor(Protocol):
    """A tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(index of the first row, some rows in any floating-point type) from the first row to the last."""
        ...


def tensor_name(path: Path) -> str:
    """The name in a Hugging Face checkpoint of the parameter at this path."""
    if path == ("embed_tokens",):
        return "model.embed_tokens.weight"
    if path == ("lm_head",):
        return "lm_head.weight"
    return ".".join(["model", *map(str, path)])


def check_tensors(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], *, source: str) -> None:
    """Compare the tensors of a checkpoint with what its config needs.

    Raises:
        ModelError: tensors are missing, unknown or of another shape.
    """
    wanted = {tensor_name(path): tuple(a.shape) for path, a in flat_arrays(abstract_params(config)).items()}
    known = {*wanted, "lm_head.weight"} if config.tied_embeddings else set(wanted)
    extra = [name for name in shapes if name not in known and not name.endswith(IGNORED_SUFFIX)]
    missing = [name for name in wanted if name not in shapes]
    wrong = [
        f"{name} is {list(shapes[name])} and must be {list(shape)}"
        for name, shape in wanted.items()
        if name in shapes and tuple(shapes[name]) != shape
    ]
    faults = []
    if missing:
        faults.append(f"{len(missing)} missing ({_some(missing)})")
    if extra:
        faults.append(f"{len(extra)} unknown ({_some(extra)})")
    if wrong:
        faults.append(f"{len(wrong)} misshapen ({_some(wrong)})")
    if faults:
        raise ModelError(
            f"{source} must hold exactly the {len(wanted)} tensors of its {config.model_type} config; "
            f"it has {', '.join(faults)}. Download the model again, or check that config and weights belong together."
        )


def load_params(
    config: DecoderConfig,
    tensors: Mapping[str, StoredTensor],
    *,
    source: str,
    dtype: Any,
    mesh: Mesh | None,
    progress: bool,
) -> Any:
    """Parameters from a checkpoint whose tensors `check_tensors` has accepted.

    Each is read block by block into the parts that the devices hold, and is whole nowhere else.

    Args:
        config: Of the decoder.
        tensors: By their Hugging Face names.
        source: Where they come from, for error texts.
        dtype: Of the weights.
        mesh: What to lay them over, see `agentlab.models.sharding`; None for the default device.
        progress: Show a bar.

    Raises:
        ModelError: a tensor holds NaN or infinity, or its file is damaged.
    """
    abstract = abstract_params(config, dtype)
    wanted = flat_arrays(abstract)
    shardings = param_shardings(config, mesh, wanted) if mesh is not None else {}
    arrays = {}
    # The largest first: what is copied on its way to the device then lies beside the fewest others.
    order = sorted(wanted, key=lambda path: -wanted[path].size)
    total = sum(array.size * array.dtype.itemsize for array in wanted.values())
    with bar(total, "Loading weights", enabled=progress, size_bytes=True) as shown:
        for path in order:
            name = tensor_name(path)
            blocks = _finite(tensors[name].blocks(), name, source)
            arrays[path] = _place(blocks, wanted[path], shardings.get(path))
            shown.update(arrays[path].nbytes)
    return with_arrays(abstract, arrays)


def _finite(blocks: Iterable[tuple[int, np.ndarray]], name: str, source: str) -> Iterator[tuple[int, np.ndarray]]:
    for start, block in blocks:
        if not np.isfinite(block).all():
            raise ModelError(
                f"{source}: the tensor {name} must hold finite numbers, and holds NaN or infinity. "
                "The file is damaged: download the model again."
            )
        yield start, block


def _place(blocks: Iterable[tuple[int, np.ndarray]], wanted: Any, sharding: NamedSharding | None) -> jax.Array:
    """An array of the wanted shape and dtype from blocks of its rows, on the devices of its sharding."""
    shape = wanted.shape
    whole = tuple((0, size) for size in shape)
    if sharding is None:
        parts = {whole: _aligned_empty(shape, wanted.dtype)}
        _fill(parts, blocks)
        return jax.block_until_ready(jax.device_put(parts[whole]))
    indices = sharding.addressable_devices_indices_map(shape)
    spans = {
        device: tuple(axis.indices(size)[:2] for axis, size in zip(index or (), shape, strict=True))
        for device, index in indices.items()
    }
    parts = {
        span: _aligned_empty(tuple(end - begin for begin, end in span), wanted.dtype) for span in set(spans.values())
    }
    _fill(parts, blocks)
    pieces = [jax.device_put(parts[span], device) for device, span in spans.items()]
    return jax.block_until_ready(jax.make_array_from_single_device_arrays(shape, sharding, pieces))


def _fill(parts: Mapping[Span, np.ndarray], blocks: Iterable[tuple[int, np.ndarray]]) -> None:
    for start, block in blocks:
        for ((first, last), *others), part in parts.items():
            low, high = max(first, start), min(last, start + len(block))
            if low < high:
                columns = (slice(begin, end) for begin, end in others)
                part[low - first : high - first] = block[(slice(low - start, high - start), *columns)]


def _aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Memory that a CPU device may take over as it is: it does so where the address divides by 64."""
    size_bytes = prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size_bytes].view(dtype).reshape(shape)


def named_arrays(params: Any) -> dict[str, np.ndarray]:
    """The parameters as NumPy arrays by their Hugging Face names."""
    return {tensor_name(path): np.asarray(array) for path, array in flat_arrays(params).items()}


def _some(names: Iterable[str], count: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")
