"""Attention of new tokens over a cached past and over each other: by XLA everywhere, by a kernel on TPU."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentlab.inference.cache import Kernel, KeysValues, RealRows, keys_values, reordered, slots_of, write_rows
from agentlab.inference.paged import PAGE, paged_attend
from agentlab.models.attention import float32_product
from agentlab.models.config import DecoderConfig

UNSEEN = -1e30
"""Added to the scores of tokens that are not seen: far below any score, far above the least float32."""


class AttentionOptions(NamedTuple):
    """How one layer attends; hashable."""

    scale: float
    """What q · k is multiplied with."""
    soft_cap: float | None
    """Bound c of the scores by c * tanh(score / c); None leaves them."""
    window: int | None
    """Most tokens that are seen, the token itself included; None for all."""
    kernel: Kernel = "xla"
    context: int | None = None
    """Tokens of a slot that a prefill reads; None reads the cache in place."""

    @classmethod
    def of(cls, config: DecoderConfig, layer: int, kernel: Kernel, context: int | None = None) -> "AttentionOptions":
        """Those of a layer of a model."""
        return cls(config.attention_scale, config.attention_soft_cap, config.window(layer), kernel, context)


class DecodePlace(NamedTuple):
    """Where the tokens of one decode step belong."""

    start: jax.Array
    """[B] int32: tokens of each row before this program."""
    at: jax.Array
    """int32: decode steps of this program before this one."""
    slot: jax.Array
    """[B] int32: each row's slot; past the last slot for a row that is padding."""


