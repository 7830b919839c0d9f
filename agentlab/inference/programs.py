"""The engine's three compiled programs: prefill a chunk, decode some steps, copy prefixes.

They are module-level and keyed by static values alone, so a second engine of the same model in the
process compiles nothing. Each takes the cache and gives it back; the argument is donated.
"""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from agentlab.inference.attention import attend_cached
from agentlab.inference.sampling import SamplingRows, sample
from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import Decoder, abstract_params, decoder_structure
from agentlab.models.tree import Path, flat_arrays, with_arrays

on_trace: ContextVar[Callable[[], None] | None] = ContextVar("agentlab_on_trace", default=None)
"""Called while a program is traced, which happens once before each compilation and at no other time."""


class Cache(NamedTuple):
    """Keys and values, one array [slots, Hkv, tokens per slot, Dh] per layer."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


class PrefillRows(NamedTuple):
    """A chunk of each row's prompt. A padding row has a slot beyond the last, and count 1."""

    tokens: jax.Array
    """[B, T] int32."""
    start: jax.Array
    """[B] int32: tokens already in the cache."""
    count: jax.Array
    """[B] int32: how many of the T tokens are real."""
    slot: jax.Array
    """[B] int32."""


class DecodeRows(NamedTuple):
    """Rows that sample on from one token each. A padding row has a slot beyond the last, and limit 0."""

    token: jax.Array
    """[B] int32: the newest token, not yet in the cache."""
    start: jax.Array
    """[B] int32: tokens in the cache."""
    limit: jax.Array
    """[B] int32: most tokens to sample."""
    slot: jax.Array
    """[B] int32."""
    stops: jax.Array
    """[B, S] int32: tokens that end the row; -1 for none."""


def empty_cache(config: DecoderConfig, num_slots: int, tokens_per_slot: int, dtype: Any) -> Cache:
    """A cache of zeros."""
    shape = (num_slots, config.num_kv_heads, tokens_per_slot, config.head_dim)
    layers = range(config.num_layers)
    return Cache(tuple(jnp.zeros(shape, dtype) for _ in layers), tuple(jnp.zeros(shape, dtype) for _ in layers))


@functools.cache
def parameter_paths(config: DecoderConfig) -> tuple[Path, ...]:
    """The order in which programs take the parameters, as a flat tuple of arrays."""
    return tuple(sorted(flat_arrays(abstract_params(config)), key=repr))


