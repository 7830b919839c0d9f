"""Every loss, value and gradient, against a NumPy float64 reference written from the equations."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentlab.training.algorithms import (
    LossOptions,
    TokenTerms,
    bounded_weight_loss,
    clipped_ratio_loss,
    k1,
    k2,
    score_function_loss,
    sequence_ratio_loss,
)

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
INFINITE = -math.inf


def clamp(x):
    return np.clip(x, -20.0, 20.0)


def clip_objective(ratio, advantage, options):
    gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - options.clip_low, 1 + options.clip_high) * advantage)
    if options.dual_clip is not None:
        gain = np.where(advantage < 0, np.maximum(gain, options.dual_clip * advantage), gain)
    return gain


def reference_policy(loss, x, x0, case, options):
    """The policy's part of each token [tokens]; x0 is where a stopped gradient stands."""
    if loss is clipped_ratio_loss:
        return -clip_objective(np.exp(clamp(x - case["old"])), case["advantage"], options)
    if loss is sequence_ratio_loss:
        ratio = np.zeros_like(x)
        for row in set(case["row"]):
            of_row = case["row"] == row
            ratio[of_row] = np.exp(clamp((x - case["old"])[of_row].mean()))
        return -clip_objective(ratio, case["advantage"], options)
    if loss is bounded_weight_loss:
        weight = np.clip(np.exp(clamp(x0 - case["old"])), 1 - options.clip_low, 1 + options.clip_high)
        return -weight * case["advantage"] * x
    return -case["advantage"] * x


def reference_divergence(divergence, x, reference):
    d = clamp(x - reference)
    if divergence is k1:
        return d
    return d**2 / 2 if divergence is k2 else np.exp(-d) + d - 1  # k3


def reference_parts(loss, x, x0, case, options):
    """The weighted sums over the tokens that are there: of the policy's part, and of the divergence."""
    there = case["mask"] > 0
    case = {name: values[there] for name, values in case.items()}
    policy = case["correction"] * reference_policy(loss, x[there], x0[there], case, options)
    penalty = options.beta * reference_divergence(options.divergence, x[there], case["reference"])
    return np.asarray([np.sum(case["weight"] * policy), np.sum(case["weight"] * penalty)])


def reference_gradient(loss, x, case, options, step=1e-6):
    """Central differences, each part by itself: the one may be 1e12 times the other."""
    found = np.zeros(len(x))
    for at in np.flatnonzero(case["mask"]):
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        rise = reference_parts(loss, up, x, case, options) - reference_parts(loss, down, x, case, options)
        found[at] = (rise / (2 * step)).sum()
    return found


def case_of(logprob, old, advantage, row=None, mask=None, seed=0):
    rng, size = np.random.default_rng(seed), len(logprob)
    mask = np.ones(size, int) if mask is None else np.asarray(mask)
    row = np.zeros(size, int) if row is None else np.asarray(row)
    weights = rng.uniform(0.1, 1.0, 10)[row]
    return np.asarray(logprob, float), {
        "old": np.asarray(old, float),
        "reference": np.where(mask > 0, np.asarray(logprob, float) + rng.normal(0, 0.4, size), INFINITE),
        "advantage": np.asarray(advantage, float),
        "row": row,
        "mask": mask,
        "weight": weights,
        "correction": rng.uniform(0.5, 2.0, 10)[row],
    }


def spread(size, seed):
    rng = np.random.default_rng(seed)
    old = rng.uniform(-6, -0.1, size)
    row = np.sort(rng.integers(0, 3, size))
    return case_of(old + rng.normal(0, 0.4, size), old, rng.normal(0, 1, 3)[row], row, seed=seed)


CASES = {
    "several rows": spread(12, 1),
    "one row": case_of([-1.0, -2.0, -0.3], [-1.1, -1.5, -0.31], [1.0, 1.0, 1.0]),
    "one token": case_of([-0.7], [-0.9], [1.5]),
    "negative advantage": case_of([-0.1, -0.2], [-3.0, -2.5], [-1.0, -1.0]),
    "masked in part": case_of([-1.0, -2.0, -3.0], [-1.05, INFINITE, -3.01], [1.0, 1.0, 1.0], mask=[1, 0, 1]),
    "-inf under the mask": case_of([-1.0, INFINITE], [-1.1, INFINITE], [1.0, 1.0], mask=[1, 0]),
    "everything masked": case_of([-1.0, INFINITE], [INFINITE, -2.0], [1.0, 1.0], mask=[0, 0]),
    "+50 and up": case_of([-1.0, -1.0], [-51.0, -52.0], [-1.0, -1.0]),
    "-50 and down": case_of([-51.0, -53.0], [-1.0, -1.0], [1.0, 1.0]),
    "+50 and -50": case_of([-51.0, -1.0], [-1.0, -51.0], [-1.0, 1.0], row=[0, 1]),
}
LOSSES = [clipped_ratio_loss, sequence_ratio_loss, bounded_weight_loss, score_function_loss]
OPTIONS = {
    "defaults": LossOptions(),
    "clip higher": LossOptions(clip_low=0.2, clip_high=0.28, beta=0.04),
    "k1": LossOptions(beta=0.5, divergence=k1),
    "k2": LossOptions(beta=1.0, divergence=k2, clip_low=0.1, clip_high=3.0),
    "dual clip": LossOptions(dual_clip=3.0),
}


