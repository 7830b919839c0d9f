"""Shaping, comparison and credit, against references written from the equations in plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_cases import group_of, trajectory

from agentlab.errors import ConfigError
from agentlab.training import pack
from agentlab.training.advantages import returns, token_advantages
from agentlab.training.algorithms import (
    BatchNormalized,
    OverlongPenalty,
    ProcessRewards,
    ReturnsToGo,
    group_advantages,
    leave_one_out,
    mean_difference,
    outcome,
    plain_rewards,
    token_returns,
)
from agentlab.types import Task, TokenRow, Trajectory, Turn

EQUAL = [[0.1] * 7, [9.9] * 13, [1 / 3] * 5]
CREDITS = [outcome, token_returns, ProcessRewards(), ReturnsToGo(), BatchNormalized(), BatchNormalized(token_returns)]


def turned(rewards, lengths, *, reward=None, episode=0, group="g"):
    """A trajectory of turns that sampled `lengths` tokens and got `rewards`."""
    tokens, mask = [5], [0]
    for length in lengths:
        tokens += [6] * length + [7]
        mask += [1] * length + [0]
    row = TokenRow(tuple(tokens), tuple(mask), tuple([0.0] * len(mask)), tuple(m - 1 for m in mask))
    turns = tuple(Turn("", reward=r, num_sampled=n) for r, n in zip(rewards, lengths, strict=True))
    total = math.fsum(rewards) if reward is None else reward
    return Trajectory(task=Task(group, "?"), group_id=group, episode=episode, rows=(row,), turns=turns, reward=total)


def grouped(*groups):
    return [group_of(members, str(number)) for number, members in enumerate(groups)]


@pytest.mark.parametrize("rewards", EQUAL)
@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("advantages", [group_advantages, mean_difference, leave_one_out])
def test_equal_rewards_give_every_token_exactly_zero(rewards, credit, advantages):
    groups = grouped([turned([r], [n + 1]) for n, r in enumerate(rewards)])
    assert all((v == 0).all() for v in token_advantages(groups, advantages=advantages, credit=credit)[0])


@pytest.mark.parametrize("rewards", EQUAL)
def test_equal_rewards_of_the_whole_update_are_normalised_to_exactly_zero(rewards):
    groups = grouped(*([turned([r], [n + 1])] for n, r in enumerate(rewards)))
    values = token_advantages(groups, advantages=plain_rewards, credit=BatchNormalized(token_returns))
    assert all((value == 0).all() for group in values for value in group)


@given(rewards=st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_leave_one_out_is_the_difference_from_the_mean_of_the_others(rewards):
    if max(rewards) - min(rewards) <= 1e-6:
        return
    expected = [r - (math.fsum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    np.testing.assert_allclose(leave_one_out(rewards), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("advantages", [group_advantages, mean_difference, leave_one_out, plain_rewards])
def test_missing_rewards_are_left_out_of_every_comparison(advantages):
    rewards, holed = [0.0, 1.0, 4.0], [0.0, math.nan, 1.0, 4.0]
    got = advantages(holed)
    assert got[1] == 0
    np.testing.assert_allclose(np.delete(got, 1), advantages(rewards))


@pytest.mark.parametrize("advantages", [group_advantages, mean_difference, leave_one_out])
def test_a_group_of_one_teaches_nothing(advantages):
    assert advantages([3.5]).tolist() == [0.0]
    assert advantages([math.nan, 2.0]).tolist() == [0.0, 0.0]


def test_process_rewards_sum_the_compared_rewards_of_this_and_later_turns():
    rewards, lengths = [[0.0, 1.0], [0.5, 0.0, 0.25]], [[2, 1], [1, 1, 3]]
    groups = grouped([turned(r, n) for r, n in zip(rewards, lengths, strict=True)])
    flat = [x for r in rewards for x in r]
    mean = sum(flat) / 5
    std = math.sqrt(sum((x - mean) ** 2 for x in flat) / 5)
    for discount in (1.0, 0.5):
        got = token_advantages(groups, advantages=group_advantages, credit=ProcessRewards(discount))[0]
        for values, r, n in zip(got, rewards, lengths, strict=True):
            expected = []
            for turn, count in enumerate(n):
                later = sum(discount ** (k - turn) * (r[k] - mean) / std for k in range(turn, len(r)))
                expected += [later] * count
            np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_returns_to_go_compare_discounted_returns_of_all_turns_of_the_group():
    rewards, lengths = [[0.0, 1.0], [0.5, 0.0, 0.25]], [[2, 1], [1, 1, 3]]
    groups = grouped([turned(r, n) for r, n in zip(rewards, lengths, strict=True)], [turned([7.0], [1])])
    found = [[sum(0.9 ** (k - t) * r[k] for k in range(t, len(r))) for t in range(len(r))] for r in rewards]
    mean = sum(map(sum, found)) / 5
    got, other = token_advantages(groups, advantages=mean_difference, credit=ReturnsToGo(0.9))
    for values, returned, n in zip(got, found, lengths, strict=True):
        np.testing.assert_allclose(values, np.repeat(np.asarray(returned) - mean, n), rtol=1e-12)
    assert other[0].tolist() == [0.0]


def test_what_a_reward_has_beyond_its_turns_counts_in_the_last_turn():
    groups = grouped([turned([0.5, 0.0], [1, 1], reward=0.0), turned([0.0, 0.0], [1, 1])])
    got = token_advantages(groups, advantages=plain_rewards, credit=ReturnsToGo())[0]
    assert got[0].tolist() == [0.0, -0.5]
    assert got[1].tolist() == [0.0, 0.0]


def test_a_missing_reward_is_left_out_of_the_comparison_of_turns():
    groups = grouped([turned([0.0, 1.0], [1, 1]), turned([9.0, 0.0], [1, 1], reward=math.nan), turned([2.0], [1])])
    for credit in (ReturnsToGo(), ProcessRewards(), BatchNormalized(), outcome):
        got = token_advantages(groups, advantages=group_advantages, credit=credit)[0]
        without = token_advantages(
            grouped([groups[0].trajectories[0], groups[0].trajectories[2]]), advantages=group_advantages, credit=credit
        )[0]
        assert got[1].tolist() == [0.0, 0.0]
        np.testing.assert_allclose(np.concatenate([got[0], got[2]]), np.concatenate(without))


def test_batch_normalised_advantages_have_mean_0_and_std_1_over_all_tokens():
    groups = grouped([turned([0.0], [3]), turned([1.0], [1])], [turned([5.0], [2])])
    got = token_advantages(groups, advantages=plain_rewards, credit=BatchNormalized(token_returns))
    tokens = [0.0] * 3 + [1.0] + [5.0] * 2
    mean = sum(tokens) / 6
    std = math.sqrt(sum((x - mean) ** 2 for x in tokens) / 6)
    np.testing.assert_allclose(
        np.concatenate([v for group in got for v in group]), [(x - mean) / std for x in tokens], rtol=1e-12
    )


def test_penalties_are_taken_off_the_reward_before_it_is_compared():
    groups = grouped([turned([1.0], [2]), turned([0.0], [1])])
    penalties = [[np.asarray([0.25, 0.5]), np.asarray([-0.5])]]
    got = token_advantages(groups, advantages=mean_difference, penalties=penalties)[0]
    np.testing.assert_allclose(got[0], [(0.25 - 0.5) / 2] * 2)
    returned = token_advantages(groups, advantages=plain_rewards, credit=token_returns, penalties=penalties)[0]
    np.testing.assert_allclose(returned[0], [1.0 - 0.75, 1.0 - 0.5])
    np.testing.assert_allclose(returned[1], [0.5])
    by_turn = token_advantages(groups, advantages=plain_rewards, credit=ReturnsToGo(), penalties=penalties)[0]
    np.testing.assert_allclose(by_turn[0], [0.25, 0.25])


@given(st.lists(st.floats(-5, 5), max_size=8), st.floats(0, 1))
def test_returns_are_discounted_sums(rewards, discount):
    expected = [sum(discount ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]
    np.testing.assert_allclose(returns(np.asarray(rewards), discount), expected, rtol=1e-9, atol=1e-9)


def test_an_overlong_trajectory_loses_reward_in_a_line():
    shaping = OverlongPenalty(max_tokens=10, buffer_tokens=4)
    penalties = [shaping(turned([1.0], [n])) for n in (5, 6, 7, 9, 10, 50)]
    np.testing.assert_allclose(penalties, [0.0, 0.0, -0.25, -0.75, -1.0, -1.0])
    groups = grouped([turned([1.0], [8]), turned([1.0], [2])])
    got = token_advantages(groups, advantages=mean_difference, shaping=shaping)[0]
    assert got[0][0] == pytest.approx(-0.25) and got[1][0] == pytest.approx(0.25)
    with pytest.raises(ConfigError, match="buffer_tokens=11 and max_tokens=10"):
        OverlongPenalty(max_tokens=10, buffer_tokens=11)


def test_advantages_by_turn_reach_the_targets_of_the_right_tokens():
    groups = grouped([turned([0.0, 1.0], [2, 1]), turned([0.5], [1])])
    (batch,) = pack(groups, advantages=plain_rewards, credit=ProcessRewards(0.5)).batches
    first = batch.targets.sequence == 0
    order = np.argsort(batch.targets.place[first])
    assert batch.targets.advantage[first][order].tolist() == [0.5, 0.5, 1.0]


def test_rewards_by_turn_need_turns_that_say_what_they_sampled():
    groups = [group_of([trajectory([5, 6], [0, 1])])]
    token_advantages(groups, advantages=group_advantages, credit=ReturnsToGo())
    one = turned([1.0], [2])
    unknown = Trajectory(task=one.task, group_id="g", episode=0, rows=one.rows, turns=(Turn(""),), reward=1.0)
    with pytest.raises(ValueError, match="num_sampled"):
        token_advantages([group_of([unknown])], advantages=group_advantages, credit=ReturnsToGo())


def test_an_impossible_discount_is_refused():
    for credit in (ReturnsToGo, ProcessRewards):
        with pytest.raises(ConfigError, match="discount"):
            credit(1.5)
