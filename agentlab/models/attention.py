"""Attention over explicit masks, and the mask of packed training rows."""

import jax
import jax.numpy as jnp


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    *,
    scale: float,
    soft_cap: float | None = None,
) -> jax.Array:
    """Grouped-query attention; softmax in float32.

    Query head h reads key/value head h // (Hq / Hkv).

    Args:
        q: [B, Tq, Hq, Dh], rotated.
        k: [B, Tk, Hkv, Dh], rotated.
        v: [B, Tk, Hkv, Dh].
        mask: [B, Tq, Tk] bool, True where the query sees the key. Every query must see something.
        scale: What q · k is multiplied with.
        soft_cap: Bound c of the scores by c * tanh(score / c); None leaves them.

    Returns:
        [B, Tq, Hq, Dh] in v's dtype.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), equation 1; Ainslie et al. 2023
        (arXiv:2305.13245) for the groups.
    """
    batch, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = q.reshape(batch, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = float32_product("bqhgd,bkhd->bhgqk", grouped, k) * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(q.shape)


def segment_mask(segments: jax.Array, positions: jax.Array, window: int | None = None) -> jax.Array:
    """Which token sees which, in rows that hold several sequences.

    A token sees itself and, by position, the earlier tokens of its own segment and of segment 0,
    the prefix that the whole row shares. Padding (segment -1) sees only itself, so that no
    attention row is empty.

    Args:
        segments: [B, T] int32; -1 padding, 0 shared prefix, 1 and up the sequences.
        positions: [B, T] int32; place of each token in its own sequence, prefix included.
        window: Most tokens that are seen, the token itself included; None for all.

    Returns:
        [B, T, T] bool, indexed [row, query, key].
    """
    query, key = segments[:, :, None], segments[:, None, :]
    distance = positions[:, :, None] - positions[:, None, :]
    related = ((query == key) | (key == 0)) & (query >= 0) & (key >= 0)
    visible = related & (distance >= 0)
    if window is not None:
        visible &= distance < window
    return visible | jnp.eye(segments.shape[1], dtype=bool)


def float32_product(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """`jnp.einsum` of two arrays with sums and result in float32, whatever their dtype."""
    if jax.default_backend() == "cpu":  # XLA's CPU client of jax 0.7 cannot multiply bfloat16 into float32
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)
