"""The rows of docs/coming_from.md that say where numbers differ from TRL: both sides from their formulas, in float64.

TRL's side is written from the definitions of its GRPO trainer, version 1.16.
"""

import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_cases import group_of, trajectory

import agentlab
from agentlab.training.advantages import token_advantages
from agentlab.training.algorithms import (
    FixedLength,
    LossOptions,
    TokenTerms,
    batch_scaled,
    bounded_weight_loss,
    cispo,
    clipped_ratio_loss,
    dr_grpo,
    group_advantages,
    grpo,
    grpo_batch_scaled,
    gspo,
    mean_difference,
    sequence_ratio_loss,
    token_mean,
)

PAGE = (Path(agentlab.__file__).parent / "docs" / "coming_from.md").read_text(encoding="utf-8")
rewards = st.lists(st.floats(-4, 4), min_size=2, max_size=8).filter(lambda r: max(r) - min(r) > 0.01)
LOGPROBS = np.log([[0.5, 0.2, 0.9], [0.05, 0.3, 0.6]])
OLD = np.log([[0.25, 0.3, 0.9], [0.3, 0.04, 0.61]])
ADVANTAGES = np.array([[1.3], [-0.7]])


def terms_of(advantages=ADVANTAGES):
    def flat(array):
        return jnp.asarray(np.broadcast_to(array, LOGPROBS.shape).ravel(), jnp.float32)

    row, mask = jnp.repeat(jnp.arange(2), 3), jnp.ones(6, bool)
    return TokenTerms(flat(LOGPROBS), flat(OLD), flat(OLD), flat(advantages), row, mask)


def losses(loss, **options):
    return np.asarray(loss(terms_of(), LossOptions(**options)).loss).reshape(LOGPROBS.shape)


def trl_clipped(ratio, low, high, *, delta=None, advantages=ADVANTAGES):
    held = np.clip(ratio, 1 - low, 1 + high)
    ratio = ratio if delta is None else np.minimum(ratio, delta)
    return -np.minimum(ratio * advantages, held * advantages)


def first_tokens(groups, algorithm):
    """The advantage of each trajectory's tokens."""
    values = token_advantages(groups, advantages=algorithm.advantages, credit=algorithm.credit)
    return np.concatenate([[tokens[0] for tokens in group] for group in values])


def group_with(values, name):
    return group_of([trajectory([5, 6], [0, 1], reward=r, episode=i) for i, r in enumerate(values)], name)


@given(group=rewards)
def test_scaling_by_the_group_differs_by_a_factor_that_the_page_names(group):
    ours, count = group_advantages(group), len(group)
    theirs = (np.asarray(group) - np.mean(group)) / (np.std(group, ddof=1) + 1e-4)
    factor = math.sqrt(count / (count - 1)) * (1 + 1e-4 / np.std(group, ddof=1))
    np.testing.assert_allclose(ours, theirs * factor, rtol=1e-9, atol=1e-12)
    assert math.sqrt(8 / 7) == pytest.approx(1.07, abs=0.005) and "7 % in a group of 8" in PAGE


@pytest.mark.parametrize("reward", [0.1, 9.9, 1 / 3])
def test_equal_rewards_are_exactly_nothing_here(reward):
    assert (group_advantages([reward] * 13) == 0).all()
    assert first_tokens([group_with([reward] * 13, "a")] * 2, grpo_batch_scaled).tolist() == [0.0] * 26


@given(first=rewards, second=rewards)
def test_scaling_by_the_batch_differs_by_a_factor_for_the_whole_update(first, second):
    groups = [group_with(first, "a"), group_with(second, "b")]
    every = np.asarray([*first, *second])
    centred = np.concatenate([np.asarray(first) - np.mean(first), np.asarray(second) - np.mean(second)])
    ours = first_tokens(groups, grpo_batch_scaled)
    np.testing.assert_allclose(ours, centred / np.std(every), rtol=1e-6, atol=1e-9)
    theirs = centred / (np.std(every, ddof=1) + 1e-4)
    factor = (np.std(every, ddof=1) + 1e-4) / np.std(every)
    np.testing.assert_allclose(ours, theirs * factor, rtol=1e-6, atol=1e-9)


