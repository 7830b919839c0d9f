"""From named arrays to parameters: every weight is there, fits and is finite, or an error says which is not."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from agentlab.errors import ModelError
from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import abstract_params, rotary_frequencies
from agentlab.models.sharding import param_shardings
from agentlab.models.tree import Path, flat_arrays, with_arrays
from agentlab.platform.progress import bar

FREQUENCIES_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints store the rotary frequencies; they follow from the config."""
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"

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
        return TABLE
    if path == ("lm_head",):
        return HEAD
    return ".".join(["model", *map(str, path)])


def with_head(
    config: DecoderConfig, tensors: Mapping[str, StoredTensor], *, source: str, dtype: Any
) -> tuple[DecoderConfig, dict[str, StoredTensor]]:
    """The config and tensors of a checkpoint, agreed on whether the head is the embedding, as transformers does it.

    Where the config ties them and the file holds both, equal ones are tied, and different ones are both kept, with
    a warning: such a model was trained with a head of its own. Where the file holds the head alone, it is both.

    Args:
        config: As read.
        tensors: By their Hugging Face names.
        source: Where they come from, for warnings.
        dtype: In which the weights will be held, and are compared.
    """
    kept = dict(tensors)
    if not config.tied_embeddings or HEAD not in kept:
        return config, kept
    if TABLE not in kept:
        kept[TABLE] = kept.pop(HEAD)
    elif _same_values(kept[TABLE], kept[HEAD], dtype):
        del kept[HEAD]
    else:
        warnings.warn(
            f"{source}: the config ties the head to the embedding (tie_word_embeddings), but {HEAD} and {TABLE} are "
            "different weights. Both are used, untied. Set tie_word_embeddings to false in config.json; if "
            f"the head is left over from another model, remove {HEAD}.",
            stacklevel=2,
        )
        return replace(config, tied_embeddings=False), kept
    return config, kept


def _same_values(one: StoredTensor, other: StoredTensor, dtype: Any) -> bool:
    """Whether they are equal once held as `dtype`. Read block by block."""
    if tuple(one.shape) != tuple(other.shape):
        return False
    blocks, rest = other.blocks(), np.empty(0)
    for _, block in one.blocks():
        while len(block):
            rest = rest if len(rest) else next(blocks)[1]
            size = min(len(block), len(rest))
            if not np.array_equal(block[:size].astype(dtype), rest[:size].astype(dtype)):
                return False
            block, rest = block[size:], rest[size:]
    return True


def check_tensors(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], *, source: str) -> None:
    """Compare the tensors of a checkpoint with what its config needs.

    Raises:
        ModelError: tensors are missing, unknown or of another shape.
    """
    wanted = {tensor_name(path): tuple(a.shape) for path, a in flat_arrays(abstract_params(config)).items()}
    extra = [name for name in shapes if name not in wanted and not name.endswith(FREQUENCIES_SUFFIX)]
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
        untied = " If its head is the embedding, the config must say tie_word_embeddings: true." * (HEAD in missing)
        raise ModelError(
            f"{source} must hold exactly the {len(wanted)} tensors of its {config.model_type} config; "
            f"it has {', '.join(faults)}. Download the model again, or check that config and weights belong together."
            f"{untied}"
        )


def check_frequencies(config: DecoderConfig, tensors: Mapping[str, StoredTensor], *, source: str) -> None:
    """Warn of stored rotary frequencies that are not those of the config, which decides, as in transformers."""
    bases = [rotary_frequencies(config, local=local) for local in (False, True)]
    bases.append(rotary_frequencies(replace(config, rope_scaling=None)))  # of models that scale positions instead
    for name, tensor in tensors.items():
        if not name.endswith(FREQUENCIES_SUFFIX):
            continue
        stored = np.concatenate([block for _, block in tensor.blocks()]).astype(np.float32)
        # Half precision rounds by less than a hundredth, and the smallest to steps of 6e-8.
        if not any(b.shape == stored.shape and np.allclose(stored, b, rtol=1e-2, atol=1e-7) for b in bases):
            warnings.warn(
                f"{source}: {name} holds other rotary frequencies than follow from the config (rope_theta, "
                "rope_scaling). They are not used, as in transformers. Check that config and weights belong together.",
                stacklevel=2,
            )
            return


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
        ModelError: a tensor holds NaN, infinity or numbers beyond float32, or its file is damaged.
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
        if block.dtype == np.float64:  # what is finite there may not be in float32, the widest that weights are held in
            with np.errstate(over="ignore"):
                block = block.astype(np.float32)
        if not np.isfinite(block).all():
            raise ModelError(
                f"{source}: the tensor {name} must hold finite numbers of float32's range, and holds others. "
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
