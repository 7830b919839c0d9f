"""Advantages and losses against a NumPy float64 reference written from the equations."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import ConfigError
from agentlab.training import algorithms, group_advantages
from agentlab.training.algorithms import (
    FixedLength,
    LossOptions,
    TokenTerms,
    clipped_ratio_loss,
    dr_grpo,
    grpo,
    sequence_mean,
    token_mean,
)

rewards_strategy = st.lists(st.floats(-10, 10), min_size=1, max_size=16)


@pytest.mark.parametrize("rewards", [[0.1] * 7, [9.9] * 13, [1 / 3] * 5, [0.0] * 4, [-2.5], [1e-300] * 3])
@pytest.mark.parametrize("normalize", [True, False])
def test_equal_rewards_teach_exactly_nothing(rewards, normalize):
    assert (group_advantages(rewards, normalize) == 0).all()
    assert (group_advantages(np.float32(rewards), normalize) == 0).all()


@given(reward=st.floats(-10, 10), size=st.integers(1, 16), normalize=st.booleans())
def test_equal_rewards_of_any_value_teach_exactly_nothing(reward, size, normalize):
    assert (group_advantages([reward] * size, normalize) == 0).all()


def test_rewards_that_differ_by_rounding_alone_teach_nothing():
    assert (group_advantages([0.1 + 0.2, 0.3, 0.3]) == 0).all()


@given(rewards=rewards_strategy, normalize=st.booleans())
def test_advantages_are_the_reference_difference_from_the_group_mean(rewards, normalize):
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    if max(rewards) - min(rewards) <= 1e-6:
        return
    expected = [(r - mean) / (std if normalize else 1.0) for r in rewards]
    np.testing.assert_allclose(group_advantages(rewards, normalize), expected, rtol=1e-9, atol=1e-9)


@given(rewards=rewards_strategy, places=st.lists(st.integers(0, 16), max_size=5))
def test_missing_rewards_get_zero_and_change_nothing_for_the_others(rewards, places):
    holed = list(rewards)
    for place in places:
        holed.insert(place, math.nan)
    scored = np.isfinite(holed)
    got = group_advantages(holed)
    assert (got[~scored] == 0).all()
    np.testing.assert_allclose(got[scored], group_advantages(rewards), rtol=1e-9, atol=1e-12)


def test_rewards_too_small_to_be_squared_are_still_normalised():
    np.testing.assert_allclose(group_advantages([0.0, 3e-270]), [-1.0, 1.0])


def test_a_group_without_any_reward_has_advantages_of_zero():
    assert (group_advantages([math.nan, math.nan]) == 0).all()
    assert group_advantages([]).shape == (0,)


def test_groups_of_equal_size_may_be_given_together():
    both = group_advantages([[0.0, 1.0, 5.0], [2.0, 2.0, 2.0]])
    np.testing.assert_array_equal(both[0], group_advantages([0.0, 1.0, 5.0]))
    assert (both[1] == 0).all()


enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


def reference_policy_loss(logprob, sampler, advantage, low, high):
    """PPO-clip of one token, in float64."""
    ratio = math.exp(min(max(logprob - sampler, -20.0), 20.0))
    kept = min(max(ratio, 1 - low), 1 + high)
    return -min(ratio * advantage, kept * advantage)


def reference_k3(logprob, reference):
    """The k3 estimate of one token, in float64."""
    d = min(max(reference - logprob, -20.0), 20.0)
    return math.exp(d) - d - 1


def slope(function, value, step=1e-6):
    """Central difference in float64."""
    return (function(value + step) - function(value - step)) / (2 * step)


CASES = {
    "ordinary": ([-1.0, -2.0, -0.3, -4.0], [-1.1, -1.5, -0.3, -5.0], [1.0, -1.0, 0.5, -2.0], [1, 1, 1, 1]),
    "one token": ([-0.7], [-0.9], [1.5], [1]),
    "masked in part": ([-1.0, -2.0, -3.0], [-1.05, -2.0, -9.0], [1.0, 1.0, -1.0], [1, 0, 1]),
    "far ratios": ([-51.0, -1.0, -51.0, -1.0], [-1.0, -51.0, -1.0, -51.0], [1.0, 1.0, -1.0, -1.0], [1, 1, 1, 1]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("low", "high", "beta"), [(0.2, 0.2, 0.0), (0.2, 0.28, 0.04), (0.1, 3.0, 1.0)])
def test_the_clipped_loss_and_its_gradient_equal_the_reference(case, low, high, beta):
    logprob, sampler, advantage, mask = CASES[case]
    reference = [value + 0.3 * (-1) ** i for i, value in enumerate(logprob)]
    weight = [0.1 * (i + 1) * m for i, m in enumerate(mask)]
    expected_value, expected_gradient = 0.0, []
    for x, old, ref, a, w in zip(logprob, sampler, reference, advantage, weight, strict=True):
        policy = functools.partial(reference_policy_loss, sampler=old, advantage=a, low=low, high=high)
        k3 = functools.partial(reference_k3, reference=ref)
        expected_value += w * (policy(x) + beta * k3(x))
        expected_gradient.append(w * (slope(policy, x) + beta * slope(k3, x)))

    def got(values):
        terms = TokenTerms(
            values, *map(jnp.asarray, (sampler, reference, advantage)), jnp.zeros(len(mask), int), jnp.asarray(mask) > 0
        )
        options = LossOptions(clip_low=low, clip_high=high, beta=beta)
        return jnp.sum(jnp.asarray(weight) * clipped_ratio_loss(terms, options).loss)

    with enable_x64(True):
        value, gradient = jax.value_and_grad(got)(jnp.asarray(logprob, jnp.float64))
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-8)


def terms_of(logprob, mask, sampler=None):
    size = len(logprob)
    return TokenTerms(
        jnp.asarray(logprob),
        jnp.asarray(sampler if sampler is not None else [-jnp.inf] * size),
        jnp.full(size, -jnp.inf),
        jnp.ones(size),
        jnp.zeros(size, jnp.int32),
        jnp.asarray(mask, bool),
    )


def test_everything_masked_is_a_loss_of_exactly_zero_with_finite_gradients():
    options = LossOptions(beta=0.1)

    def loss(logprob):
        return clipped_ratio_loss(terms_of(logprob, [0, 0, 0]), options).loss.sum()

    value, gradient = jax.value_and_grad(loss)(jnp.asarray([-1.0, -jnp.inf, -3.0]))
    assert value == 0
    assert (gradient == 0).all()


def test_log_ratios_of_fifty_stay_finite_in_float32():
    def loss(logprob):
        sampler = [-51.0, -1.0]
        terms = terms_of(logprob, [1, 1], sampler)._replace(advantage=jnp.asarray([-1.0, -1.0]))
        return clipped_ratio_loss(terms, LossOptions()).loss.sum()

    value, gradient = jax.value_and_grad(loss)(jnp.asarray([-1.0, -51.0]))
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


def test_the_clip_is_counted_where_it_takes_the_gradient_away():
    terms = terms_of([0.5, 0.5, -0.5, -0.5, 0.0], [1, 1, 1, 1, 1], [0.0] * 5)
    terms = terms._replace(advantage=jnp.asarray([1.0, -1.0, 1.0, -1.0, 1.0]))
    assert clipped_ratio_loss(terms, LossOptions()).clipped.tolist() == [1, 0, 0, 1, 0]


@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=20))
def test_token_and_sequence_mean_weigh_one_in_all(lengths):
    lengths = np.asarray(lengths)
    for aggregate in (token_mean, sequence_mean):
        assert (aggregate(lengths) * lengths).sum() == pytest.approx(1.0)


def test_sequence_mean_gives_each_trajectory_the_same_weight():
    np.testing.assert_allclose(sequence_mean(np.asarray([1, 4])) * [1, 4], [0.5, 0.5])


def test_fixed_length_does_not_look_at_lengths():
    np.testing.assert_allclose(FixedLength(10)(np.asarray([1, 4])), [0.05, 0.05])
    with pytest.raises(ConfigError, match="at least 1"):
        FixedLength(0)


@pytest.mark.parametrize("aggregate", [token_mean, sequence_mean, FixedLength(4)])
def test_no_trajectory_at_all_gives_no_weights(aggregate):
    assert aggregate(np.zeros(0, np.int64)).shape == (0,)


def test_a_part_of_an_algorithm_is_replaced_by_a_function():
    mine = dataclasses.replace(grpo, advantages=lambda rewards: rewards * 2)
    assert mine.advantages(np.asarray([1.0])) == 2.0
    assert mine.loss is algorithms.grpo.loss


def test_dr_grpo_keeps_reward_units():
    np.testing.assert_allclose(dr_grpo.advantages(np.asarray([0.0, 10.0])), [-5.0, 5.0])
