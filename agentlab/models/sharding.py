"""Which device holds which part of a parameter: one table from logical axes to the axes of a mesh."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentlab.errors import ConfigError
from agentlab.models.config import DecoderConfig
from agentlab.models.tree import Path, flat_arrays, with_arrays

MESH_AXES = {"vocab": "tensor", "heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "embed": "fsdp"}
"""The mesh axis over which each logical axis of a parameter is split."""

TABLE = ("vocab", "embed")
LINEAR = {
    "q_proj": ("heads", "embed"),
    "k_proj": ("kv_heads", "embed"),
    "v_proj": ("kv_heads", "embed"),
    "o_proj": ("embed", "heads"),
    "gate_proj": ("mlp", "embed"),
    "up_proj": ("mlp", "embed"),
    "down_proj": ("embed", "mlp"),
}
"""Logical axes (out, in) of each linear layer's weight."""


def logical_axes(path: Path) -> tuple[str | None, ...]:
    """The logical axes of the parameter at this path; None is never split. Norms are whole on every device."""
    if path[-1] in ("embed_tokens", "lm_head"):
        return TABLE
    if path[-2] not in LINEAR:
        return (None,)
    out, inside = LINEAR[path[-2]]
    return {"weight": (out, inside), "bias": (out,), "lora_a": (None, inside), "lora_b": (out, None)}[path[-1]]


def param_shardings(config: DecoderConfig, mesh: Mesh, paths: Iterable[Path]) -> dict[Path, NamedSharding]:
    """How each parameter lies on a mesh.

    An axis whose parts would not be equal, or would cut a head in two, stays whole.

    Args:
        config: Of the decoder.
        mesh: With an axis "fsdp", "tensor", or both; other axes hold copies.
        paths: Of the parameters, as `flat_arrays` gives them.

    Raises:
        ConfigError: the mesh has neither axis.
    """
    mesh = checked_mesh(mesh)
    sizes = {
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "mlp": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
    }

    def mesh_axis(logical: str | None) -> str | None:
        axis = MESH_AXES.get(logical or "")
        return axis if logical and axis in mesh.shape and sizes[logical] % mesh.shape[axis] == 0 else None

    return {path: NamedSharding(mesh, PartitionSpec(*map(mesh_axis, logical_axes(path)))) for path in paths}


def shard_params(config: DecoderConfig, params: Any, mesh: Mesh) -> Any:
    """The same parameters, laid out on a mesh as `param_shardings` says."""
    arrays = flat_arrays(params)
    shardings = param_shardings(config, mesh, arrays)
    return with_arrays(params, {path: jax.device_put(array, shardings[path]) for path, array in arrays.items()})


def lay_out(config: DecoderConfig, params: Any, devices: Sequence[Any]) -> Any:
    """The same parameters on these devices: on one whole, else over a mesh of all along its axis "tensor".

    What lies there already is not copied. From one device the shares go straight to the others.
    """
    if len(devices) == 1:
        return jax.device_put(params, devices[0])
    return shard_params(config, params, Mesh(np.asarray(devices).reshape(1, -1), ("fsdp", "tensor")))


def num_devices(params: Any) -> int:
    """Over how many devices these parameters are laid out."""
    return len(jax.tree.leaves(params)[0].devices())


def checked_mesh(mesh: Mesh) -> Mesh:
    """The mesh, with axes that the compiler may split arrays over by itself.

    Raises:
        ConfigError: it is no mesh, or has neither the axis "fsdp" nor "tensor".
    """
    if not isinstance(mesh, Mesh):
        raise ConfigError(f"mesh must be a jax.sharding.Mesh or None, got {type(mesh).__name__}.")
    if not {"fsdp", "tensor"} & set(mesh.axis_names):
        raise ConfigError(
            f'The mesh must have an axis "fsdp" or "tensor" to lay weights over, got {mesh.axis_names}. '
            'Make it by jax.make_mesh((1, 8), ("fsdp", "tensor")).'
        )
    return Mesh(mesh.devices, mesh.axis_names)
