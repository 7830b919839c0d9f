"""Off-policy correction: values against NumPy, what is refused, and what the trainer measures."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from training_cases import packed_loss_and_gradient, plain_logprobs, random_group, relative_difference

from agentlab.errors import ConfigError
from agentlab.models import tiny_model
from agentlab.training import TrainConfig, Trainer, algorithms, pack
from agentlab.training.algorithms import (
    GeometricMask,
    IcePop,
    TruncatedImportanceSampling,
    grpo,
    gspo,
    interpolated_policy,
    recomputed_policy,
    sampler_policy,
)
from agentlab.training.corrections import Policies, correct

OLD = np.asarray([-1.0, -2.0, -3.0, -4.0, -1.0, -math.inf], np.float32)
SAMPLER = np.asarray([-1.5, -2.0, -1.0, -9.0, -1.001, -math.inf], np.float32)
ROW = np.asarray([0, 0, 1, 1, 2, 0])
MASK = np.asarray([True, True, True, True, True, False])
RATIO = np.exp(np.asarray([0.5, 0.0, -2.0, 5.0, 0.001]))


def weights(*corrections):
    return correct(corrections, *map(jnp.asarray, (OLD, SAMPLER, ROW, MASK)))


def test_truncated_importance_sampling_caps_the_weight_and_counts_it():
    found = weights(TruncatedImportanceSampling(1.5))
    np.testing.assert_allclose(found.weight[:5], np.minimum(RATIO, 1.5), rtol=1e-5)
    assert found.bounded[:5].tolist() == [True, False, False, True, False]


def test_icepop_keeps_ratios_within_its_bounds_and_masks_the_rest():
    found = weights(IcePop())
    np.testing.assert_allclose(found.weight[:5], np.where((RATIO >= 0.5) & (RATIO <= 5.0), RATIO, 0.0), rtol=1e-5)


def test_the_geometric_mask_takes_rows_whole():
    found = weights(GeometricMask(0.9, 1.2))
    means = [math.exp(0.25), math.exp(0.25), math.exp(1.5), math.exp(1.5), math.exp(0.001)]
    assert found.weight[:5].tolist() == [float(0.9 <= mean <= 1.2) for mean in means]


def test_corrections_multiply():
    both = weights(TruncatedImportanceSampling(1.5), IcePop(0.9, 2.0))
    ratio = np.where((RATIO >= 0.9) & (RATIO <= 2.0), RATIO, 0.0)
    np.testing.assert_allclose(both.weight[:5], np.minimum(RATIO, 1.5) * ratio, rtol=1e-5)
    assert both.bounded[:5].tolist() == [True, False, False, False, False]
    assert (weights().weight == 1).all()


def test_far_ratios_are_clamped_before_they_are_raised():
    old, sampler = jnp.asarray([50.0, -50.0]), jnp.zeros(2)
    found = correct((IcePop(0.0, math.inf),), old, sampler, jnp.zeros(2, jnp.int32), jnp.ones(2, bool))
    np.testing.assert_allclose(found.weight, np.exp([20.0, -20.0]), rtol=1e-5)


def test_the_old_policy_is_the_sampler_the_recomputed_or_lies_between_by_age():
    sampler, current, before = (jnp.asarray([x] * 3) for x in (-4.0, -1.0, -2.0))
    policies = Policies(sampler, current, before, jnp.asarray([0, 1, 3]))
    assert sampler_policy(policies).tolist() == [-4.0] * 3
    assert recomputed_policy(policies).tolist() == [-2.0] * 3
    np.testing.assert_allclose(interpolated_policy(policies), [-4.0, -2.5, -1.75])


def test_corrections_of_the_samplers_own_policy_are_refused():
    with pytest.raises(ConfigError, match="nothing to correct"):
        dataclasses.replace(grpo, corrections=(IcePop(),))


@pytest.mark.parametrize(
    "make", [lambda: TruncatedImportanceSampling(0.0), lambda: IcePop(2.0), lambda: GeometricMask(1.1)]
)
def test_impossible_bounds_are_refused(make):
    with pytest.raises(ConfigError, match="needs"):
        make()


def test_an_algorithm_is_written_the_same_in_every_process():
    text = repr(dataclasses.replace(grpo, old_policy=recomputed_policy, corrections=(IcePop(),)))
    assert "0x" not in text
    assert "old_policy=recomputed_policy, corrections=(IcePop(low=0.5, high=5.0))" in text


DECOUPLED = dataclasses.replace(
    gspo, old_policy=recomputed_policy, corrections=(TruncatedImportanceSampling(1.05), GeometricMask(0.93, 1.08))
)


@pytest.fixture(scope="module")
def model():
    return tiny_model(num_layers=1)


def test_packing_changes_neither_loss_nor_gradient_of_losses_by_sequence(model):
    groups = [
        random_group(model, 1, size=5, prompt=30, longest=20, noise=0.3),
        random_group(model, 2, size=3, prompt=5, longest=40, noise=0.3, multi_turn=True),
    ]
    one = pack(groups, row_tokens=256, micro_batch_tokens=256)
    other = pack(groups[::-1], share_prefix=False, row_tokens=64, micro_batch_tokens=64)
    loss, gradient = packed_loss_and_gradient(model, one, algorithm=DECOUPLED, entropy_bonus=0.01)
    other_loss, other_gradient = packed_loss_and_gradient(model, other, algorithm=DECOUPLED, entropy_bonus=0.01)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert relative_difference(other_gradient, gradient) <= 1e-5


def test_the_trainer_recomputes_the_old_policy_for_later_epochs_and_measures_corrections(model):
    group = random_group(model, 3, size=4, prompt=6, longest=8, noise=0.3)
    options = {"row_tokens": 64, "micro_batch_tokens": 64, "logit_chunk_tokens": 16, "lora_rank": 4}
    clipped = dataclasses.replace(grpo, old_policy=recomputed_policy, corrections=(IcePop(0.8, 1.25),))
    config = TrainConfig(algorithm=clipped, epochs_per_batch=2, learning_rate=1e-5, **options)
    metrics = Trainer(model, config).update([group]).metrics
    gaps = []
    for t in group.trajectories:
        difference = plain_logprobs(model, t.tokens) - np.asarray(t.logprobs)
        gaps += [d for d, m in zip(difference, t.loss_mask, strict=True) if m]
    masked = np.mean([not 0.8 <= math.exp(gap) <= 1.25 for gap in gaps])
    kept = np.mean([math.exp(gap) * (0.8 <= math.exp(gap) <= 1.25) for gap in gaps])
    assert metrics["masked_share"] == pytest.approx(masked, abs=1e-6)
    assert metrics["correction_mean"] == pytest.approx(kept, rel=1e-3)
    assert metrics["bounded_share"] == 0.0
    assert metrics["clip_share"] < 0.01, "the ratio is measured from the recomputed policy, not from the noisy one"


def test_every_named_algorithm_is_offered_as_a_value():
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "gspo_token", "rloo", "cispo", "reinforce_pp"):
        assert getattr(algorithms, name).name == name
