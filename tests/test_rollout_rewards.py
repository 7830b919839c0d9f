"""Rewards of every kind through a whole episode; one that is no number is a failure that says so, never 0."""

import functools
import math

import anyio.lowlevel
import pytest

from agentlab.agents import ModelAgent
from agentlab.environments import TaskEnvironment, ToolEnvironment
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rewards import Reward, combine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, run_episode


def scaled(task, answer, *, scale):
    return scale * len(answer)


class Counting:
    """A callable object with a state of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, task, answer):
        self.calls += 1
        return float(self.calls)


async def awaited(task, answer):
    await anyio.lowlevel.checkpoint()
    return 4.0


class AwaitedObject:
    async def __call__(self, task, answer):
        await anyio.lowlevel.checkpoint()
        return 5.0


def same_name(value):
    def score(task, answer):
        return value

    return score


KINDS = {
    "lambda": (lambda task, answer: 2.0, 2.0),
    "partial": (functools.partial(scaled, scale=0.5), 1.5),
    "callable object": (Counting(), 1.0),
    "async function": (awaited, 4.0),
    "async callable object": (AwaitedObject(), 5.0),
    "partial of an async function": (functools.partial(awaited), 4.0),
    "with parts": (lambda task, answer: Reward(3.0, {"a": 1.0, "b": 2.0}), 3.0),
    "two of the same name": (combine({"a": (1.0, same_name(1.0)), "b": (2.0, same_name(3.0))}), 7.0),
    "two lambdas": (combine({"a": (1.0, lambda task, answer: 1), "b": (1.0, lambda task, answer: 2)}), 3.0),
    "an integer": (lambda task, answer: 1, 1.0),
}


def play(env_class, reward_fn):
    options = {"tool_map": {}} if env_class is ToolEnvironment else {}
    return run_episode(
        ScriptedEngine("yes"),
        {"prompt": "Say yes."},
        agent_class=ModelAgent,
        env_class=env_class,
        env_kwargs={"reward_fn": reward_fn, **options},
    )


@pytest.mark.parametrize("env_class", [TaskEnvironment, ToolEnvironment])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reward_may_be_any_kind_of_callable(kind, env_class):
    reward_fn, expected = KINDS[kind]
    if isinstance(reward_fn, Counting):
        reward_fn.calls = 0
    record = play(env_class, reward_fn)
    assert record.failure is None and record.reward == expected


def test_the_parts_of_two_functions_of_one_name_stay_apart():
    record = play(TaskEnvironment, KINDS["two of the same name"][0])
    assert dict(record.reward_parts) == {"a": 1.0, "b": 3.0}


def raising(task, answer):
    raise ZeroDivisionError("no denominator")


async def raising_late(task, answer):
    await anyio.lowlevel.checkpoint()
    raise ZeroDivisionError("no denominator")


@pytest.mark.parametrize("env_class", [TaskEnvironment, ToolEnvironment])
@pytest.mark.parametrize(
    ("reward_fn", "says"),
    [
        (raising, "raising raised ZeroDivisionError: no denominator"),
        (raising_late, "raising_late raised ZeroDivisionError: no denominator"),
        (lambda task, answer: None, "got None. Is a `return` missing?"),
        (lambda task, answer: math.nan, "must be finite, got nan"),
        (lambda task, answer: "1.0", "must be a finite number, got str: '1.0'"),
        (lambda task, answer: True, "must be a number, got True"),
    ],
)
def test_a_reward_that_is_no_number_is_a_failure_of_its_own_stage_and_never_0(reward_fn, says, env_class):
    record = play(env_class, reward_fn)
    assert record.failure.stage == "reward" and says in record.failure.error
    assert math.isnan(record.reward) and not record.scored


def test_a_reward_that_breaks_for_one_member_leaves_the_others_of_its_group():
    calls = Counting()

    def second_breaks(task, answer):
        if calls(task, answer) == 2:
            return None
        return calls.calls / 4

    rollouts = RolloutOrchestrator(
        ScriptedEngine("yes"),
        agent_class=ModelAgent,
        env_class=TaskEnvironment,
        env_kwargs={"reward_fn": second_breaks},
        config=RolloutConfig(group_size=3, max_concurrency=1),
    )
    (group,) = rollouts.iterate([{"prompt": "x"}])
    assert group.rewards[0] == 0.25 and math.isnan(group.rewards[1]) and group.rewards[2] == 0.75
    assert dict(rollouts.failures) == {"reward": 1}
