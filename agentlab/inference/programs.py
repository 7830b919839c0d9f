"""The engine's three compiled programs: prefill a chunk, decode some steps, copy prefixes.

They are module-level and keyed by static values alone, so a second engine of the same model in the
process compiles nothing. Each takes the cache and gives it back, laid out as it was (`layout`, which is None
on a single device); the argument is donated.
"""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding

from agentlab.inference.attention import AttentionOptions, DecodePlace, attend_decode, attend_prefill
from agentlab.inference.cache import Cache, Kernel, RealRows, empty_cache, read_rows, write_rows
from agentlab.inference.layers import run_layers
from agentlab.inference.sampling import Column, SamplingRows, sample
from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import Decoder, abstract_params, decoder_structure
from agentlab.models.tree import Path, flat_arrays, with_arrays

Layout = NamedSharding | None
"""How each array of a cache lies on a mesh; None on a single device."""

on_trace: ContextVar[Callable[[], None] | None] = ContextVar("agentlab_on_trace", default=None)
"""Called while a program is traced, which happens once before each compilation and at no other time."""


class PrefillRows(NamedTuple):
    """A chunk of each row's prompt. A padding row has count 1."""

    tokens: Column
    """[B, T] int32."""
    start: Column
    """[B] int32: tokens already in the cache."""
    count: Column
    """[B] int32: how many of the T tokens are real."""
    slot: Column
    """[B] int32."""
    real: Column
    """[B] int32: the first `num_real` are the rows that are no padding."""
    num_real: Column


class DecodeRows(NamedTuple):
    """Rows that sample on from one token each. A padding row has limit 0."""

    token: Column
    """[B] int32: the newest token, not yet in the cache."""
    start: Column
    """[B] int32: tokens in the cache."""
    limit: Column
    """[B] int32: most tokens to sample."""
    slot: Column
    """[B] int32."""
    stops: Column
    """[B, S] int32: tokens that end the row; -1 for none."""
    real: Column
    """[B] int32: the first `num_real` are the rows that are no padding."""
    num_real: Column
    stale: Column
    """[B] int32: the first `num_stale` are the rows whose slot must be read into the past."""
    num_stale: Column


@functools.cache
def parameter_paths(config: DecoderConfig) -> tuple[Path, ...]:
    """The order in which programs take the parameters, as a flat tuple of arrays."""
    return tuple(sorted(flat_arrays(abstract_params(config)), key=repr))


@functools.partial(jax.jit, static_argnames=("config", "context", "kernel", "layout"), donate_argnames=("cache",))
def prefill(
    weights: tuple[jax.Array, ...],
    cache: Cache,
    rows: PrefillRows,
    sampling: SamplingRows,
    *,
    config: DecoderConfig,
    context: int | None,
    kernel: Kernel = "xla",
    layout: Layout = None,
) -> tuple[Cache, jax.Array, jax.Array]:
    """Run a chunk of each row into the cache, and sample what follows its last token.

    Args:
        weights: Parameters in the order of `parameter_paths`.
        context: Tokens of a slot that are read, those of the chunk among them. None reads the cache itself: row i is
            then slot i, and all slots are rows.
        kernel: For which the cache is laid out; the attention of a prefill is XLA's.

    Returns:
        The cache; sampled tokens [B]; their log-probabilities [B].
    """
    _traced()
    decoder = _decoder(config, weights)
    positions = rows.start[:, None] + jnp.arange(rows.tokens.shape[1])
    options = functools.partial(AttentionOptions.of, config, kernel=kernel, context=context)
    place = RealRows(rows.real, rows.num_real, rows.slot, rows.start)
    hidden, cache = run_layers(decoder, rows.tokens, positions, attend_prefill, options, None, cache, place)
    last = jnp.take_along_axis(hidden, (rows.count - 1)[:, None, None], axis=1)[:, 0]
    token, logprob = sample(decoder.logits(last), sampling)
    return _laid_out(cache, layout), token, logprob


