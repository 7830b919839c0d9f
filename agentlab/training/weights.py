"""A model's parameters as training holds them: layers stacked, and split into trained and frozen ones."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from agentlab.models import Decoder, DecoderConfig
from agentlab.models.decoder import abstract_params, decoder_structure
from agentlab.models.lora import ADAPTER_NAMES, merged_weight
from agentlab.models.tree import Path, flat_arrays, with_arrays

Stacked = dict[str, Any]
"""Arrays by name, those of the layers stacked to [layers, ...], e.g. "layers/mlp/up_proj/weight".

Frozen weights of the layers may be tuples of arrays, or quantised arrays, instead.
"""

LAYERS = "layers"


def stack_layers(params: Any) -> Stacked:
    """The parameters with one weight of all layers in one array, so that one program loops over them."""
    top, layers = _by_name(params)
    return top | {name: jnp.stack(arrays) for name, arrays in layers.items()}


def split_trained(
    params: Any,
    *,
    adapters_only: bool = False,
    frozen: Callable[[str], bool] | None = None,
    stack_frozen: bool = False,
) -> tuple[Stacked, Stacked]:
    """(trained, frozen). Trained weights are float32 and stacked, whatever the model's own type is.

    Args:
        params: Of a decoder.
        adapters_only: Train adapters alone.
        frozen: By the name of a weight, e.g. "layers.3.mlp.up_proj.weight", whether it, or the adapter
            on it, stays as it is. A weight that is frozen in some layers only is among the trained ones.
        stack_frozen: Copy frozen weights into stacked arrays too. Without it they are tuples of the layers'
            own arrays, which are not copied.
    """
    top, layers = _by_name(params)
    trained = {
        name
        for name, arrays in (top | layers).items()
        if (not adapters_only or name.endswith(ADAPTER_NAMES)) and _trainable(name, arrays, frozen).any()
    }
    stacked = {
        name: jnp.stack(arrays) if stack_frozen or name in trained else arrays for name, arrays in layers.items()
    }
    weights: Stacked = {**top, **stacked}
    return (
        {name: array.astype(jnp.float32) for name, array in weights.items() if name in trained},
        {name: array for name, array in weights.items() if name not in trained},
    )


def trainable_layers(trained: Stacked, frozen: Callable[[str], bool] | None) -> dict[str, Array]:
    """Of the weights that are frozen in some layers: [layers, 1, ...], 1 where the layer is trained."""
    found = {name: _trainable(name, array, frozen) for name, array in trained.items()}
    return {
        name: jnp.asarray(layers.reshape(-1, *[1] * (trained[name].ndim - 1)), jnp.float32)
        for name, layers in found.items()
        if not layers.all()
    }


def _trainable(name: str, array: Any, frozen: Callable[[str], bool] | None) -> np.ndarray:
    """[layers], or [1] outside of the layers: whether the weight is trained."""
    paths = [_path(name, layer) for layer in range(len(array))] if _in_layers(name) else [_path(name, 0)]
    return np.asarray([frozen is None or not frozen(weight_name(path)) for path in paths])


def _by_name(params: Any) -> tuple[Stacked, dict[str, tuple[Array, ...]]]:
    """(what lies outside of the layers, the layers' arrays in their order), by the names of `Stacked`."""
    top: Stacked = {}
    layers: dict[str, dict[int, Array]] = {}
    for path, array in flat_arrays(params).items():
        if path[0] == LAYERS:
            layers.setdefault(_name(path), {})[path[1]] = array
        else:
            top[_name(path)] = array
    return top, {name: tuple(arrays[layer] for layer in range(len(arrays))) for name, arrays in layers.items()}


def weight_name(path: Path) -> str:
    """E.g. "layers.3.mlp.up_proj.weight", also of the adapter on that weight."""
    return ".".join(map(str, (*path[:-1], "weight") if path[-1] in ADAPTER_NAMES else path))


def split_layers(stacked: Mapping[str, Any]) -> tuple[Stacked, Stacked]:
    """(what lies outside of the layers, the arrays of the layers)."""
    top = {name: array for name, array in stacked.items() if not _in_layers(name)}
    return top, {name: array for name, array in stacked.items() if _in_layers(name)}


def one_layer_decoder(config: DecoderConfig, top: Stacked, layer: Stacked) -> Decoder:
    """A decoder of one layer over the weights `top` and those of that layer, no longer stacked."""
    single = replace(config, num_layers=1, windows=())
    weights = {_path(name, 0): array for name, array in {**top, **layer}.items()}
    return nnx.merge(decoder_structure(single), with_arrays(_abstract(single), weights))


def published(config: DecoderConfig, base: Any, trained: Stacked) -> Any:
    """New parameters without adapters, shaped and typed as `base`; what was not trained is shared with it.

    Args:
        config: Of the decoder that is trained, with its adapters.
        base: The model's own parameters, without adapters.
        trained: Stacked, float32.
    """
    weights = flat_arrays(base)
    changed = [path for path in weights if _trained_name(config, path) in trained]
    arrays = _merged(config, {_key(path): weights[path] for path in changed}, trained)
    return with_arrays(base, {**weights, **{path: arrays[_key(path)] for path in changed}})


@functools.partial(jax.jit, static_argnames="config")
def _merged(config: DecoderConfig, base: Stacked, trained: Stacked) -> Stacked:
    """Weights by `_key`: W + scale B A with adapters, else the trained ones."""
    merged = {}
    for key, weight in base.items():
        path = tuple(int(part) if part.isdigit() else part for part in key.split("/"))
        if config.lora:
            lora_a, lora_b = (_slice(trained, (*path[:-1], adapter)) for adapter in ADAPTER_NAMES)
            merged[key] = merged_weight(config.lora, weight, lora_a, lora_b)
        else:
            merged[key] = _slice(trained, path).astype(weight.dtype)
    return merged


def _trained_name(config: DecoderConfig, path: Path) -> str | None:
    """The name of what is trained in place of this array: itself, or an adapter, which only a matrix can have."""
    if not config.lora:
        return _name(path)
    return _name((*path[:-1], "lora_a")) if path[-1] == "weight" else None


def _slice(stacked: Stacked, path: Path) -> Array:
    array = stacked[_name(path)]
    return array[path[1]] if path[0] == LAYERS else array


def _name(path: Path) -> str:
    """The name of a weight in `Stacked`: its path without the number of the layer."""
    return "/".join((LAYERS, *path[2:]) if path[0] == LAYERS else path)


def _key(path: Path) -> str:
    return "/".join(map(str, path))


def _path(name: str, layer: int) -> Path:
    parts = name.split("/")
    return (LAYERS, layer, *parts[1:]) if _in_layers(name) else tuple(parts)


def _in_layers(name: str) -> bool:
    return name.startswith(f"{LAYERS}/")


@functools.cache
def _abstract(config: DecoderConfig) -> Any:
    return abstract_params(config)
