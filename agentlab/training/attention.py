"""Attention of packed training rows: as `models.attention.attend`, with a gradient that is written out.

The query heads that share a key/value head are folded into one matrix, and keys that come later in
the row, which no query may see, are left out by blocks. XLA's own gradient of grouped-query
attention runs at a sixth of the speed of its matrix products on CPU.
"""

import jax
import jax.numpy as jnp
from jax import Array

from agentlab.models.attention import float32_product

BLOCK = 256
"""Queries that are computed together; they see the keys up to their own end."""


def attend_packed(q: Array, k: Array, v: Array, mask: Array, *, scale: float) -> Array:
    """Grouped-query attention within rows in which no token sees a later place.

    Args:
        q: [B, T, Hq, Dh], rotated.
        k: [B, T, Hkv, Dh], rotated.
        v: [B, T, Hkv, Dh].
        mask: [B, T, T] bool, True where the query sees the key: itself at least, nothing behind it.
        scale: What q · k is multiplied with.

    Returns:
        [B, T, Hq, Dh] in v's dtype.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), equation 1; Ainslie et al. 2023
        (arXiv:2305.13245) for the groups.
    """
    batch, length, num_heads, size = q.shape
    num_kv_heads = k.shape[2]
    groups = num_heads // num_kv_heads
    folded = (q * scale).reshape(batch, length, num_kv_heads, groups, size).transpose(0, 2, 3, 1, 4)
    keys, values = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    mixed = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        rows = folded[:, :, :, start:end].reshape(batch, num_kv_heads, -1, size)
        mixed.append(_block(rows, keys[:, :, :end], values[:, :, :end], mask[:, start:end, :end]))
    parts = [part.reshape(batch, num_kv_heads, groups, -1, size) for part in mixed]
    return jnp.concatenate(parts, axis=3).transpose(0, 3, 1, 2, 4).reshape(q.shape)


@jax.custom_vjp
def _block(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """[B, H, groups * Tq, D] queries, scaled, on [B, H, Tk, D] keys and values, under a mask [B, Tq, Tk]."""
    return _weigh(_weights(q, k, mask, v.dtype), v)


def _weights(q: Array, k: Array, mask: Array, dtype: jnp.dtype) -> Array:
    scores = float32_product("bhqd,bhkd->bhqk", q, k)
    grouped = scores.reshape(*scores.shape[:2], -1, *mask.shape[1:])
    seen = jnp.where(mask[:, None, None], grouped, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(seen, axis=-1).reshape(scores.shape).astype(dtype)


def _weigh(weights: Array, v: Array) -> Array:
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def _forward(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, tuple[Array, ...]]:
    weights = _weights(q, k, mask, v.dtype)
    mixed = _weigh(weights, v)
    return mixed, (q, k, v, weights, mixed)


def _backward(kept: tuple[Array, ...], outer: Array) -> tuple[Array, Array, Array, None]:
    """With P the weights and O = P V: dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - Σ dO O), dQ = dS K, dK = dSᵀ Q."""
    q, k, v, weights, mixed = kept
    for_values = jnp.einsum("bhqk,bhqd->bhkd", weights, outer)
    for_weights = float32_product("bhqd,bhkd->bhqk", outer, v)
    total = jnp.sum(outer.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1, keepdims=True)
    for_scores = (weights * (for_weights - total)).astype(q.dtype)
    for_queries = jnp.einsum("bhqk,bhkd->bhqd", for_scores, k)
    for_keys = jnp.einsum("bhqk,bhqd->bhkd", for_scores, q)
    return for_queries, for_keys.astype(k.dtype), for_values.astype(v.dtype), None


_block.defvjp(_forward, _backward)
