"""What `bench engine` is held against: loops that no engine slows down, and the limits of the machine."""

import functools
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from agentlab.inference.attention import attend_cached
from agentlab.inference.cache import keys_values
from agentlab.models import Model
from agentlab.models.decoder import FEW_ROWS, project, rotary_frequencies
from agentlab.models.tree import flat_arrays

EPS = 1e-5
STEPS = 8
"""Decode steps of one call."""

Weights = tuple[jax.Array, jax.Array, tuple[dict[str, jax.Array], ...]]
"""The embedding table [V, D], the last norm [D], and per layer its matrices [out, in] and norms by name."""


def weights_of(model: Model) -> Weights:
    """Plain tuples and dictionaries of the arrays of a Llama: no module stands between them and the program."""
    flat = flat_arrays(model.params)
    layers: list[dict[str, jax.Array]] = [{} for _ in range(model.config.num_layers)]
    for path, array in flat.items():
        if path[0] == "layers":
            layers[int(path[1])][path[-2] if path[-1] == "weight" else path[-1]] = array
    return flat[("embed_tokens",)], flat[("norm", "weight")], tuple(layers)


Layout = Literal["rows", "columns", "turned"]
"""How a loop multiplies a weight [out, in] with its activations: rows [B, in] from the right; columns [in, B], which
the whole stream is then; or rows that are turned into columns for each product, as `Decoder` does for a few rows."""


def layouts_for(rows: int) -> tuple[Layout, ...]:
    """Those that may be the fastest: which one is depends on the processor."""
    return ("rows", "columns") if not 1 < rows <= FEW_ROWS else ("rows", "columns", "turned")


def best_decode_loop(model: Model, rows: int, context: int, *, tries: int = 3) -> tuple[Layout, Callable[[], float]]:
    """The loop of the layout that was fastest in a few tries by turns."""
    loops: dict[Layout, Callable[[], float]]
    loops = {layout: decode_loop(model, rows, context, layout) for layout in layouts_for(rows)}
    fastest: dict[Layout, float] = dict.fromkeys(loops, float("inf"))
    for _ in range(tries):
        for layout, loop in loops.items():
            fastest[layout] = min(fastest[layout], loop())
    best = min(fastest, key=lambda layout: fastest[layout])
    return best, loops[best]


def decode_loop(model: Model, rows: int, context: int, layout: Layout) -> Callable[[], float]:
    """A greedy decode of some rows over a cache of `context` tokens each; a call gives the seconds of one step.

    One program of `STEPS` steps. No stop tokens, no bookkeeping.
    """
    config, weights = model.config, weights_of(model)
    rng = np.random.default_rng(0)
    values = (rows, config.num_kv_heads, context, config.head_dim)
    shapes = (*values[:2], config.head_dim, context), values
    past = tuple(
        tuple(jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes) for _ in range(config.num_layers)
    )
    token = jnp.arange(rows, dtype=jnp.int32) + 5
    start = jnp.full(rows, context - STEPS, jnp.int32)
    program = functools.partial(_decode, weights, past, start, heads=(config.num_heads, config.num_kv_heads))
    program = functools.partial(program, frequencies=tuple(rotary_frequencies(config).tolist()), layout=layout)
    jax.block_until_ready(program(token))

    def timed() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(program(token))
        return (time.perf_counter() - begin) / STEPS

    return timed


@functools.partial(jax.jit, static_argnames=("heads", "frequencies", "layout"))
def _decode(
    weights: Weights, past: Any, start: jax.Array, token: jax.Array, *, heads: Any, frequencies: Any, layout: Layout
) -> Any:
    table, last_norm, layers = weights
    rows, (kv_heads, _, size) = len(token), past[0][1].shape[1:]
    empty = jnp.zeros((rows, kv_heads, size, STEPS), table.dtype), jnp.zeros((rows, kv_heads, STEPS, size), table.dtype)
    columns = layout == "columns"

    def step(at: jax.Array, state: Any) -> Any:
        token, new, logprobs = state
        angles = (start + at)[:, None, None] * jnp.asarray(frequencies, jnp.float32)
        x = _turned(table[token], columns)
        kept = []
        for layer, old, fresh in zip(layers, past, new, strict=True):
            x, fresh = _layer(layer, x, angles, old, fresh, start, at, heads=heads, layout=layout)
            kept.append(fresh)
        logits = _product(table, _normed(x, columns) * _turned(last_norm[None], columns), layout)
        axis = 0 if columns else 1
        token = jnp.argmax(logits, axis=axis).astype(jnp.int32)
        return token, tuple(kept), logprobs + jnp.max(logits, axis=axis) - jax.nn.logsumexp(logits, axis=axis)

    return jax.lax.fori_loop(0, STEPS, step, (token, (empty,) * len(layers), jnp.zeros(rows)))


