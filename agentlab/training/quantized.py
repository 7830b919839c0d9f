"""QLoRA: the trainer's frozen linear weights in 4 or 8 bits, through the optional package qwix.

Source: Dettmers et al. 2023 (arXiv:2305.14314), for NormalFloat 4 and training adapters through it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import jax.numpy as jnp
from jax import Array

from agentlab.errors import ConfigError
from agentlab.models import Model
from agentlab.models.config import LORA_TARGETS
from agentlab.models.tree import flat_arrays, with_arrays

QuantizedType = Literal["nf4", "int8"]
"""Kinds of quantised weights: NormalFloat of 4 bits, integers of 8."""

TILE = 64
"""Weights of one output, next to each other, that share a scale; fewer where the layer's input is no multiple."""

FULL_SCALE = 127.5 / 127
"""So that the largest of a tile becomes 127: qwix maps it to 127.5, and quantising again would shrink it again."""


def quantize(stacked: Mapping[str, Array], kind: QuantizedType) -> dict[str, Any]:
    """The same weights with those of the linear layers, [layers, out, in], as arrays of qwix.

    Raises:
        ConfigError: qwix is not installed.
    """
    return {name: _quantized(array, kind) if _is_linear(name.split("/")) else array for name, array in stacked.items()}


def unpacked(weights: Mapping[str, Any]) -> dict[str, Array]:
    """The same weights with all of them as plain arrays. May be called under `jax.jit`."""
    return {name: array if isinstance(array, Array) else _qwix().dequantize(array) for name, array in weights.items()}


def on_grid(model: Model, kind: QuantizedType) -> Model:
    """The same model with the values that its linear weights have when they are quantised, in its own type.

    Sampling from it and training adapters on its quantised weights is then the same policy.

    Raises:
        ConfigError: qwix is not installed.
    """
    arrays = flat_arrays(model.params)
    rounded = {path: _round(array, kind) if _is_linear(path) else array for path, array in arrays.items()}
    return replace(model, params=with_arrays(model.params, rounded))


def _round(array: Array, kind: QuantizedType) -> Array:
    return _qwix().dequantize(_quantized(array[None], kind))[0].astype(array.dtype)


def _quantized(array: Array, kind: QuantizedType) -> Any:
    tile = math.gcd(array.shape[-1], TILE)
    options = {"channelwise_axes": (0, 1), "tiled_axes": {2: tile}}
    if kind == "nf4":
        return _qwix().quantize(array, kind, **options)
    return _qwix().quantize(array, jnp.int8, calibration_method=f"absmax,{FULL_SCALE}", **options)


def _is_linear(path: Any) -> bool:
    return len(path) >= 2 and path[-1] == "weight" and path[-2] in LORA_TARGETS


def _qwix() -> Any:
    try:
        import qwix
    except ImportError as error:
        raise ConfigError(
            'Quantised weights need the package qwix, which is not installed: pip install "agentlab[qlora]" '
            "(it needs flax 0.12). Adapters on unquantised weights, base_type=None, need nothing."
        ) from error
    return qwix