def kernel_length(length: int, kernel: Kernel) -> int:
    """The least length of a slot that holds so many tokens and suits the kernel."""
    return length if kernel == "xla" else -(-length // PAGE) * PAGE


def attend_prefill(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    past: None,
    cache: KeysValues,
    place: RealRows,
) -> tuple[jax.Array, KeysValues]:
    """Attention of a chunk of each row over the tokens in its slot of the cache, and over itself.

    The chunk is written first, so that each layer's slots are read when it runs and not all of them beforehand.

    Returns:
        [B, T, Hq, Dh], and the cache with the chunks of the real rows in it.
    """
    del past
    cache = write_rows(cache, reordered(keys_values(k, v), options.kernel), place, options.kernel)
    read = cache if options.context is None else slots_of(cache, place.slot, options.context, options.kernel)
    keys, values = reordered(read, options.kernel)
    position = place.start[:, None] + jnp.arange(q.shape[1])
    distance = position[..., None] - jnp.arange(values.shape[2])
    seen = distance >= 0
    if options.window is not None:
        seen &= distance < options.window
    return _attend(q, [(keys, values, _bias(seen))], scale=options.scale, soft_cap=options.soft_cap), cache


def attend_decode(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    past: KeysValues | None,
    kept: KeysValues,
    place: DecodePlace,
) -> tuple[jax.Array, KeysValues]:
    """Attention of one token per row over the tokens before it.

    For XLA, the reference, `past` holds each row's tokens before this program and `kept` those of this program.
    For the kernel `kept` is the whole cache, [slots, Hkv, length, Dh], which holds both, and `past` is None. The
    kernel knows no window: where that is shorter than a slot, XLA reads the slots.

    Returns:
        [B, 1, Hq, Dh], and `kept` with the token in it.
    """
    if options.kernel == "xla":
        assert past is not None, "XLA reads a past"
        keys, values = keys_values(k, v)
        new = _appended(kept[0], keys, place.at, axis=3), _appended(kept[1], values, place.at, axis=2)
        return _xla(options, q, past, new, place.start, place.at[None]), new
    position = place.start + place.at
    cache = _written(kept[0], k, place.slot, position), _written(kept[1], v, place.slot, position)
    slot = jnp.minimum(place.slot, cache[0].shape[0] - 1)
    if options.window is not None and options.window < cache[0].shape[2]:
        rows = reordered((cache[0][slot], cache[1][slot]), options.kernel)
        return _xla(options, q, rows, keys_values(k, v), position, jnp.arange(1)), cache
    how: dict[str, Any] = {"scale": options.scale, "soft_cap": options.soft_cap}
    interpret = options.kernel == "pallas_interpreted"
    mixed = paged_attend(q[:, 0], cache, slot, position + 1, interpret=interpret, **how)
    return mixed[:, None].astype(v.dtype), cache


def _appended(kept: jax.Array, x: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    place = [at if n == axis else 0 for n in range(kept.ndim)]
    return jax.lax.dynamic_update_slice(kept, x, place, allow_negative_indices=False)


def _written(cache: jax.Array, x: jax.Array, slot: jax.Array, position: jax.Array) -> jax.Array:
    """One token of each row put into its slot; those of padding rows are dropped."""
    return cache.at[slot, :, position].set(x[:, 0].astype(cache.dtype), mode="drop")


def _xla(
    options: AttentionOptions, q: jax.Array, past: KeysValues, new: KeysValues, start: jax.Array, steps: jax.Array
) -> jax.Array:
    return attend_cached(
        q, past, new, start, steps, scale=options.scale, soft_cap=options.soft_cap, window=options.window
    )


def attend_cached(
    q: jax.Array,
    past: KeysValues,
    new: KeysValues,
    past_length: jax.Array,
    steps: jax.Array,
    *,
    scale: float,
    soft_cap: float | None,
    window: int | None,
) -> jax.Array:
    """Grouped-query attention over a cache that is read in place; softmax in float32.

    The two parts are multiplied apart and normalised together at the end, so that the past is never copied.

    Args:
        q: [B, T, Hq, Dh], rotated.
        past: The cached tokens, `context` of them; those from `past_length` on are not seen.
        new: The tokens behind the past.
        past_length: [B] int32.
        steps: [T] int32: index in `new` of each query's own token; it sees those up to it.
        scale: What q · k is multiplied with.
        soft_cap: Bound c of the scores by c * tanh(score / c); None leaves them.
        window: Most tokens that are seen, the token itself included; None for all.

    Returns:
        [B, T, Hq, Dh] in v's dtype.

    Source: as for `agentlab.models.attention.attend`, which is the reference for this one; normalised at the end as
        in Dao 2023 (arXiv:2307.08691), section 3.1.
    """
    at_past, at_new = jnp.arange(past[1].shape[2]), jnp.arange(new[1].shape[2])
    distance = past_length[:, None, None] + steps[:, None] - at_past
    cached = jnp.broadcast_to(at_past < past_length[:, None, None], distance.shape)
    fresh = at_new <= steps[:, None]
    if window is not None:
        cached &= distance < window
        fresh &= steps[:, None] - at_new < window
    parts = [(*past, _bias(cached)), (*new, _bias(fresh)[None])]
    return _attend(q, parts, scale=scale, soft_cap=soft_cap)


def _bias(seen: jax.Array) -> jax.Array:
    """What is added to scores: 0 for the tokens that are seen."""
    return jnp.where(seen, 0.0, UNSEEN)


def _attend(
    q: jax.Array,
    parts: Sequence[tuple[jax.Array, jax.Array, jax.Array]],
    *,
    scale: float,
    soft_cap: float | None,
) -> jax.Array:
    """Attention over keys, values and biases [B or 1, T, N] in parts; every query must see something."""
    batch, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = parts[0][1].shape[1]
    groups = num_heads // num_kv_heads
    grouped = q.reshape(batch, num_queries, num_kv_heads, groups, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, num_kv_heads, groups * num_queries, head_dim)

    # Scores and weights keep the shapes of the products: XLA's CPU client is much slower otherwise.
    def scores(keys: jax.Array, bias: jax.Array) -> jax.Array:
        x = float32_product("bhqd,bhdk->bhqk", grouped, keys) * scale
        x = x if soft_cap is None else soft_cap * jnp.tanh(x / soft_cap)
        return x + jnp.tile(bias, (1, groups, 1))[:, None]

    def mixed(weights: jax.Array, values: jax.Array) -> jax.Array:
        return float32_product("bhqk,bhkd->bhqd", weights.astype(values.dtype), values)

    every = [scores(keys, bias) for keys, _, bias in parts]
    top = functools.reduce(jnp.maximum, (jnp.max(x, axis=-1, initial=UNSEEN, keepdims=True) for x in every))
    weights = [jnp.exp(x - top) for x in every]
    total = functools.reduce(jnp.add, (jnp.sum(x, axis=-1, keepdims=True) for x in weights))
    # A sum or a quotient that is fused into the products slows them there, too.
    products = jax.lax.optimization_barrier(
        [mixed(x, values) for x, (_, values, _) in zip(weights, parts, strict=True)]
    )
    out = (functools.reduce(jnp.add, products) / total).astype(parts[0][1].dtype)
    out = out.reshape(batch, num_kv_heads, groups, num_queries, head_dim)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)
