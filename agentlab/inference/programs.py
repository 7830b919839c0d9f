"""The engine's three compiled programs: prefill a chunk, decode some steps, copy prefixes.

They are module-level and keyed by static values alone, so a second engine of the same model in the
process compiles nothing. Each takes the cache and gives it back, laid out as it was (`layout`, which is None
on a single device); the argument is donated.
"""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, SingleDeviceSharding

from agentlab.inference.attention import (
    AttentionOptions,
    DecodePlace,
    Kernel,
    PrefillPlace,
    attend_decode,
    attend_prefill,
    token_axes,
)
from agentlab.inference.layers import Cache, run_layers
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


def empty_cache(
    config: DecoderConfig, num_slots: int, length: int, dtype: Any, *, kernel: Kernel = "xla", device: Any = None
) -> Cache:
    """A cache of zeros, on a device or laid out on several."""
    shapes = abstract_cache(config, num_slots, length, dtype, kernel=kernel, device=device)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=device), shapes)


def abstract_cache(
    config: DecoderConfig, num_slots: int, length: int, dtype: Any, *, kernel: Kernel = "xla", device: Any = None
) -> Cache:
    """The shapes of such a cache, as it will lie."""
    place = SingleDeviceSharding(device) if isinstance(device, jax.Device) else device

    def layers(token_axis: int) -> Any:
        sizes = [num_slots, config.num_kv_heads, config.head_dim]
        sizes.insert(token_axis, length)
        return (jax.ShapeDtypeStruct(tuple(sizes), dtype, sharding=place),) * config.num_layers

    return Cache(*map(layers, token_axes(kernel)))


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
    context: int,
    kernel: Kernel = "xla",
    layout: Layout = None,
) -> tuple[Cache, jax.Array, jax.Array]:
    """Run a chunk of each row into the cache, and sample what follows its last token.

    Args:
        weights: Parameters in the order of `parameter_paths`.
        context: Tokens of cache that are read; at least the largest `rows.start`. With a row for every slot the
            cache itself is read: row i is then slot i, and the context its length.
        kernel: For which the cache is laid out; the attention of a prefill is XLA's.

    Returns:
        The cache; sampled tokens [B]; their log-probabilities [B].
    """
    _traced()
    decoder = _decoder(config, weights)
    positions = rows.start[:, None] + jnp.arange(rows.tokens.shape[1])
    options = functools.partial(AttentionOptions.of, config, kernel=kernel, context=context)
    place = PrefillPlace(rows.start, rows.slot)
    hidden, new = run_layers(decoder, rows.tokens, positions, attend_prefill, options, cache, None, place)
    last = jnp.take_along_axis(hidden, (rows.count - 1)[:, None, None], axis=1)[:, 0]
    token, logprob = sample(decoder.logits(last), sampling)
    cache = _write(cache, new, rows.real, rows.slot, rows.start, rows.num_real, kernel)
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
        past = _read_rows(cache, past, rows.slot, rows.stale, rows.num_stale)
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
    cache = _write(cache, end.kept, rows.real, rows.slot, rows.start, rows.num_real, kernel)
    if past is not None:
        seats = jnp.arange(batch)
        past = _laid_out(_write(past, end.kept, rows.real, seats, rows.start, rows.num_real, kernel), layout)
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


def _read_rows(cache: Cache, past: Cache, slot: jax.Array, stale: jax.Array, num_stale: jax.Array) -> Cache:
    """The past with its stale rows read from their slots, as far as a row reaches."""

    def body(at: jax.Array, past: Cache) -> Cache:
        row = stale[at]
        return jax.tree.map(lambda out, x: _read_row(out, x, row, slot[row]), past, cache)

    return jax.lax.fori_loop(0, num_stale, body, past)


@jax.jit  # so that it is traced once, not for each array of the cache
def _read_row(out: jax.Array, x: jax.Array, row: jax.Array, slot: jax.Array) -> jax.Array:
    """Row `row` of `out` [B, ...] taken from the beginning of a slot of `x`."""
    block = _slice(x, (slot, 0, 0, 0), (1, *out.shape[1:]))
    return _put(out, block, (row, 0, 0, 0))


def _write(
    cache: Cache,
    new: Cache,
    real: jax.Array,
    slot: jax.Array,
    start: jax.Array,
    num_real: jax.Array,
    kernel: Kernel,
) -> Cache:
    """Put the real rows of `new`, [B, ...] per layer, at `start` of their slots.

    What lies behind a slot's end is dropped, and what is in front of `start` stays as it is.
    """

    def body(at: jax.Array, cache: Cache) -> Cache:
        row = real[at]
        place = row, slot[row], start[row]
        written = (
            tuple(_write_row(x, y, *place, axis=axis) for x, y in zip(old, news, strict=True))
            for old, news, axis in zip(cache, new, token_axes(kernel), strict=True)
        )
        return Cache(*written)

    return jax.lax.fori_loop(0, num_real, body, cache)


@functools.partial(jax.jit, static_argnames=("axis",))  # so that it is traced once, not for each array of the cache
def _write_row(
    x: jax.Array, new: jax.Array, row: jax.Array, slot: jax.Array, start: jax.Array, *, axis: int
) -> jax.Array:
    """Slot `slot` of `x` [slots, ...] with row `row` of `new` [B, ...] put at token `start`.

    Args:
        axis: Along which the tokens lie.
    """

    def along(tokens: Any, first: Any = 0) -> list[Any]:
        return [first, *(tokens if n == axis else 0 for n in range(1, x.ndim))]

    length, size = x.shape[axis], new.shape[axis]
    begin = jnp.minimum(start, length - size)
    shift = start - begin
    block = _slice(new, along(0, row), (1, *new.shape[1:])).astype(x.dtype)
    padded = jnp.pad(block, [(most, 0) for most in along(size)])
    shifted = _slice(padded, along(size - shift), block.shape)
    place = along(begin, slot)
    fits = jax.lax.broadcasted_iota(jnp.int32, block.shape, axis) >= shift
    return _put(x, jnp.where(fits, shifted, _slice(x, place, block.shape)), place)


# No index is negative: without their correction a program is compiled in two thirds of the time.
_slice = functools.partial(jax.lax.dynamic_slice, allow_negative_indices=False)
_put = functools.partial(jax.lax.dynamic_update_slice, allow_negative_indices=False)