@functools.partial(jax.jit, static_argnames=("loss", "options"))
def compiled(loss, options, logprob, case):
    def total(x):
        inputs = (case[name] for name in ("old", "reference", "advantage", "row"))
        terms = TokenTerms(x, *inputs, case["mask"] > 0, case["correction"])
        return jnp.sum(jnp.where(case["mask"] > 0, case["weight"], 0.0) * loss(terms, options).loss)

    return jax.value_and_grad(total)(logprob)


def value_and_gradient(loss, logprob, case, options, dtype=np.float64, size=12):
    """Of a case padded to one size, with -inf and NaN where there is no token."""
    empty = size - len(logprob)
    padded = {name: np.pad(values.astype(dtype), (0, empty), constant_values=INFINITE) for name, values in case.items()}
    for name in ("row", "mask"):
        padded[name] = np.pad(case[name], (0, empty))
    value, gradient = compiled(loss, options, np.pad(logprob.astype(dtype), (0, empty)), padded)
    assert (gradient[len(logprob) :] == 0).all()
    return value, gradient[: len(logprob)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_and_its_gradient_equal_the_reference(loss, options):
    for name, (logprob, case) in CASES.items():
        expected = reference_parts(loss, logprob, logprob, case, OPTIONS[options]).sum()
        slopes = reference_gradient(loss, logprob, case, OPTIONS[options])
        with enable_x64(True):
            value, gradient = value_and_gradient(loss, logprob, case, OPTIONS[options])
        np.testing.assert_allclose(value, expected, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-5 * abs(slopes).max() + 1e-12, err_msg=name)


@pytest.mark.parametrize("loss", LOSSES)
def test_everything_masked_is_a_loss_of_exactly_zero_with_gradients_of_zero(loss):
    logprob, case = CASES["everything masked"]
    value, gradient = value_and_gradient(loss, logprob, case, LossOptions(beta=0.1), np.float32)
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["+50 and up", "-50 and down", "+50 and -50"])
def test_log_ratios_of_fifty_stay_finite_in_float32(loss, name):
    value, gradient = value_and_gradient(loss, *CASES[name], LossOptions(beta=0.1), np.float32)
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


def test_gspo_token_has_the_gradient_of_its_equation_where_advantages_differ_by_token():
    """GSPO-token, equation 17: s_i A_t times the gradient of each token's own log-probability."""
    logprob, case = case_of([-1.0, -2.0, -0.5], [-1.001, -2.0, -0.5], [1.0, -0.5, 0.25])
    options = LossOptions(clip_low=0.2, clip_high=0.2)
    with enable_x64(True):
        _, gradient = value_and_gradient(sequence_ratio_loss, logprob, case, options)
    s = math.exp(np.mean(logprob - case["old"]))
    np.testing.assert_allclose(gradient, -case["weight"] * case["correction"] * s * case["advantage"], rtol=1e-9)


def test_the_entropy_bonus_is_taken_off_the_loss_where_there_are_tokens():
    entropy = jnp.asarray([0.5, 2.0])
    zeros, there = jnp.zeros(2), jnp.asarray([True, False])
    terms = TokenTerms(zeros, zeros, zeros, zeros, jnp.zeros(2, jnp.int32), there, entropy=entropy)
    assert clipped_ratio_loss(terms, LossOptions(entropy_bonus=0.1)).loss.tolist() == pytest.approx([-0.05, 0.0])


def test_a_divergence_in_the_reward_is_measured_but_not_added():
    one, there = jnp.ones(1), jnp.asarray([True])
    terms = TokenTerms(-one, -one, -2 * one, 0 * one, jnp.zeros(1, jnp.int32), there)
    losses = clipped_ratio_loss(terms, LossOptions(beta=0.1, divergence=k1, divergence_in="reward"))
    assert losses.loss.tolist() == [0.0]
    assert losses.kl.tolist() == [1.0]


def test_what_a_clip_bounds_is_counted():
    logprob = jnp.asarray([0.5, 0.5, -0.5, -0.5, 0.0])
    zeros, there = jnp.zeros(5), jnp.ones(5, bool)
    advantage = jnp.asarray([1.0, -1.0, 1.0, -1.0, 1.0])
    terms = TokenTerms(logprob, zeros, zeros, advantage, jnp.arange(5), there)
    assert clipped_ratio_loss(terms, LossOptions()).clipped.tolist() == [1, 0, 0, 1, 0]
    assert sequence_ratio_loss(terms, LossOptions()).clipped.tolist() == [1, 0, 0, 1, 0]
    assert bounded_weight_loss(terms, LossOptions()).clipped.tolist() == [1, 1, 1, 1, 0]
    assert clipped_ratio_loss(terms, LossOptions(dual_clip=1.5)).clipped.tolist() == [1, 1, 0, 1, 0]
