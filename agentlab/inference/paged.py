"""Decode attention by JAX's own TPU kernel, which reads the cache in place, page by page."""

import contextlib

import jax
import jax.numpy as jnp

from agentlab.errors import ConfigError

PAGE = 128
"""Tokens of a page; a slot's length is a multiple of it where the kernel is used."""
MAX_BLOCK = 512
"""Most tokens that one step of the kernel loads into the chip's fast memory."""


def paged_attend(
    q: jax.Array,
    cache: tuple[jax.Array, jax.Array],
    slot: jax.Array,
    length: jax.Array,
    *,
    scale: float,
    soft_cap: float | None,
    interpret: bool = False,
) -> jax.Array:
    """Grouped-query attention of one token per row over the first tokens of its slot.

    The cache of [slots, Hkv, length, Dh] is read as a pool of pages of one head each, and every key/value
    head of a row as a sequence of its own: nothing is copied or transposed for the kernel.

    Args:
        q: [B, Hq, Dh], rotated.
        cache: Keys and values, each [slots, Hkv, length, Dh]; length a multiple of `PAGE`. The kernel
            rounds them to bfloat16.
        slot: [B] int32.
        length: [B] int32: tokens that are seen, at least 1.
        scale: What q · k is multiplied with.
        soft_cap: Bound c of the scores by c * tanh(score / c); None leaves them.
        interpret: Run the kernel on any device, slowly, as JAX interprets it.

    Returns:
        [B, Hq, Dh] in q's dtype.

    Source: `jax.experimental.pallas.ops.tpu.paged_attention`; Kwon et al. 2023 (arXiv:2309.06180).
    """
    kernel = _kernel()
    batch, num_heads, head_dim = q.shape
    num_slots, num_kv_heads, slot_length, _ = cache[0].shape
    pages_per_slot = slot_length // PAGE
    keys, values = (x.reshape(1, num_slots * num_kv_heads * pages_per_slot, PAGE, head_dim) for x in cache)
    sequences = slot[:, None] * num_kv_heads + jnp.arange(num_kv_heads)
    pages = sequences.reshape(-1, 1) * pages_per_slot + jnp.arange(pages_per_slot)
    scaled = (q.astype(jnp.float32) * scale).astype(q.dtype)
    with _interpreted() if interpret else contextlib.nullcontext():
        mixed = kernel(
            scaled.reshape(batch * num_kv_heads, num_heads // num_kv_heads, head_dim),
            keys,
            values,
            jnp.repeat(length, num_kv_heads),
            pages.astype(jnp.int32),
            attn_logits_soft_cap=soft_cap,
            pages_per_compute_block=_largest_divisor(pages_per_slot, MAX_BLOCK // PAGE),
        )
    return mixed.reshape(q.shape)


def _largest_divisor(number: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if number % n == 0)


def _kernel():
    try:
        from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
    except ImportError as error:
        raise ConfigError(
            f"The attention kernel must be a part of the installed JAX {jax.__version__}, and cannot be imported: "
            f'{error}. Build the engine with attention="xla".'
        ) from error
    return paged_attention


def _interpreted():
    from jax.experimental.pallas import tpu

    return tpu.force_tpu_interpret_mode()
