"""Attention of new tokens over a cached past and over each other: by XLA everywhere, by a kernel on TPU."""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from agentlab.inference.paged import PAGE, paged_attend
from agentlab.models.attention import float32_product
from agentlab.models.config import DecoderConfig

KeysValues = tuple[jax.Array, jax.Array]
"""Keys [B, Hkv, Dh, T] and values [B, Hkv, T, Dh], as products with queries and with weights read them in order.

Only the kernel wants its keys as [B, Hkv, T, Dh], too, see `token_axes`.
"""

UNSEEN = -1e30
"""Added to the scores of tokens that are not seen: far below any score, far above the least float32."""

Kernel = Literal["xla", "pallas", "pallas_interpreted"]
"""What computes the attention of a decode: XLA, JAX's TPU kernel, or that kernel interpreted on any device."""


class AttentionOptions(NamedTuple):
    """How one layer attends; hashable."""

    scale: float
    """What q · k is multiplied with."""
    soft_cap: float | None
    """Bound c of the scores by c * tanh(score / c); None leaves them."""
    window: int | None
    """Most tokens that are seen, the token itself included; None for all."""
    kernel: Kernel = "xla"
    context: int = 0
    """Cached tokens that a prefill reads where it does not read the cache in place."""

    @classmethod
    def of(cls, config: DecoderConfig, layer: int, kernel: Kernel, context: int = 0) -> "AttentionOptions":
        """Those of a layer of a model."""
        return cls(config.attention_scale, config.attention_soft_cap, config.window(layer), kernel, context)


class PrefillPlace(NamedTuple):
    """Where the tokens of a prefill belong."""

    start: jax.Array
    """[B] int32: tokens of each row before this program."""
    slot: jax.Array
    """[B] int32: each row's slot."""


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


def token_axes(kernel: Kernel) -> tuple[int, int]:
    """Which axis of the keys and which of the values in the cache are the tokens."""
    return (3 if kernel == "xla" else 2), 2


def attend_prefill(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cache: KeysValues,
    kept: None,
    place: PrefillPlace,
) -> tuple[jax.Array, KeysValues]:
    """Attention of a chunk of each row over the tokens in its slot of the cache, and over itself.

    With a row for every slot, row i is slot i and the cache is read in place.

    Returns:
        [B, T, Hq, Dh], and the chunk's keys and values, laid out as the cache.
    """
    del kept
    past: Any = cache
    if len(place.slot) != len(cache[0]):
        axes = token_axes(options.kernel)
        past = tuple(_rows_of(x, place.slot, options.context, axis) for x, axis in zip(cache, axes, strict=True))
    new = keys_values(k, v)
    steps = jnp.arange(q.shape[1])
    if options.kernel == "xla":
        return _xla(options, q, past, new, place.start, steps), new
    return _xla(options, q, _keys_turned(past), new, place.start, steps), _keys_turned(new)


def _rows_of(x: jax.Array, slot: jax.Array, context: int, axis: int) -> jax.Array:
    """The first tokens of some slots."""
    return jax.lax.slice_in_dim(x.at[slot].get(mode="clip"), 0, context, axis=axis)


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
        rows = _keys_turned((cache[0][slot], cache[1][slot]))
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


def keys_values(k: jax.Array, v: jax.Array) -> KeysValues:
    """Those of new tokens, [B, T, Hkv, Dh] both, laid out for `attend_cached`."""
    return k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)


def _keys_turned(cached: KeysValues) -> KeysValues:
    return jnp.swapaxes(cached[0], 2, 3), cached[1]


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
        in Dao et al. 2022 (arXiv:2205.14135), section 3.1.
    """
    batch, num_queries, num_heads, head_dim = q.shape
    num_kv_heads, context = past[1].shape[1:3]
    groups = num_heads // num_kv_heads
    grouped = q.reshape(batch, num_queries, num_kv_heads, groups, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, num_kv_heads, groups * num_queries, head_dim)

    # The shapes of scores and weights stay those of the products: XLA's CPU client takes twice as long otherwise.
    def scores(keys: jax.Array, bias: jax.Array) -> jax.Array:
        x = float32_product("bhqd,bhdk->bhqk", grouped, keys) * scale
        x = x if soft_cap is None else soft_cap * jnp.tanh(x / soft_cap)
        return x + jnp.tile(bias, (1, groups, 1))[:, None]

    def mixed(weights: jax.Array, values: jax.Array) -> jax.Array:
        return float32_product("bhqk,bhkd->bhqd", weights.astype(values.dtype), values)

    biases = _biases(past_length, steps, context, new[1].shape[2], window)
    both = [scores(keys, bias) for (keys, _), bias in zip((past, new), biases, strict=True)]
    top = functools.reduce(jnp.maximum, (jnp.max(x, axis=-1, initial=UNSEEN, keepdims=True) for x in both))
    weights = [jnp.exp(x - top) for x in both]
    total = sum(jnp.sum(x, axis=-1, keepdims=True) for x in weights)
    # A sum or a quotient that is fused into the products makes them three times as slow there.
    old, own = jax.lax.optimization_barrier((mixed(weights[0], past[1]), mixed(weights[1], new[1])))
    out = ((old + own) / total).astype(past[1].dtype)
    out = out.reshape(batch, num_kv_heads, groups, num_queries, head_dim)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)


def _biases(
    past_length: jax.Array, steps: jax.Array, context: int, num_new: int, window: int | None
) -> tuple[jax.Array, jax.Array]:
    """What is added to the scores of the past, [B, T, context], and of the new tokens, [1, T, N]: 0 for the seen."""
    at_past, at_new = jnp.arange(context), jnp.arange(num_new)
    cached = jnp.broadcast_to(at_past < past_length[:, None, None], (past_length.shape[0], steps.shape[0], context))
    fresh = at_new <= steps[:, None]
    if window is not None:
        distance = past_length[:, None, None] + steps[:, None] - at_past
        cached &= distance < window
        fresh &= steps[:, None] - at_new < window
    return jnp.where(cached, 0.0, UNSEEN), jnp.where(fresh, 0.0, UNSEEN)[None]