@functools.partial(jax.jit, static_argnames=("heads", "layout"))
def _layer(
    layer: Any, x: Any, angles: Any, old: Any, fresh: Any, start: Any, at: Any, *, heads: Any, layout: Layout
) -> Any:
    rows, columns = len(start), layout == "columns"
    num_heads, num_kv_heads = heads
    h = _normed(x, columns) * _turned(layer["input_layernorm"][None], columns)
    q, k, v = (_turned(_product(layer[name], h, layout), columns) for name in ("q_proj", "k_proj", "v_proj"))
    q, k = _rotated(q.reshape(rows, num_heads, -1), angles), _rotated(k.reshape(rows, num_kv_heads, -1), angles)
    now = keys_values(k[:, None], v.reshape(rows, 1, num_kv_heads, -1))
    fresh = tuple(
        jax.lax.dynamic_update_slice_in_dim(buffer, value, at, axis)
        for buffer, value, axis in zip(fresh, now, (3, 2), strict=True)
    )
    scale = q.shape[-1] ** -0.5
    mixed = attend_cached(q[:, None], old, fresh, start, at[None], scale=scale, soft_cap=None, window=None)
    x = x + _product(layer["o_proj"], _turned(mixed.reshape(rows, -1), columns), layout)
    h = _normed(x, columns) * _turned(layer["post_attention_layernorm"][None], columns)
    gated = jax.nn.silu(_product(layer["gate_proj"], h, layout)) * _product(layer["up_proj"], h, layout)
    return x + _product(layer["down_proj"], gated, layout), fresh


def _product(weight: jax.Array, x: jax.Array, layout: Layout) -> jax.Array:
    """A weight [out, in] times activations in their layout."""
    if layout == "columns":
        return weight @ x
    return project(x, weight) if layout == "turned" else jnp.einsum("bi,oi->bo", x, weight)


def _turned(x: jax.Array, columns: bool) -> jax.Array:
    """Rows [B, D] to columns [D, B] and back where the stream is columns."""
    return x.T if columns else x


def _normed(x: jax.Array, columns: bool) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=0 if columns else 1, keepdims=True) + EPS)


def _rotated(x: jax.Array, angles: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def prefill_pass(model: Model, rows: int, chunk: int) -> Callable[[], float]:
    """One pass over a chunk of some rows without any cache; a call gives the seconds per token."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, model.config.vocab_size, (rows, chunk), np.int32))
    jax.block_until_ready(forward_chunk(model, tokens))

    def timed() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(forward_chunk(model, tokens))
        return (time.perf_counter() - begin) / (rows * chunk)

    return timed


def forward_chunk(model: Model, tokens: jax.Array) -> Any:
    """Logits [B, V] behind the last of the tokens [B, T], and each layer's keys and values."""
    config = model.config
    frequencies = tuple(rotary_frequencies(config).tolist())
    heads = (config.num_heads, config.num_kv_heads)
    return _prefill(weights_of(model), tokens, heads=heads, frequencies=frequencies)


@functools.partial(jax.jit, static_argnames=("heads", "frequencies"))
def _prefill(weights: Weights, tokens: jax.Array, *, heads: Any, frequencies: Any) -> Any:
    table, last_norm, layers = weights
    angles = jnp.arange(tokens.shape[1])[:, None, None] * jnp.asarray(frequencies, jnp.float32)
    x, kept = table[tokens], []
    for layer in layers:
        x, keys_values = _prefill_layer(layer, x, angles, heads=heads)
        kept.append(keys_values)
    return (_normed_rows(x[:, -1]) * last_norm) @ table.T, kept


@functools.partial(jax.jit, static_argnames=("heads",))
def _prefill_layer(layer: Any, x: Any, angles: Any, *, heads: Any) -> Any:
    rows, chunk, _ = x.shape
    product = functools.partial(jnp.einsum, "bti,oi->bto")
    h = _normed_rows(x) * layer["input_layernorm"]
    q, k, v = (product(h, layer[name]).reshape(rows, chunk, n, -1) for name, n in _heads_of(heads))
    q, k = _rotated(q, angles), _rotated(k, angles)
    none = keys_values(k[:, :0], v[:, :0])
    new = keys_values(k, v)
    length, steps = jnp.zeros(rows, jnp.int32), jnp.arange(chunk)
    mixed = attend_cached(q, none, new, length, steps, scale=q.shape[-1] ** -0.5, soft_cap=None, window=None)
    x = x + product(mixed.reshape(rows, chunk, -1), layer["o_proj"])
    h = _normed_rows(x) * layer["post_attention_layernorm"]
    gated = jax.nn.silu(product(h, layer["gate_proj"])) * product(h, layer["up_proj"])
    return x + product(gated, layer["down_proj"]), new


def _heads_of(heads: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    return ("q_proj", heads[0]), ("k_proj", heads[1]), ("v_proj", heads[1])


def _normed_rows(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS)


def copied(params: Any) -> Any:
    """The same parameters in arrays of their own, as an update makes them."""
    return jax.block_until_ready(jax.tree.map(jnp.copy, params))


def memory_rate(repeats: int = 5) -> float:
    """Bytes per second that a matrix-vector product of 256 MB reads, at best."""
    matrix, vector = jnp.ones((8192, 8192)), jnp.ones(8192)
    return matrix.nbytes / _best(jax.jit(jnp.matmul), matrix, vector, repeats)


def product_rate(repeats: int = 5) -> float:
    """Operations per second of a product of two square matrices, at best."""
    matrix = jnp.ones((1536, 1536))
    return 2 * 1536**3 / _best(jax.jit(jnp.matmul), matrix, matrix, repeats)


def _best(function: Callable[..., Any], x: jax.Array, y: jax.Array, repeats: int) -> float:
    jax.block_until_ready(function(x, y))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function(x, y))
        times.append(time.perf_counter() - begin)
    return min(times)
