"""Attention of new tokens over a cached past and over each other."""

import jax
import jax.numpy as jnp

KeysValues = tuple[jax.Array, jax.Array]
"""Keys and values, each [B, Hkv, T, Dh]."""


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

    The two parts are multiplied apart and normalised together, so that the past is never copied.

    Args:
        q: [B, T, Hq, Dh], rotated.
        past: The cached tokens, [B, Hkv, context, Dh]; those from `past_length` on are not seen.
        new: The tokens behind the past, [B, Hkv, N, Dh].
        past_length: [B] int32.
        steps: [T] int32: index in `new` of each query's own token; it sees those up to it.
        scale: What q · k is multiplied with.
        soft_cap: Bound c of the scores by c * tanh(score / c); None leaves them.
        window: Most tokens that are seen, the token itself included; None for all.

    Returns:
        [B, T, Hq, Dh] in v's dtype.

    Source: as for `agentlab.models.attention.attend`, which is the reference for this one.
    """
    batch, num_queries, num_heads, head_dim = q.shape
    num_kv_heads, context = past[0].shape[1:3]
    groups = num_heads // num_kv_heads
    grouped = q.reshape(batch, num_queries, num_kv_heads, groups, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, num_kv_heads, groups * num_queries, head_dim)

    def scores(keys: jax.Array, mask: jax.Array) -> jax.Array:
        x = jnp.einsum("bhqd,bhkd->bhqk", grouped, keys, preferred_element_type=jnp.float32) * scale
        x = x if soft_cap is None else soft_cap * jnp.tanh(x / soft_cap)
        x = x.reshape(batch, num_kv_heads, groups, num_queries, -1)
        return jnp.where(mask[:, None, None], x, jnp.finfo(jnp.float32).min)

    cached, fresh = _masks(past_length, steps, context, new[0].shape[2], window)
    both = jnp.concatenate([scores(past[0], cached), scores(new[0], fresh)], axis=-1)
    weights = jax.nn.softmax(both, axis=-1).astype(past[1].dtype)
    weights = weights.reshape(batch, num_kv_heads, groups * num_queries, -1)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", weights[..., :context], past[1])
    mixed += jnp.einsum("bhqk,bhkd->bhqd", weights[..., context:], new[1])
    mixed = mixed.reshape(batch, num_kv_heads, groups, num_queries, head_dim)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(q.shape)


def _masks(
    past_length: jax.Array, steps: jax.Array, context: int, num_new: int, window: int | None
) -> tuple[jax.Array, jax.Array]:
    """What each query sees of the past, [B, T, context], and of the new tokens, [1, T, N]."""
    at_past, at_new = jnp.arange(context), jnp.arange(num_new)
    cached = jnp.broadcast_to(at_past < past_length[:, None, None], (past_length.shape[0], steps.shape[0], context))
    fresh = at_new <= steps[:, None]
    if window is not None:
        distance = past_length[:, None, None] + steps[:, None] - at_past
        cached &= distance < window
        fresh &= steps[:, None] - at_new < window
    return cached, fresh[None]
