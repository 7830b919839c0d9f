"""Tokens from logits on the device: temperature, top-k, top-p, min-p, one uniform number per row."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 128
"""Width of the blocks of the vocabulary whose sums the first level of the search reads."""


Column = Any
"""A numpy array where a batch is made, a traced one inside a program."""


class SamplingRows(NamedTuple):
    """How each row of a batch is sampled; arrays of length B."""

    temperature: Column
    """float32; 0 takes the most likely token."""
    top_k: Column
    """int32; 0 keeps the whole vocabulary."""
    top_p: Column
    """float32 in (0, 1]."""
    min_p: Column
    """float32 in [0, 1): least probability that is kept, as a share of the likeliest token's."""
    seed: Column
    """[B, 2] uint32: high and low word."""
    index: Column
    """int32: how many tokens of the request were sampled before. Folded into the seed."""


def sample(logits: jax.Array, rows: SamplingRows) -> tuple[jax.Array, jax.Array]:
    """Sample one token per row.

    A row's token depends on its own logits, seed and index alone. Nothing is sorted: the kept part
    of the vocabulary is found by bisection, and only when some row asks for it.

    Args:
        logits: [B, V] float32.

    Returns:
        Tokens [B] int32, and float32 log-probabilities [B] under the distribution that was sampled
        from (after temperature, top-k, top-p and min-p). At temperature 0 the log-probability is that of
        the model's own distribution, at temperature 1 and untruncated.

    Source: Nguyen et al. 2024 (arXiv:2407.01082), section 3 for min-p, which here comes last.
    """
    greedy = rows.temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, rows.temperature)[:, None]
    scaled = jnp.pad(scaled, ((0, 0), (0, -logits.shape[1] % BLOCK)), constant_values=-jnp.inf)
    top_k = jnp.where(greedy, 0, rows.top_k)
    top_p = jnp.where(greedy, 1.0, rows.top_p)
    truncated = jnp.any((top_k > 0) | (top_p < 1))
    scaled = jax.lax.cond(truncated, truncate, lambda scaled, *_: scaled, scaled, top_k, top_p)
    top = jnp.max(scaled, axis=-1)
    lowest = top + jnp.log(jnp.where(greedy, 0.0, rows.min_p))
    scaled = jnp.where(scaled >= lowest[:, None], scaled, -jnp.inf)
    weights = jnp.exp(scaled - top[:, None])
    blocks = weights.reshape(len(weights), -1, BLOCK)
    drawn = _draw(blocks, _uniform(rows))
    token = jnp.where(greedy, _first_maximum(scaled, top), drawn)
    chosen = jnp.take_along_axis(scaled, token[:, None], axis=1)[:, 0]
    return token, chosen - top - jnp.log(jnp.sum(blocks, axis=(1, 2)))


def truncate(scaled: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Logits with everything outside top-k, and then outside top-p of what is left, at -inf.

    Tokens that tie with the last one kept are kept, too.

    Args:
        scaled: [B, V] float32.
        top_k: [B] int32; 0 keeps all.
        top_p: [B] float32; 1 keeps all.

    Source: Fan et al. 2018 (arXiv:1805.04833) for top-k; Holtzman et al. 2020 (arXiv:1904.09751),
        equation 2 for top-p: the smallest set whose mass is at least p.
    """
    keys = _ordered(scaled)
    counted = jnp.ones_like(scaled)
    needed = jnp.where(top_k > 0, top_k, scaled.shape[1]).astype(jnp.float32)
    kept = jnp.where(keys >= _threshold(keys, counted, needed)[:, None], scaled, -jnp.inf)
    mass = jax.nn.softmax(kept, axis=-1)
    lowest = jnp.where(top_p < 1, _threshold(keys, mass, top_p), 0)
    return jnp.where(keys >= lowest[:, None], kept, -jnp.inf)


def _threshold(keys: jax.Array, weights: jax.Array, needed: jax.Array) -> jax.Array:
    """[B] uint32: the largest t for which the weights of keys >= t sum to `needed` or more; else 0."""

    def body(step: jax.Array, found: jax.Array) -> jax.Array:
        candidate = found | (jnp.uint32(1) << (31 - step).astype(jnp.uint32))
        reached = jnp.sum(jnp.where(keys >= candidate[:, None], weights, 0), axis=1)
        return jnp.where(reached >= needed, candidate, found)

    return jax.lax.fori_loop(0, 32, body, jnp.zeros(len(keys), jnp.uint32))


def _ordered(x: jax.Array) -> jax.Array:
    """float32 as uint32 in the same order."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _uniform(rows: SamplingRows) -> jax.Array:
    """[B] float32 in [0, 1), from seed and index alone."""

    def one(seed: jax.Array, index: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.uniform(jax.random.fold_in(key, index))

    return jax.vmap(one)(rows.seed, rows.index)


def _draw(blocks: jax.Array, uniform: jax.Array) -> jax.Array:
    """Invert the cumulative weights [B, V / BLOCK, BLOCK] at uniform [B]: first the block, then in it."""
    block, rest = _invert(jnp.sum(blocks, axis=-1), uniform)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    token, _ = _invert(inside, rest)
    return block * BLOCK + token


def _invert(weights: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where the cumulative weights [B, n] pass uniform [B], and how far into that weight, in [0, 1).

    Never an entry of weight 0, whatever the sums' rounding.
    """
    sums = jnp.cumsum(weights, axis=-1)
    possible = weights > 0
    total = jnp.max(jnp.where(possible, sums, 0), axis=-1)
    target = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.zeros_like(total)))
    index = jnp.argmax(possible & (sums > target[:, None]), axis=-1).astype(jnp.int32)
    weight = jnp.take_along_axis(weights, index[:, None], axis=1)[:, 0]
    end = jnp.take_along_axis(sums, index[:, None], axis=1)[:, 0]
    return index, jnp.clip((target - (end - weight)) / weight, 0, 1 - 2**-24)


def _first_maximum(x: jax.Array, top: jax.Array) -> jax.Array:
    """argmax of [B, n blocks of BLOCK] given its maximum [B], in two levels; the first of equals."""
    blocks = x.reshape(len(x), -1, BLOCK)
    block = jnp.argmax(jnp.max(blocks, axis=-1) == top[:, None], axis=-1).astype(jnp.int32)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * BLOCK + jnp.argmax(inside == top[:, None], axis=-1).astype(jnp.int32)
