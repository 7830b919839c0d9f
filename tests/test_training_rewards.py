"""The largest rewards that the rule allows can be trained with every algorithm; larger ones are refused."""

import dataclasses
import math

import pytest
from training_cases import group_of, random_group, trajectory

import agentlab as al
from agentlab.errors import RewardError
from agentlab.rewards import LARGEST_REWARD
from agentlab.rollout.measures import episode_measures
from agentlab.training import TrainConfig, Trainer
from agentlab.training import algorithms as every

SMALL = {"row_tokens": 64, "micro_batch_tokens": 128}
ALGORITHMS = ("grpo", "grpo_token_mean", "dr_grpo", "dapo", "gspo", "gspo_token", "cispo", "rloo")
ALGORITHMS += ("reinforce_pp", "reinforce_pp_baseline")


@pytest.fixture(scope="module")
def model():
    return al.tiny_model(seed=1)


def rewarded(group, rewards):
    members = [dataclasses.replace(t, reward=r) for t, r in zip(group.trajectories, rewards, strict=True)]
    return dataclasses.replace(group, trajectories=tuple(members))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_largest_rewards_are_averaged_and_trained_by_every_algorithm(model, name):
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL), getattr(every, name))
    group = rewarded(random_group(model, 1), [LARGEST_REWARD, -LARGEST_REWARD, 0.0, LARGEST_REWARD])
    result = trainer.update([group])
    assert result.metrics["nonfinite"] == 0.0 and result.policy.params is not model.params
    assert all(math.isfinite(result.metrics[name]) for name in ("loss", "grad_norm", "reward_mean", "reward_std"))
    measures = episode_measures([group], [0])
    assert all(math.isfinite(measures[name]) for name in ("reward_mean", "reward_std", "group_std_mean"))


@pytest.mark.parametrize("reward", [1e39, -1e200, 1.7e308])
def test_a_trainer_used_alone_refuses_rewards_beyond_the_rule(model, reward):
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL))
    with pytest.raises(RewardError, match=r"episode g1/\d must lie within 1e\+15"):
        trainer.update([rewarded(random_group(model, 1), [0.0, 1.0, 0.5, reward])])


@pytest.mark.parametrize("added", [math.nan, math.inf, 1e30, None, True])
def test_shaping_that_makes_no_reward_is_refused_and_not_left_out_silently(model, added):
    shaped = dataclasses.replace(every.grpo, shaping=lambda trajectory: added)
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL), shaped)
    with pytest.raises(RewardError, match="shap"):
        trainer.update([random_group(model, 1)])


def test_gradients_that_are_finite_one_by_one_but_not_together_are_told_as_such(model):
    plain = dataclasses.replace(every.rloo, advantages=lambda rewards: every.plain_rewards(rewards) * 1e15)
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL), plain)
    members = [trajectory([5, 6, 7, 8], [0, 0, 1, 1], [0, 0, -3, -3], reward=e * 1e8, episode=e) for e in (1, 2)]
    result = trainer.update([group_of(members)])
    assert result.metrics["nonfinite"] == 1.0 and result.policy.params is model.params
    assert "0 of" not in result.notes[0] and "their sum or its square was not" in result.notes[0]
