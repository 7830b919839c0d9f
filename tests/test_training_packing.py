"""Packing: what a row holds, what is left out, and that it changes neither loss nor gradient."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_cases import (
    all_logprobs,
    group_of,
    packed_loss_and_gradient,
    random_group,
    relative_difference,
    trajectory,
)

from agentlab import tracing
from agentlab.errors import ConfigError
from agentlab.models import tiny_model
from agentlab.training import group_advantages, pack
from agentlab.training.algorithms import sequence_mean, token_mean
from agentlab.training.packing import declared_shapes, row_length
from agentlab.training.weights import stack_layers
from agentlab.types import TokenRow, Trajectory


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def test_the_shared_prompt_is_stored_once_and_members_continue_its_positions():
    group = group_of(
        [
            trajectory([5, 6, 7, 10, 11], [0, 0, 0, 1, 1], reward=1.0),
            trajectory([5, 6, 7, 20, 21, 22], [0, 0, 0, 1, 0, 1], reward=0.0),
        ]
    )
    (batch,) = pack([group]).batches
    assert batch.shape == (1, 64)
    assert batch.tokens[0, :7].tolist() == [5, 6, 7, 20, 21, 10, 0]
    assert batch.positions[0, :6].tolist() == [0, 1, 2, 3, 4, 3]
    assert batch.segments[0, :7].tolist() == [0, 0, 0, 1, 1, 2, -1]
    assert batch.prefixes[0, :7].tolist() == [0, 0, 0, 0, 0, 0, -1]
    targets = batch.targets
    assert targets.index[:5].tolist() == [2, 4, 2, 5, 0]
    assert targets.token[:4].tolist() == [20, 22, 10, 11]
    assert targets.sequence[:5].tolist() == [1, 1, 0, 0, -1]
    assert targets.advantage[:4].tolist() == [-1, -1, 1, 1]
    assert targets.weight[:5].tolist() == [0.25] * 4 + [0.0]


def test_a_group_larger_than_a_row_is_split_with_a_copy_of_the_prompt_in_each():
    prompt = list(range(10, 50))
    group = group_of([trajectory([*prompt, *[e] * 20], [0] * 40 + [1] * 20, reward=e % 2) for e in range(5)])
    packed = pack([group], row_tokens=100, micro_batch_tokens=128)
    rows = [row for batch in packed.batches for row in zip(batch.tokens, batch.segments, strict=True)]
    assert len(rows) == 2
    for tokens, segments in rows:
        assert tokens[segments == 0].tolist() == prompt
    assert packed.counts.tokens == 2 * 40 + 5 * 19
    assert packed.counts.unpacked_tokens == 5 * 59
    assert packed.counts.sampled_tokens == 100


def test_a_trajectory_longer_than_a_row_gets_a_longer_row():
    group = group_of([trajectory([1] * 300, [0] + [1] * 299, reward=r) for r in (0.0, 1.0)])
    packed = pack([group], row_tokens=64, micro_batch_tokens=64)
    assert [batch.shape for batch in packed.batches] == [(1, 384), (1, 384)]


def test_two_small_groups_share_a_row_without_seeing_each_other():
    groups = [
        group_of([trajectory([g, 9, e], [0, 0, 1], reward=e, group=str(g)) for e in range(2)], str(g)) for g in (5, 6)
    ]
    (batch,) = pack(groups).batches
    assert batch.segments[0, :4].tolist() == [0, 0, 3, 3]
    assert batch.prefixes[0, :4].tolist() == [0, 0, 3, 3]
    assert sorted(batch.targets.sequence[:4].tolist()) == [0, 1, 2, 3]


def test_missing_rewards_and_empty_masks_are_left_out_and_counted():
    group = group_of(
        [
            trajectory([5, 6, 7], [0, 0, 1], reward=1.0),
            trajectory([5, 6, 8], [0, 0, 1], reward=0.0),
            trajectory([5, 6, 9], [0, 0, 1], reward=math.nan),
            trajectory([5, 6], [0, 0], reward=0.0),
            Trajectory(task=group_of([]).task, group_id="g", episode=4, reward=math.nan),
        ]
    )
    packed = pack([group])
    assert (packed.counts.unscored, packed.counts.unsampled, packed.counts.trajectories) == (2, 1, 2)
    (batch,) = packed.batches
    assert sorted(batch.targets.token[:2].tolist()) == [7, 8]
    expected = group_advantages([1.0, 0.0, 0.0])
    np.testing.assert_allclose(sorted(batch.targets.advantage[:2]), sorted(expected[:2]), rtol=1e-6)


def test_a_group_with_nothing_to_learn_is_skipped_but_its_tokens_count_in_the_mean():
    equal = group_of([trajectory([5, 6, 7], [0, 1, 1], reward=0.1, group="a") for _ in range(3)], "a")
    other = group_of([trajectory([5, 6], [0, 1], reward=r, group="b") for r in (0.0, 1.0)], "b")
    packed = pack([equal, other])
    assert packed.counts.skipped_groups == 1
    (batch,) = packed.batches
    assert batch.targets.weight[:3].tolist() == pytest.approx([1 / 8, 1 / 8, 0.0])
    assert pack([equal, other], keep_equal_groups=True).counts.skipped_groups == 0


def test_no_groups_make_no_batches():
    packed = pack([])
    assert packed.batches == ()
    assert packed.counts.padding_share == 0.0


def test_an_episode_whose_history_was_rewritten_is_one_trajectory_of_two_rows():
    def row(tokens):
        return TokenRow(tuple(tokens), (0, 0, 1, 1), (0.0, 0.0, -1.0, -1.0), (-1, -1, 3, 4))

    one = trajectory([1, 2, 3, 4], [0, 0, 1, 1], reward=0.0)
    forked = Trajectory(task=one.task, group_id="g", episode=1, rows=(row([1, 2, 3, 4]), row([1, 7, 8, 9])), reward=1.0)
    (batch,) = pack([group_of([one, forked])], aggregate=sequence_mean).batches
    taken = batch.targets.sequence == 1
    assert taken.sum() == 4
    assert batch.targets.weight[taken].sum() == pytest.approx(0.5)
    assert sorted(batch.targets.version[taken].tolist()) == [3, 3, 4, 4]
    assert (batch.segments == 0).sum() == 1


def test_a_sampled_first_token_is_refused():
    with pytest.raises(ValueError, match="Begin every trajectory with its prompt"):
        pack([group_of([trajectory([1, 2], [1, 1]), trajectory([1, 2], [0, 1], reward=0.0)])])


def test_a_micro_batch_smaller_than_a_row_is_refused():
    with pytest.raises(ConfigError, match="row_tokens=512 and micro_batch_tokens=256"):
        pack([], micro_batch_tokens=256)


@given(tokens=st.integers(1, 10_000))
def test_declared_rows_waste_less_than_a_third(tokens):
    length = row_length(tokens)
    assert length >= tokens
    assert length == 64 or length < 1.5 * tokens


@given(
    row_tokens=st.integers(64, 600),
    more=st.integers(0, 600),
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), min_size=1, max_size=12),
)
def test_only_declared_shapes_are_made(row_tokens, more, lengths):
    groups = [
        group_of([trajectory([1] * (n + 1), [0] + [1] * n, reward=e) for e in range(size + 1)]) for n, size in lengths
    ]
    shapes = declared_shapes(row_tokens, row_tokens + more)
    packed = pack(groups, row_tokens=row_tokens, micro_batch_tokens=row_tokens + more)
    assert {batch.shape for batch in packed.batches} <= shapes
    assert len(declared_shapes(512, 512)) <= 18


def test_padding_to_the_longest_gives_every_trajectory_a_row_of_its_own():
    group = group_of([trajectory([1] * (n + 1), [0] + [1] * n, reward=n) for n in (3, 100, 5)])
    packed = pack([group], row_tokens=128, micro_batch_tokens=512, pad_to_longest=True)
    (batch,) = packed.batches
    assert batch.shape == (4, 128)
    assert (batch.segments >= 0).sum(axis=1).tolist() == [3, 100, 5, 0]


texts = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60), st.booleans()), min_size=1, max_size=12)


@given(
    prompts=st.lists(st.tuples(st.integers(1, 40), texts), min_size=1, max_size=4),
    share_prefix=st.booleans(),
    row_tokens=st.sampled_from([64, 100, 200]),
)
def test_packing_loses_and_invents_no_target(prompts, share_prefix, row_tokens):
    groups, expected = [], []
    for g, (prompt, members) in enumerate(prompts):
        made = []
        for e, (start, length, sampled_all) in enumerate(members):
            tokens = [*[g] * prompt, *range(start, start + length)]
            mask = [0] * prompt + [1 if sampled_all or i % 2 == 0 else 0 for i in range(length)]
            made.append(trajectory(tokens, mask, reward=float(e + 1), group=str(g), episode=e))
            expected += [(t, tokens[at - 1], at - 1) for at, t in enumerate(tokens) if mask[at]]
        groups.append(group_of(made, str(g)))
    packed = pack(
        groups, row_tokens=row_tokens, micro_batch_tokens=256, share_prefix=share_prefix, keep_equal_groups=True
    )
    found = []
    for batch in packed.batches:
        assert batch.tokens.size <= max(256, batch.shape[1])
        assert row_length(batch.shape[1]) == batch.shape[1]
        there = batch.targets.sequence >= 0
        index = batch.targets.index[there]
        found += zip(
            batch.targets.token[there].tolist(),
            batch.tokens.ravel()[index].tolist(),
            batch.positions.ravel()[index].tolist(),
            strict=True,
        )
    assert sorted(found) == sorted(expected)


@pytest.fixture(scope="module")
def groups(model):
    return [
        random_group(model, 1, size=5, prompt=30, longest=20, noise=0.3),
        random_group(model, 2, size=3, prompt=5, longest=40, noise=0.3, multi_turn=True),
        random_group(model, 3, size=6, prompt=20, longest=3, noise=0.3),
    ]


def test_loss_and_gradient_equal_those_of_one_plain_row_per_trajectory(model, groups):
    total = sum(t.num_sampled for g in groups for t in g.trajectories)

    @jax.jit
    @jax.value_and_grad
    def plain(params, tokens, mask, sampler, advantage):
        ratio = jnp.exp(all_logprobs(model.config, params, tokens, 1.0) - sampler)
        objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return -jnp.sum(jnp.where(mask > 0, objective, 0.0)) / total

    parts = []
    for group in groups:
        for t, advantage in zip(group.trajectories, group_advantages(group.rewards), strict=True):
            tokens, mask, sampler = (np.resize([*x, *[0] * 64], 64) for x in (t.tokens, t.loss_mask, t.logprobs))
            parts.append(plain(model.params, tokens.astype(np.int32), mask, sampler.astype(np.float32), advantage))
    value, gradient = jax.tree.map(lambda *x: sum(map(np.float64, x)), *parts)
    packed = pack(groups, aggregate=token_mean, row_tokens=128, micro_batch_tokens=128)
    got, ours = packed_loss_and_gradient(model, packed)
    assert got == pytest.approx(float(value), rel=1e-5)
    assert relative_difference(ours, stack_layers(gradient)) <= 1e-5


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_packing_micro_batches_and_order_change_neither_loss_nor_gradient(model, groups, lora_rank):
    one_row = pack(groups, row_tokens=256, micro_batch_tokens=256)
    others = [
        pack(groups, share_prefix=False, row_tokens=64, micro_batch_tokens=64),
        pack(groups[::-1], row_tokens=64, micro_batch_tokens=128),
    ]
    loss, gradient = packed_loss_and_gradient(model, one_row, lora_rank=lora_rank)
    for packed in others:
        other_loss, other_gradient = packed_loss_and_gradient(model, packed, lora_rank=lora_rank, chunk=24)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert relative_difference(other_gradient, gradient) <= 1e-5


def test_rematerialisation_changes_nothing(model, groups):
    packed = pack(groups, row_tokens=256, micro_batch_tokens=256)
    loss, gradient = packed_loss_and_gradient(model, packed)
    other_loss, other_gradient = packed_loss_and_gradient(model, packed, remat=True)
    assert other_loss == pytest.approx(loss, rel=1e-6)
    assert relative_difference(other_gradient, gradient) <= 1e-6


def test_advantages_and_packing_are_recorded_one_after_the_other():
    with tracing.separate():
        pack([group_of([trajectory([5, 6, 10], [0, 0, 1], reward=1.0), trajectory([5, 6, 9], [0, 0, 1], reward=0.0)])])
        first, second = tracing.spans()
    assert (first.stage, second.stage) == ("advantage", "pack")
    assert first.end_ns <= second.start_ns
    assert first.tags == second.tags == {"groups": 1}