@functools.partial(
    jax.jit, static_argnames=("config", "max_steps", "kernel", "layout"), donate_argnames=("cache", "past")
)
def decode(
    weights: tuple[jax.Array, ...],
    cache: Cache,
    past: Cache | None,
    rows: DecodeRows,
    sampling: SamplingRows,
    num_steps: jax.Array,
    *,
    config: DecoderConfig,
    max_steps: int,
    kernel: Kernel = "xla",
    layout: Layout = None,
) -> tuple[Cache, Cache | None, jax.Array, jax.Array, jax.Array]:
    """Sample up to `num_steps` tokens per row, fewer where a stop token or the limit ends it.

    Args:
        weights: Parameters in the order of `parameter_paths`.
        past: What the rows read, a cache of a slot of `context` tokens for each: kept from call to call, so that
            only the rows of newcomers are copied out of the cache. `context` is at least the largest `rows.start`.
            Donated, too. None reads the cache itself: row i is then slot i, and all slots are rows. The
            kernel takes any rows, and None.
        num_steps: int32, at most `max_steps`; not part of the compiled program.
        kernel: What computes the attention, see `attend_decode`.

    Returns:
        The cache; the past; sampled tokens [B, max_steps]; their log-probabilities; how many are real [B].
    """
    _traced()
    batch = len(rows.token)
    if past is not None:
        past = read_rows(cache, past, rows.slot, rows.stale, rows.num_stale)
    if kernel == "xla":
        read, kept = past or cache, empty_cache(config, batch, max_steps, cache.k[0].dtype)
    else:
        read, kept = None, cache
    step = functools.partial(_decode_step, _decoder(config, weights), read, rows, sampling, kernel)
    start = DecodeState(
        at=jnp.int32(0),
        token=rows.token,
        active=rows.limit > 0,
        kept=kept,
        tokens=jnp.zeros((batch, max_steps), jnp.int32),
        logprobs=jnp.zeros((batch, max_steps), jnp.float32),
        counts=jnp.zeros(batch, jnp.int32),
    )
    end = jax.lax.while_loop(lambda state: (state.at < num_steps) & jnp.any(state.active), step, start)
    if kernel != "xla":
        return end.kept, None, end.tokens, end.logprobs, end.counts
    real = RealRows(rows.real, rows.num_real, rows.slot, rows.start)
    cache = Cache(*write_rows(cache, end.kept, real, kernel))
    if past is not None:
        past = Cache(*write_rows(past, end.kept, real._replace(slot=jnp.arange(batch)), kernel))
        past = _laid_out(past, layout)
    return _laid_out(cache, layout), past, end.tokens, end.logprobs, end.counts


class DecodeState(NamedTuple):
    """What a decode step takes and gives: as in `decode`, and what the layers keep from step to step."""

    at: jax.Array
    token: jax.Array
    active: jax.Array
    kept: Cache
    tokens: jax.Array
    logprobs: jax.Array
    counts: jax.Array


def _decode_step(
    decoder: Decoder,
    past: Cache | None,
    rows: DecodeRows,
    sampling: SamplingRows,
    kernel: Kernel,
    state: DecodeState,
) -> DecodeState:
    at = state.at
    options = functools.partial(AttentionOptions.of, decoder.config, kernel=kernel)
    place = DecodePlace(rows.start, at, rows.slot)
    positions = (rows.start + at)[:, None]
    hidden, kept = run_layers(decoder, state.token[:, None], positions, attend_decode, options, past, state.kept, place)
    token, logprob = sample(decoder.logits(hidden[:, 0]), sampling._replace(index=sampling.index + at))
    return DecodeState(
        at=at + 1,
        token=token,
        active=state.active & (at + 1 < rows.limit) & ~jnp.any(token[:, None] == rows.stops, axis=1),
        kept=kept,
        tokens=jax.lax.dynamic_update_slice_in_dim(state.tokens, token[:, None], at, axis=1),
        logprobs=jax.lax.dynamic_update_slice_in_dim(state.logprobs, logprob[:, None], at, axis=1),
        counts=state.counts + state.active,
    )


@functools.partial(jax.jit, static_argnames=("layout",), donate_argnames=("cache",))
def copy(cache: Cache, source: jax.Array, target: jax.Array, num_copies: jax.Array, *, layout: Layout = None) -> Cache:
    """Slot `source[i]` copied to slot `target[i]`, for each i below `num_copies`, one after the other."""
    _traced()

    def body(row: jax.Array, cache: Cache) -> Cache:
        def put(x: jax.Array) -> jax.Array:
            slot = jax.lax.dynamic_index_in_dim(x, source[row])
            return jax.lax.dynamic_update_index_in_dim(x, slot, target[row], axis=0)

        return jax.tree.map(put, cache)

    return _laid_out(jax.lax.fori_loop(0, num_copies, body, cache), layout)


def _laid_out(cache: Cache, layout: Layout) -> Cache:
    return cache if layout is None else jax.lax.with_sharding_constraint(cache, layout)


def _traced() -> None:
    observer = on_trace.get()
    if observer is not None:
        observer()


def _decoder(config: DecoderConfig, weights: tuple[jax.Array, ...]) -> Decoder:
    arrays = dict(zip(parameter_paths(config), weights, strict=True))
    return nnx.merge(decoder_structure(config), with_arrays(_abstract(config), arrays))


_abstract = functools.cache(abstract_params)
