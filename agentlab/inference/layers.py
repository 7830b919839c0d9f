"""The layers of a model over a cache, run so that all layers of one kind share one traced function."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from agentlab.inference.attention import AttentionOptions
from agentlab.inference.cache import Cache, KeysValues
from agentlab.models.decoder import Block, Decoder

Attend = Callable[..., tuple[jax.Array, KeysValues]]
"""(options, q, k, v, past, kept, place) -> [B, T, Hq, Dh], and what is kept of this layer.

q, k and v are those of the new tokens, [B, T, H, Dh]; `past` and `kept` are this layer's part of the caches
that the program gave, or None; `place` is the same for all layers.
"""


def run_layers(
    decoder: Decoder,
    tokens: jax.Array,
    positions: jax.Array,
    attend: Attend,
    options: Callable[[int], AttentionOptions],
    past: Cache | None,
    kept: Cache | None,
    place: Any,
) -> tuple[jax.Array, Cache]:
    """Hidden states [B, T, D] of new tokens, and what each layer keeps of them.

    Args:
        tokens: [B, T] int32.
        positions: [B, T] int32.
        attend: A function of a module, not a closure.
        options: Of each layer. Layers with equal options are traced once.
        past: Read only.
        kept: Given to each layer, which gives its successor.
        place: Where the tokens belong; a tree of arrays.
    """
    result: list[KeysValues] = []
    kinds: dict[AttentionOptions, int] = {}

    def run_block(block: Block, x: jax.Array, angles: jax.Array, layer: int) -> jax.Array:
        structure, weights = nnx.split(block)
        chosen = options(layer)
        first = kinds.setdefault(chosen, layer)
        caches = tuple(None if cache is None else cache.layer(layer) for cache in (past, kept))
        x, now = _run_block(structure, weights, x, angles, caches, place, layer=first, attend=attend, options=chosen)
        result.append(now)
        return x

    hidden = decoder(tokens, positions, _provided, run_block=run_block)
    return hidden, Cache(*zip(*result, strict=True))


@functools.partial(jax.jit, static_argnames=("structure", "layer", "attend", "options"))
def _run_block(
    structure: nnx.GraphDef,
    weights: Any,
    x: jax.Array,
    angles: jax.Array,
    caches: tuple[KeysValues | None, ...],
    place: Any,
    *,
    layer: int,
    attend: Attend,
    options: AttentionOptions,
) -> tuple[jax.Array, KeysValues]:
    kept: list[KeysValues] = []

    def attention(_: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        mixed, now = attend(options, q, k, v, *caches, place)
        kept.append(now)
        return mixed

    x = nnx.merge(structure, weights)(x, angles, layer, attention)
    return x, kept[0]


def _provided(*_: Any) -> jax.Array:
    raise AssertionError("run_block provides the attention")