@functools.partial(jax.jit, static_argnames=("config", "context"), donate_argnames=("cache",))
def prefill(
    weights: tuple[jax.Array, ...],
    cache: Cache,
    rows: PrefillRows,
    sampling: SamplingRows,
    *,
    config: DecoderConfig,
    context: int,
) -> tuple[Cache, jax.Array, jax.Array]:
    """Run a chunk of each row into the cache, and sample what follows its last token.

    Args:
        weights: Parameters in the order of `parameter_paths`.
        context: Tokens of cache that are read; at least the largest `rows.start`. 0 reads none.

    Returns:
        The cache; sampled tokens [B]; their log-probabilities [B].
    """
    _traced()
    decoder = _decoder(config, weights)
    past = _read(cache, rows.slot, context)
    steps = jnp.arange(rows.tokens.shape[1])
    fresh: dict[int, tuple[jax.Array, jax.Array]] = {}

    def attention(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        fresh[layer] = k, v
        return attend_cached(
            q, (past.k[layer], past.v[layer]), _by_head(k, v), rows.start, steps, **_attention_options(config, layer)
        )

    hidden = decoder(rows.tokens, rows.start[:, None] + steps, attention)
    last = jnp.take_along_axis(hidden, (rows.count - 1)[:, None, None], axis=1)[:, 0]
    token, logprob = sample(decoder.logits(last), sampling)
    real = steps < rows.count[:, None]
    return _write(cache, fresh, rows.slot, rows.start, real), token, logprob


@functools.partial(jax.jit, static_argnames=("config", "context", "max_steps"), donate_argnames=("cache",))
def decode(
    weights: tuple[jax.Array, ...],
    cache: Cache,
    rows: DecodeRows,
    sampling: SamplingRows,
    num_steps: jax.Array,
    *,
    config: DecoderConfig,
    context: int,
    max_steps: int,
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """Sample up to `num_steps` tokens per row, fewer where a stop token or the limit ends it.

    The cache is read once per call and written once: the loop keeps the new keys and values apart.

    Args:
        weights: Parameters in the order of `parameter_paths`.
        num_steps: int32, at most `max_steps`; not part of the compiled program.
        context: Tokens of cache that are read; at least the largest `rows.start`.

    Returns:
        The cache; sampled tokens [B, max_steps]; their log-probabilities; how many are real [B].
    """
    _traced()
    decoder = _decoder(config, weights)
    past = _read(cache, rows.slot, context)
    batch = len(rows.token)
    shape = (batch, config.num_kv_heads, max_steps, config.head_dim)
    empty = tuple(jnp.zeros(shape, past.k[0].dtype) for _ in range(config.num_layers))

    def step(state: Any) -> Any:
        at, token, active, new_k, new_v, tokens, logprobs, counts = state
        new = {}

        def attention(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            k, v = _by_head(k, v)
            k = jax.lax.dynamic_update_slice_in_dim(new_k[layer], k, at, axis=2)
            v = jax.lax.dynamic_update_slice_in_dim(new_v[layer], v, at, axis=2)
            new[layer] = k, v
            options = _attention_options(config, layer)
            return attend_cached(q, (past.k[layer], past.v[layer]), (k, v), rows.start, at[None], **options)

        hidden = decoder(token[:, None], (rows.start + at)[:, None], attention)
        token, logprob = sample(decoder.logits(hidden[:, 0]), sampling._replace(index=sampling.index + at))
        counts += active
        active &= (at + 1 < rows.limit) & ~jnp.any(token[:, None] == rows.stops, axis=1)
        new_k, new_v = zip(*(new[layer] for layer in range(config.num_layers)), strict=True)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], at, axis=1)
        logprobs = jax.lax.dynamic_update_slice_in_dim(logprobs, logprob[:, None], at, axis=1)
        return at + 1, token, active, new_k, new_v, tokens, logprobs, counts

    tokens = jnp.zeros((batch, max_steps), jnp.int32)
    logprobs = jnp.zeros((batch, max_steps), jnp.float32)
    start = (jnp.int32(0), rows.token, rows.limit > 0, empty, empty, tokens, logprobs, jnp.zeros(batch, jnp.int32))
    end = jax.lax.while_loop(lambda state: (state[0] < num_steps) & jnp.any(state[2]), step, start)
    _, _, _, new_k, new_v, tokens, logprobs, counts = end
    fresh = {layer: _by_head(k, v) for layer, (k, v) in enumerate(zip(new_k, new_v, strict=True))}
    real = jnp.arange(max_steps) < counts[:, None]
    return _write(cache, fresh, rows.slot, rows.start, real), tokens, logprobs, counts


@functools.partial(jax.jit, static_argnames=("context",), donate_argnames=("cache",))
def copy(cache: Cache, source: jax.Array, target: jax.Array, *, context: int) -> Cache:
    """The first `context` tokens of slots `source` [B] copied to slots `target` [B].

    All are read before any is written. A target beyond the last slot is left out.
    """
    _traced()

    def one(x: jax.Array) -> jax.Array:
        return x.at[target, :, :context].set(x.at[source, :, :context].get(mode="clip"), mode="drop")

    return jax.tree.map(one, cache)


def _traced() -> None:
    observer = on_trace.get()
    if observer is not None:
        observer()


def _decoder(config: DecoderConfig, weights: tuple[jax.Array, ...]) -> Decoder:
    arrays = dict(zip(parameter_paths(config), weights, strict=True))
    return nnx.merge(decoder_structure(config), with_arrays(abstract_params(config), arrays))


def _attention_options(config: DecoderConfig, layer: int) -> dict[str, Any]:
    return {
        "scale": config.attention_scale,
        "soft_cap": config.attention_soft_cap,
        "window": config.window(layer),
    }


def _by_head(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[B, T, H, D] <-> [B, H, T, D]"""
    return jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)


def _read(cache: Cache, slot: jax.Array, context: int) -> Cache:
    """The first `context` tokens of some slots, [B, Hkv, context, Dh] per layer."""
    return jax.tree.map(lambda x: x.at[slot, :, :context].get(mode="clip"), cache)


def _write(
    cache: Cache, fresh: dict[int, tuple[jax.Array, jax.Array]], slot: jax.Array, start: jax.Array, real: jax.Array
) -> Cache:
    """Put fresh keys and values [B, T, Hkv, Dh] at `start` of each slot, where `real` [B, T]."""
    num_slots, _, size, _ = cache.k[0].shape
    at = jnp.where(real & (slot < num_slots)[:, None], start[:, None] + jnp.arange(real.shape[1]), size)

    def put(x: jax.Array, new: jax.Array) -> jax.Array:
        return x.at[slot[:, None], :, at].set(new.astype(x.dtype), mode="drop")

    layers = range(len(cache.k))
    k = tuple(put(cache.k[layer], fresh[layer][0]) for layer in layers)
    return Cache(k, tuple(put(cache.v[layer], fresh[layer][1]) for layer in layers))
