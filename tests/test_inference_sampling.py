"""Sampling on the device: greedy, distribution, truncation, log-probabilities, seeds."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.inference.sampling import SamplingRows, sample, truncate

VOCABULARY = 300
run = jax.jit(sample)
run_truncate = jax.jit(truncate)


def rows(
    count: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0
) -> SamplingRows:
    """Rows that differ by their index alone."""
    return SamplingRows(
        temperature=np.full(count, temperature, np.float32),
        top_k=np.full(count, top_k, np.int32),
        top_p=np.full(count, top_p, np.float32),
        min_p=np.full(count, min_p, np.float32),
        seed=np.tile(np.asarray([0, seed], np.uint32), (count, 1)),
        index=np.arange(count, dtype=np.int32),
    )


def some_logits(seed: int, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32) * np.float32(scale)


def kept_by_sorting(logits: np.ndarray, top_k: int, top_p: float) -> set[int]:
    """The plain definition: the k likeliest, then the fewest of these with mass p."""
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    mass = np.exp(logits[order].astype(np.float64) - logits.max())
    before = np.concatenate([[0.0], np.cumsum(mass)[:-1]]) / mass.sum()
    return set(order[before < top_p].tolist()) if top_p < 1 else set(order.tolist())


def test_temperature_zero_takes_the_first_of_the_most_likely():
    logits = np.stack([some_logits(seed) for seed in range(4)])
    logits[0, [17, 200]] = 50.0
    tokens, logprobs = run(logits, rows(4, temperature=0.0, top_k=3, top_p=0.5))
    assert tokens.tolist() == np.argmax(logits, axis=1).tolist()
    expected = jax.nn.log_softmax(logits)[np.arange(4), np.asarray(tokens)]
    np.testing.assert_allclose(logprobs, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 20, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (1.0, 9, 0.9, 0.0),
        (1.3, 0, 1.0, 0.1),
        (1.0, 30, 0.9, 0.2),
    ],
)
def test_draws_follow_the_distribution_and_say_its_logprobs(temperature, top_k, top_p, min_p):
    logits, count = some_logits(1), 20_000
    sampling = rows(count, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=3)
    tokens, logprobs = run(np.tile(logits, (count, 1)), sampling)
    scaled = logits / np.float32(temperature)
    likely_enough = np.flatnonzero(np.exp(scaled - scaled.max()) >= min_p)
    keep = sorted(kept_by_sorting(scaled, top_k, top_p) & set(likely_enough.tolist()))
    expected = np.zeros(VOCABULARY)
    expected[keep] = np.exp(scaled[keep] - scaled.max())
    expected /= expected.sum()
    np.testing.assert_allclose(logprobs, np.log(expected[np.asarray(tokens)]), atol=1e-4)
    seen = np.bincount(np.asarray(tokens), minlength=VOCABULARY)
    common = expected * count >= 5
    chi_square = ((seen - expected * count)[common] ** 2 / (expected * count)[common]).sum()
    assert chi_square < common.sum() + 5 * np.sqrt(2 * common.sum())
    assert seen[expected == 0].sum() == 0


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), top_k=st.integers(0, 40), top_p=st.floats(0.05, 1.0), scale=st.floats(0.1, 8.0))
def test_truncation_keeps_what_sorting_would(seed, top_k, top_p, scale):
    logits = some_logits(seed, scale)
    kept = run_truncate(logits[None], np.asarray([top_k], np.int32), np.asarray([top_p], np.float32))
    found = set(np.flatnonzero(np.isfinite(np.asarray(kept[0]))).tolist())
    slack = 1e-4
    low, high = (kept_by_sorting(logits, top_k, p) for p in (top_p - slack, min(1.0, top_p + slack)))
    assert low <= found <= high


def test_a_row_is_sampled_alike_in_any_batch_and_differs_by_seed_and_index():
    logits = np.tile(some_logits(2), (6, 1))
    together = run(logits, rows(6, seed=11))[0].tolist()
    alone = [
        run(logits[:1], SamplingRows(*(np.asarray(x)[i : i + 1] for x in rows(6, seed=11))))[0].item() for i in range(6)
    ]
    assert together == alone
    assert together != run(logits, rows(6, seed=12))[0].tolist()
    assert len(set(together)) > 1


@given(st.integers(0, 2**32 - 1))
def test_a_token_of_no_probability_is_never_drawn(seed):
    logits = np.full((8, VOCABULARY), -np.inf, np.float32)
    logits[:, [3, 130, 299]] = 0.0, -20.0, 0.0
    tokens, logprobs = run(logits, rows(8, seed=seed))
    assert set(tokens.tolist()) <= {3, 130, 299}
    assert np.isfinite(np.asarray(logprobs)).all()
