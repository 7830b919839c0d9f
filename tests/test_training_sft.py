"""Learning by example: the loss is the mean over what is learned, each token counted as what its turn weighs."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_cases import plain_logprobs

from agentlab.chat import ChatFormat, Demonstrator, read_conversation
from agentlab.errors import ConfigError
from agentlab.models import tiny_model
from agentlab.rollout.conversations import demonstration
from agentlab.training import SFTConfig, Trainer
from agentlab.training.algorithms import sequence_mean, token_mean
from agentlab.training.packing import pack
from agentlab.training.sft import sft

OPTIONS = {"lora_rank": 0, "learning_rate": 1e-2, "row_tokens": 64, "micro_batch_tokens": 64, "logit_chunk_tokens": 16}
WEIGHTS = [(1, 0.25), (0, 3), (0.5, 1), (2, 0)]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def conversation(model, weights, number=0):
    """A group of one conversation in which a turn for each weight is said."""
    messages = []
    for turn, weight in enumerate(weights):
        messages.append({"role": "user", "content": f"{number}{turn}?"})
        messages.append({"role": "assistant", "content": "ab" * (turn + number % 3 + 1), "weight": weight})
    demonstrator = Demonstrator(ChatFormat(model.tokenizer))
    return demonstration(demonstrator, read_conversation(messages, number), f"{number}:x")


def weighted_nll(model, groups):
    """(sum of weight times -logprob, sum of weights) over all tokens, one row at a time, in float64."""
    total = weight = 0.0
    for row in (row for group in groups for row in group.trajectories[0].rows):
        weights = np.asarray(row.weights or row.loss_mask, np.float64)
        logprobs = np.asarray(plain_logprobs(model, row.tokens), np.float64)
        total, weight = total - (weights * logprobs).sum(), weight + weights.sum()
    return total, weight


def test_the_loss_is_the_weighted_mean_over_the_whole_update_however_it_is_packed(model):
    groups = [conversation(model, weights, number) for number, weights in enumerate(WEIGHTS)]
    metrics = Trainer(model, SFTConfig(**OPTIONS), sft).update(groups).metrics
    total, weight = weighted_nll(model, groups)
    assert metrics["micro_batches"] > 1
    assert metrics["loss"] == pytest.approx(total / weight, rel=1e-5)
    assert metrics["weighted_tokens"] == pytest.approx(weight)
    trained = sum(sum(row.loss_mask) for group in groups for row in group.trajectories[0].rows)
    assert metrics["sampled_tokens"] == trained != weight


def updated(model, groups):
    trainer = Trainer(model, SFTConfig(**OPTIONS), sft)
    trainer.update(groups)
    return jax.tree.leaves(trainer.policy.params)


def test_a_weight_of_two_is_the_same_as_saying_it_twice_and_one_for_all_changes_nothing(model):
    heavy = updated(model, [conversation(model, (2,), 0), conversation(model, (1,), 1)])
    twice = updated(model, [conversation(model, (1,), 0), conversation(model, (1,), 0), conversation(model, (1,), 1)])
    scaled = updated(model, [conversation(model, (0.5,), 0), conversation(model, (0.25,), 1)])
    for one, two, three in zip(heavy, twice, scaled, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)
        np.testing.assert_allclose(one, three, atol=2e-5)


def test_conversations_without_weights_are_packed_as_ever(model):
    plain, ones = (conversation(model, weights) for weights in ((None, None), (1, 1)))
    assert plain == ones and plain.trajectories[0].rows[0].weights == ()
    (batch,) = pack([plain], advantages=sft.advantages).batches
    learned = batch.targets.sequence >= 0
    np.testing.assert_allclose(batch.targets.weight[learned], 1 / learned.sum())


@given(
    sizes=st.lists(st.floats(0.01, 100) | st.integers(1, 100), min_size=1, max_size=6),
    scale=st.floats(0.01, 100),
)
def test_means_over_weighted_tokens_sum_to_one_at_every_scale(sizes, scale):
    lengths = np.asarray(sizes) * scale
    for aggregate in (token_mean, sequence_mean):
        assert (aggregate(lengths) * lengths).sum() == pytest.approx(1.0)


def test_a_syntax_that_there_is_not_is_refused_when_the_configuration_is_made():
    with pytest.raises(ConfigError, match=r"no tool-call syntax 'hermess'.*hermes"):
        SFTConfig(tool_parser_name="hermess")
