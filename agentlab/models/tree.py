"""Parameters as a flat dictionary of arrays and back, the same in all supported versions of Flax."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

Path = tuple[Any, ...]
"""E.g. ("layers", 0, "mlp", "up_proj", "weight")."""


def flat_arrays(params: Any) -> dict[Path, Any]:
    """Arrays (or their shapes) of an `nnx.State`, by path."""
    return {path: jax.tree.leaves(variable)[0] for path, variable in nnx.to_flat_state(params)}


def with_arrays(params: Any, arrays: Mapping[Path, Any]) -> Any:
    """An `nnx.State` of the structure of `params`, abstract or not, that holds these arrays.

    `arrays` must have exactly the paths of `params`.
    """
    flat = nnx.to_flat_state(params)
    assert set(arrays) == {path for path, _ in flat}, "parameter paths differ"
    filled = [(path, jax.tree.unflatten(jax.tree.structure(variable), [arrays[path]])) for path, variable in flat]
    return nnx.from_flat_state(filled)
