"""Rewards: a finite number or an error, never a silent 0."""

import asyncio
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import ConfigError, RewardError
from agentlab.rewards import Reward, as_reward, combine, exact, same_number
from agentlab.types import Task


def task(answer: object) -> Task:
    return Task("t", "?", {"answer": answer})


@given(value=st.floats(-1e15, 1e15) | st.integers(-(10**9), 10**9))
def test_a_number_within_bounds_is_a_reward(value):
    assert as_reward(value) == Reward(float(value), {})


@pytest.mark.parametrize("value", [np.float32(0.5), np.asarray(0.5), Decimal("0.5"), Reward(0.5)])
def test_numbers_of_other_libraries_are_rewards(value):
    assert as_reward(value).value == 0.5


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "got None. Is a `return` missing"),
        (True, "got True"),
        (np.bool_(False), "got False"),
        ("1.0", "got str"),
        ([1.0], "got list"),
        (np.asarray([1.0, 2.0]), "must be one number"),
        (math.nan, "must be finite, got nan"),
        (math.inf, "must be finite, got inf"),
        (10**400, "must be one number"),
        (1j, "got complex"),
        (Reward(math.nan), "must be finite, got nan"),
        (Reward(1.0, {"format": None}), "part 'format'"),
    ],
)
def test_whatever_is_no_finite_number_is_refused(value, says):
    with pytest.raises(RewardError, match=says):
        as_reward(value)


def test_a_reward_that_was_never_awaited_is_refused():
    async def late() -> float:
        return 1.0

    waiting = late()
    with pytest.raises(RewardError, match="never awaited"):
        as_reward(waiting)
    waiting.close()


def test_exact_compares_text_without_the_spaces_at_its_ends():
    assert exact(task("yes"), " yes\n") == 1.0
    assert exact(task("yes"), "yes.") == 0.0
    assert exact(task(42), "42") == 1.0


@pytest.mark.parametrize(
    ("wanted", "answer", "reward"),
    [
        ("132", "12 * 11 is 132.", 1),
        ("132", "132 = 12 * 11", 0),
        ("1234.5", "That makes 1,234.50", 1),
        ("1,234", "1234", 1),
        (-7, "It is -7", 1),
        (7, "It is -7", 0),
        (7, "10-7", 0),
        (3, "10-7", 0),
        ("0.1", "0.10", 1),
        ("5", "no idea", 0),
        ("5", "", 0),
        ("5", "x5", 0),
        ("3", "1,2,3", 1),
        ("12", "$12", 1),
        ("12", "**12**", 1),
    ],
)
def test_same_number_reads_the_last_number_of_the_answer(wanted, answer, reward):
    assert same_number(task(wanted), answer) == reward


@given(number=st.integers(-(10**12), 10**12), text=st.text(st.characters(categories=["Lu", "Zs"]), max_size=10))
def test_same_number_accepts_any_way_to_group_digits(number, text):
    assert same_number(task(number), f"{text} {number:,}") == 1.0
    assert same_number(task(number), f"{text} {number}.00 ") == 1.0
    assert same_number(task(number), f"{number + 1}") == 0.0


@pytest.mark.parametrize("reward_fn", [exact, same_number])
def test_a_task_without_an_answer_is_an_error_not_a_zero(reward_fn):
    with pytest.raises(RewardError, match=r'must have data\["answer"\]'):
        reward_fn(Task("t", "?"), "1")


def test_same_number_needs_a_number_to_compare_with():
    with pytest.raises(RewardError, match="has 'many'"):
        same_number(task("many"), "1")


def test_a_weighted_sum_keeps_the_value_of_each_part():
    reward = combine({"answer": (1.0, exact), "short": (0.5, lambda task, answer: 0.5)})
    assert as_reward(reward(task("a"), "a")) == Reward(1.25, {"answer": 1.0, "short": 0.5})


def test_a_weighted_sum_awaits_its_async_parts():
    async def judged(task: Task, answer: str) -> float:
        return 3.0

    reward = combine({"answer": (1.0, exact), "judge": (2.0, judged)})
    assert asyncio.run(reward(task("a"), "b")) == Reward(6.0, {"answer": 0.0, "judge": 3.0})


def test_a_part_that_is_no_number_is_named():
    with pytest.raises(RewardError, match="part 'b'"):
        combine({"b": (1.0, lambda task, answer: None)})(task("a"), "a")


@pytest.mark.parametrize(
    ("parts", "says"),
    [({}, "at least one part"), ({"a": exact}, "must be"), ({"a": (math.nan, exact)}, "finite number, got nan")],
)
def test_an_impossible_weighted_sum_is_refused(parts, says):
    with pytest.raises(ConfigError, match=says):
        combine(parts)
