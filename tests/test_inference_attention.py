"""Decode attention: the kernel against the reference, and the reference against a plain softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentlab.bench.engine_load import gather, request
from agentlab.errors import ConfigError
from agentlab.inference.attention import AttentionOptions, DecodePlace, attend_decode, kernel_length
from agentlab.inference.cache import RealRows, abstract_cache, token_axes, write_rows
from agentlab.inference.jax_engine import JaxEngine, kernel_for
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import tiny_model
from agentlab.rollout.serving import run_served

SLOTS, HEADS, KV_HEADS, SIZE, LENGTH = 3, 4, 2, 128, 256


def normal(seed: int, *shape: int) -> jax.Array:
    """Numbers that bfloat16 holds exactly, as float32: the kernel rounds keys and values to it."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32)).astype(
        jnp.bfloat16
    ) * jnp.float32(1)


def plain(q: np.ndarray, keys: np.ndarray, values: np.ndarray, options: AttentionOptions) -> np.ndarray:
    """[Hq, Dh] over keys and values [T, Hkv, Dh], of which the last is the query's own; float64."""
    out = []
    for head in range(HEADS):
        k, v = (x[:, head // (HEADS // KV_HEADS)].astype(np.float64) for x in (keys, values))
        scores = k @ q[head].astype(np.float64) * options.scale
        if options.soft_cap is not None:
            scores = options.soft_cap * np.tanh(scores / options.soft_cap)
        if options.window is not None:
            scores[: max(0, len(scores) - options.window)] = -np.inf
        weights = np.exp(scores - scores.max())
        out.append(weights / weights.sum() @ v)
    return np.stack(out)


@pytest.mark.parametrize(
    ("kernel", "soft_cap", "window"),
    [
        ("xla", None, None),
        ("xla", 2.0, 40),
        ("pallas_interpreted", None, None),
        ("pallas_interpreted", 3.0, None),
        ("pallas_interpreted", 2.0, 40),
    ],
)
def test_decode_attends_as_defined_by_either_path(kernel, soft_cap, window):
    options = AttentionOptions(SIZE**-0.5 * 3, soft_cap, window, kernel)
    cache = normal(0, SLOTS, KV_HEADS, LENGTH, SIZE), normal(1, SLOTS, KV_HEADS, LENGTH, SIZE)
    start, slot = jnp.asarray([130, 0, 60], jnp.int32), jnp.asarray([2, 0, SLOTS], jnp.int32)
    rows = np.minimum(slot, SLOTS - 1)
    past = cache[0][rows].swapaxes(2, 3), cache[1][rows]
    kept = cache if kernel != "xla" else (jnp.zeros((3, KV_HEADS, SIZE, 4)), jnp.zeros((3, KV_HEADS, 4, SIZE)))
    step = jax.jit(attend_decode, static_argnums=0)
    seen = {row: [np.asarray(x)[rows[row], :, : int(start[row])].swapaxes(0, 1) for x in cache] for row in (0, 1)}
    for at in range(2):
        q, k, v = (normal(10 * n + at, 3, 1, heads, SIZE) for n, heads in ((1, HEADS), (2, KV_HEADS), (3, KV_HEADS)))
        place = DecodePlace(start, jnp.int32(at), slot)
        mixed, kept = step(options, q, k, v, None if kernel != "xla" else past, kept, place)
        for row in (0, 1):
            seen[row] = [np.concatenate([old, np.asarray(x)[row]]) for old, x in zip(seen[row], (k, v), strict=True)]
            expected = plain(np.asarray(q)[row, 0], *seen[row], options)
            np.testing.assert_allclose(mixed[row, 0], expected, atol=2e-5)
    if kernel != "xla":
        np.testing.assert_array_equal(kept[0][1], cache[0][1], "a padding row wrote into a slot")


def test_the_kernel_is_chosen_where_it_can_run():
    model, device = tiny_model(head_dim=128, dtype=jnp.bfloat16), jax.devices()[:1]
    assert kernel_for("auto", model, device) == "xla"
    assert kernel_for("pallas", model, device) == "pallas_interpreted"
    assert (kernel_length(200, "xla"), kernel_length(200, "pallas")) == (200, 256)
    with pytest.raises(ConfigError, match='attention must be "auto", "xla" or "pallas"'):
        JaxEngine(model, tokens_per_slot=32, attention="flash")  # pyright: ignore[reportArgumentType]
    for wrong, devices in ((tiny_model(), device), (model, [*device, *device])):
        with pytest.raises(ConfigError, match="needs one device, weights in bfloat16"):
            kernel_for("pallas", wrong, devices)


def test_an_engine_with_the_kernel_answers_as_one_without():
    """Its cache lies otherwise, so that prefills in chunks, in place and not, must find what decodes wrote."""
    model = tiny_model(seed=0, head_dim=SIZE, dtype=jnp.bfloat16)
    shapes = Shapes(
        decode_rows=(3,),
        prefill=(PrefillSize(2, 16), PrefillSize(3, 8)),
        contexts=(128,),
        prefill_contexts=(64, 128),
    )
    requests = [request(str(i), range(5 + i, 5 + i + n), 7, temperature=0.0) for i, n in enumerate((5, 40, 21, 100))]
    answers = []
    for attention in ("xla", "pallas"):
        engine = JaxEngine(model, num_slots=3, tokens_per_slot=128, max_dispatch=3, shapes=shapes, attention=attention)
        answers.append(run_served(engine, lambda engine=engine: gather(engine, requests)))
    for by_xla, by_kernel in zip(*answers, strict=True):
        assert by_xla.tokens == by_kernel.tokens
        np.testing.assert_allclose(by_kernel.logprobs, by_xla.logprobs, atol=0.05)


@pytest.mark.parametrize("kernel", ["xla", "pallas"])
def test_real_rows_are_written_where_they_belong_and_nothing_else_is(kernel):
    config = tiny_model(num_layers=1).config
    slots, length, size = 4, 10, 3
    cache, new = (
        jax.tree.map(
            lambda x, seed=seed: normal(seed, *x.shape), abstract_cache(config, *shape, jnp.float32, kernel=kernel)
        )
        for seed, shape in ((0, (slots, length)), (1, (3, size)))
    )
    real = RealRows(jnp.asarray([2, 0, 1]), jnp.int32(2), jnp.asarray([1, 0, 3]), jnp.asarray([8, 0, 4]))
    written = jax.jit(write_rows, static_argnums=3)(cache, new, real, kernel)
    for now, before, rows, axis in zip(written, cache, new, token_axes(kernel), strict=True):
        now, before, rows = (np.moveaxis(np.asarray(x[0]), axis, 1) for x in (now, before, rows))
        expected = before.copy()
        expected[3, 4:7] = rows[2]
        expected[1, 8:] = rows[0, :2]  # what lies behind the slot's end is dropped
        np.testing.assert_array_equal(now, expected)
