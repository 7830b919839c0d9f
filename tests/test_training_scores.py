"""What an update tells of single tokens: their advantages, and their log-probabilities under the weights before it."""

import numpy as np
import pytest
from training_cases import group_of, plain_logprobs, random_group, trajectory

from agentlab.models import tiny_model
from agentlab.training import TrainConfig, Trainer
from agentlab.training.advantages import group_advantages

SMALL = {"row_tokens": 64, "micro_batch_tokens": 64, "logit_chunk_tokens": 16, "lora_rank": 4}


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.mark.parametrize("epochs", [1, 2])
def test_every_sampled_token_has_its_advantage_and_its_logprob_under_the_weights_before_the_update(model, epochs):
    trainer = Trainer(model, TrainConfig(learning_rate=3e-2, epochs_per_batch=epochs, **SMALL))
    groups = [random_group(model, seed, prompt=6, longest=8) for seed in (1, 2)]
    trainer.update(groups)
    before = trainer.policy.params
    told = trainer.update(groups).trained
    assert [(one.group, one.version) for one in told] == [(group, 1) for group in groups]
    moved = 0.0
    for one in told:
        advantages = group_advantages(one.group.rewards)
        for played, advantage, scores in zip(one.group.trajectories, advantages, one.scores, strict=True):
            mask = np.asarray(played.loss_mask) == 1
            expected = plain_logprobs(model, played.tokens, params=before)[mask]
            np.testing.assert_allclose(scores.logprobs, expected, atol=1e-3)
            np.testing.assert_allclose(scores.advantages, np.full(mask.sum(), advantage), rtol=1e-6)
            moved = max(moved, np.abs(expected - np.asarray(played.logprobs)[mask]).max())
    assert moved > 0.01  # so that the sampler's would not have passed


def test_a_trajectory_that_is_left_out_of_the_loss_has_no_scores(model):
    def played(token, reward, name, episode):
        options = {"reward": reward, "group": name, "episode": episode}
        return trajectory([70, 71, token], [0, 0, 1], [0, 0, -2.0], **options)

    equal = group_of([played(5, 1.0, "equal", 0), played(6, 1.0, "equal", 1)], "equal")
    differ = group_of([played(5, 1.0, "g", 0), played(6, 0.0, "g", 1), played(7, float("nan"), "g", 2)])
    told = Trainer(model, TrainConfig(**SMALL)).update([equal, differ]).trained
    assert told[0].scores == (None, None)
    assert [scores and scores.advantages for scores in told[1].scores] == [(1.0,), (-1.0,), None]


def test_only_the_last_groups_of_a_large_update_are_told_of(model):
    groups = [
        group_of([trajectory([70, 5 + n], [0, 1], [0, -2.0], reward=float(n % 2), group=str(n))], str(n))
        for n in range(20)
    ]
    told = Trainer(model, TrainConfig(**SMALL)).update(groups).trained
    assert [one.group.id for one in told] == [str(n) for n in range(12, 20)]
