"""Parameters as a flat dictionary of arrays and back, the same in all supported versions of Flax."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

Path = tuple[Any, ...]
"""E.g. ("layers", 0, "mlp", "up_proj", "weight")."""


def flat_arrays(params: Any) -> dict[Path, Any]:
    """Arrays (or their shapes) of an `nnx.State`, by path."""
    return {path: jax.tree.leaves(variable)[0] for path, variable in nnx.to_flat_state(params)}


def with_arrays(params: Any, arrays: Mapping[Path, Any]) -> Any:
    """An `nnx.State` of the structure of `params`, abstract or not, that holds these arrays.

    `arrays` must have exactly the paths and shapes of `params`.
    """
    flat = nnx.to_flat_state(params)
    shapes = {path: jax.tree.leaves(variable)[0].shape for path, variable in flat}
    assert {path: array.shape for path, array in arrays.items()} == shapes, "parameter paths or shapes differ"
    filled = [(path, jax.tree.unflatten(jax.tree.structure(variable), [arrays[path]])) for path, variable in flat]
    return nnx.from_flat_state(filled)


def fresh_array(
    path: Path, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, *, norm: float = 1.0
) -> jax.Array:
    """The value with which a parameter starts: norms `norm`, biases and B of adapters 0, the rest random.

    Random ones have variance 1 / in. They are drawn by NumPy: nothing is compiled for them.
    """
    if len(shape) == 1:
        value = np.full(shape, norm if path[-1] == "weight" else 0.0, np.float32)
    elif path[-1] == "lora_b":
        value = np.zeros(shape, np.float32)
    else:
        value = rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
    return jax.device_put(value.astype(dtype))
