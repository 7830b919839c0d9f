"""From named arrays to parameters: every weight is there, fits and is finite, or an error says which is not."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from agentlab.errors import ModelError
from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import abstract_params
from agentlab.models.progress import bar
from agentlab.models.tree import Path, flat_arrays, with_arrays

IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints store the rotary frequencies; they follow from the config."""


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
    read: Callable[[str], np.ndarray],
    *,
    source: str,
    dtype: Any,
    progress: bool,
) -> Any:
    """Parameters from a checkpoint whose tensors `check_tensors` has accepted.

    Args:
        config: Of the decoder.
        read: Gives a tensor by its Hugging Face name.
        source: Where they come from, for error texts.
        dtype: Of the weights.
        progress: Show a bar.

    Raises:
        ModelError: a tensor holds NaN or infinity.
    """
    abstract = abstract_params(config, dtype)
    arrays = {}
    paths = list(flat_arrays(abstract))
    with bar(len(paths), "Loading weights", enabled=progress, unit=" tensors") as shown:
        for path in paths:
            tensor = read(tensor_name(path))
            if not np.isfinite(tensor.astype(np.float32, copy=False).sum()):
                raise ModelError(
                    f"{source}: the tensor {tensor_name(path)} must hold finite numbers, and holds NaN or infinity. "
                    "The file is damaged: download the model again."
                )
            arrays[path] = jax.device_put(np.asarray(tensor).astype(dtype))
            shown.update()
    return with_arrays(abstract, arrays)


def named_arrays(params: Any) -> dict[str, np.ndarray]:
    """The parameters as NumPy arrays by their Hugging Face names."""
    return {tensor_name(path): np.asarray(array) for path, array in flat_arrays(params).items()}


def _some(names: Iterable[str], count: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")
