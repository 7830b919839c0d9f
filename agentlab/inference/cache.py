"""The cache of keys and values: how it lies, and how rows are put into its slots and read out of them."""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from agentlab.models.config import DecoderConfig

Kernel = Literal["xla", "pallas", "pallas_interpreted"]
"""What computes the attention of a decode: XLA, JAX's TPU kernel, or that kernel interpreted on any device."""

KeysValues = tuple[jax.Array, jax.Array]
"""Keys [B, Hkv, Dh, T] and values [B, Hkv, T, Dh], as products with queries and with weights read them in order.

Only the kernel wants the keys in its cache as [B, Hkv, T, Dh], too, see `token_axes`.
"""


class Cache(NamedTuple):
    """Keys and values, one array per layer: keys [slots, Hkv, Dh, length], but for the kernel [slots, Hkv, length, Dh],
    as values are.

    A program writes whole blocks, of which all that lies behind a row's tokens is never seen.
    """

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]

    def layer(self, index: int) -> KeysValues:
        """Keys and values of one layer."""
        return self.k[index], self.v[index]


class RealRows(NamedTuple):
    """Which rows of a batch are no padding, and where their tokens begin."""

    rows: jax.Array
    """[B] int32: the first `count` are real."""
    count: jax.Array
    slot: jax.Array
    """[B] int32: each row's slot."""
    start: jax.Array
    """[B] int32: tokens in it."""


def token_axes(kernel: Kernel) -> tuple[int, int]:
    """Which axis of the keys and which of the values in the cache are the tokens."""
    return (3 if kernel == "xla" else 2), 2


def keys_values(k: jax.Array, v: jax.Array) -> KeysValues:
    """Those of new tokens, [B, T, Hkv, Dh] both, in the order of products."""
    return k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)


def reordered(pair: KeysValues, kernel: Kernel) -> KeysValues:
    """Keys and values from the order of products to that of the cache, and from that to the order of products."""
    return pair if kernel == "xla" else (jnp.swapaxes(pair[0], 2, 3), pair[1])


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


def write_rows(cache: Any, new: Any, real: RealRows, kernel: Kernel) -> tuple[Any, Any]:
    """Keys and values of the cache with the real rows of `new` at `start` of their slots.

    What lies behind a slot's end is dropped, and what is in front of `start` stays as it is.

    Args:
        cache: A `Cache`, or one layer of it.
        new: The same of the batch, laid out as the cache.
    """

    def body(at: jax.Array, cache: tuple[Any, Any]) -> Any:
        row = real.rows[at]
        place = row, real.slot[row], real.start[row]
        return tuple(
            jax.tree.map(functools.partial(_write_row, place=place, axis=axis), old, now)
            for old, now, axis in zip(cache, new, token_axes(kernel), strict=True)
        )

    return jax.lax.fori_loop(0, real.count, body, tuple(cache))


@functools.partial(jax.jit, static_argnames=("axis",))  # so that it is traced once, not for each array of the cache
def _write_row(x: jax.Array, new: jax.Array, *, place: tuple[jax.Array, jax.Array, jax.Array], axis: int) -> jax.Array:
    """`x` [slots, ...] with a row of `new` [B, ...] put at a token of a slot.

    Args:
        place: Row, slot and token.
        axis: Along which the tokens lie.
    """
    row, slot, start = place

    def along(tokens: Any, first: Any = 0) -> list[Any]:
        return [first, *(tokens if n == axis else 0 for n in range(1, x.ndim))]

    length, size = x.shape[axis], new.shape[axis]
    begin = jnp.minimum(start, length - size)
    shift = start - begin
    block = _slice(new, along(0, row), (1, *new.shape[1:])).astype(x.dtype)
    padded = jnp.pad(block, [(most, 0) for most in along(size)])
    shifted = _slice(padded, along(size - shift), block.shape)
    at = along(begin, slot)
    fits = jax.lax.broadcasted_iota(jnp.int32, block.shape, axis) >= shift
    return _put(x, jnp.where(fits, shifted, _slice(x, at, block.shape)), at)


def read_rows(cache: Cache, past: Cache, slot: jax.Array, stale: jax.Array, num_stale: jax.Array) -> Cache:
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


def slots_of(layer: KeysValues, slot: jax.Array, context: int, kernel: Kernel) -> KeysValues:
    """The first `context` tokens of some slots of one layer, laid out as the cache."""
    k, v = (
        jax.lax.slice_in_dim(x.at[slot].get(mode="clip"), 0, context, axis=axis)
        for x, axis in zip(layer, token_axes(kernel), strict=True)
    )
    return k, v


# No index is negative: without their correction a program is compiled in two thirds of the time.
_slice = functools.partial(jax.lax.dynamic_slice, allow_negative_indices=False)
_put = functools.partial(jax.lax.dynamic_update_slice, allow_negative_indices=False)