def test_scaling_by_the_batch_can_be_put_on_every_algorithm_and_leaves_missing_rewards_out():
    algorithm = replace(dr_grpo, credit=batch_scaled)
    assert algorithm.advantages is mean_difference
    values = first_tokens([group_with([0.0, 1.0, math.nan], "a"), group_with([3.0, 3.0], "b")], algorithm)
    np.testing.assert_allclose(values, np.array([-0.5, 0.5, 0, 0, 0]) / np.std([0, 1, 3, 3]))


def test_whole_sequences_are_clipped_within_other_bounds_and_alike_within_the_same():
    ratio = np.exp((LOGPROBS - OLD).mean(-1, keepdims=True)) * np.ones((1, 3))
    alike = losses(sequence_ratio_loss, clip_low=0.2, clip_high=0.2)
    np.testing.assert_allclose(alike, trl_clipped(ratio, 0.2, 0.2), rtol=1e-5)
    assert (gspo.clip_low, gspo.clip_high) == (3e-4, 4e-4) and gspo.loss is sequence_ratio_loss
    own = losses(gspo.loss, clip_low=gspo.clip_low, clip_high=gspo.clip_high)
    np.testing.assert_allclose(own, trl_clipped(ratio, 3e-4, 4e-4), rtol=1e-5)
    assert not np.allclose(own, alike) and "[1 − 3e-4, 1 + 4e-4]" in PAGE


def test_dr_grpo_divides_by_256_tokens_unless_told():
    lengths, per_token = np.array([3, 5]), 0.7
    theirs = per_token * lengths.sum() / (len(lengths) * 1024)
    ours = (dr_grpo.aggregate(lengths) * lengths * per_token).sum()
    assert ours == pytest.approx(theirs * 1024 / 256) and "sequences × 256" in PAGE
    assert (FixedLength(1024)(lengths) * lengths * per_token).sum() == pytest.approx(theirs)


def test_cispo_caps_the_ratio_at_one_plus_the_option():
    ratio = np.exp(LOGPROBS - OLD)
    theirs = -np.minimum(ratio, 1.5) * ADVANTAGES * LOGPROBS
    np.testing.assert_allclose(losses(bounded_weight_loss, clip_low=1.0, clip_high=0.5), theirs, rtol=1e-5)
    assert (cispo.loss, cispo.aggregate) == (bounded_weight_loss, token_mean)
    assert 1 + cispo.clip_high == 5.0 and cispo.clip_low == 1.0 and "1 + `clip_high` = 5" in PAGE
    own = losses(cispo.loss, clip_low=cispo.clip_low, clip_high=cispo.clip_high)
    np.testing.assert_allclose(own, -np.minimum(ratio, 5.0) * ADVANTAGES * LOGPROBS, rtol=1e-5)


@pytest.mark.parametrize(("delta", "same"), [(1.3, True), (4.0, True), (1.1, False)])
def test_delta_and_dual_clip_are_the_same_above_the_upper_bound(delta, same):
    theirs = trl_clipped(np.exp(LOGPROBS - OLD), 0.2, 0.2, delta=delta)
    ours = losses(clipped_ratio_loss, dual_clip=delta)
    assert np.allclose(ours, theirs, rtol=1e-5) == same


def test_the_rest_of_the_clipped_loss_is_trls():
    assert grpo.loss is clipped_ratio_loss
    ratio = np.exp(LOGPROBS - OLD)
    np.testing.assert_allclose(losses(clipped_ratio_loss), trl_clipped(ratio, 0.2, 0.2), rtol=1e-5)
    k3 = np.exp(OLD - LOGPROBS) - (OLD - LOGPROBS) - 1
    np.testing.assert_allclose(
        losses(clipped_ratio_loss, beta=0.04), trl_clipped(ratio, 0.2, 0.2) + 0.04 * k3, rtol=1e-5
    )


def test_log_ratios_beyond_20_are_clamped_and_have_no_gradient():
    def loss(logprob):
        terms = terms_of(-np.ones((2, 1)))._replace(logprob=logprob, old_logprob=jnp.full(6, -50.0))
        return clipped_ratio_loss(terms, LossOptions()).loss.sum()

    beyond, within = jnp.full(6, -29.0), jnp.full(6, -31.0)
    assert loss(beyond) == pytest.approx(6 * math.exp(20), rel=1e-5)
    assert (jax.grad(loss)(beyond) == 0).all() and (jax.grad(loss)(within) != 0).all()
    assert "± 20" in PAGE
