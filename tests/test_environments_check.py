"""The checker of environments: it finds each common mistake, and nothing in those in the box."""

import itertools
import random
import socket
import time
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given

from agentlab.environments import BaseTaskEnv, FrozenLake, TaskEnvironment, ToolEnvironment, check_environment
from agentlab.errors import ConfigError
from agentlab.rewards import same_number
from agentlab.tasks import arithmetic, frozen_lake
from agentlab.tools import Calculator
from agentlab.tracing.trials import PLAYS, plays_to_see
from agentlab.types import EnvStepResult, Task, ToolCall

TASK = Task("t", "Go.", {"answer": "1"})


class Good(BaseTaskEnv):
    """Counts its steps."""

    def _initial_observation(self) -> Any:
        self.count = 0
        return self.task.prompt

    def _step_impl(self, action: Any) -> Any:
        self.count += 1
        return EnvStepResult(f"{self.count}", 0.0, False)


class Shared(Good):
    """Keeps its state on the class."""

    counts: ClassVar[list[int]] = []

    def _step_impl(self, action: Any) -> Any:
        self.counts.append(1)
        return EnvStepResult(f"{len(self.counts)}", 0.0, False)


class Chance(Good):
    """Draws from nowhere."""

    def _step_impl(self, action: Any) -> Any:
        return EnvStepResult(f"{random.random()}", 0.0, False)


class Greedy(Good):
    """Writes into its task."""

    def _step_impl(self, action: Any) -> Any:
        data: Any = self.task.data
        data["seen"] = True
        return EnvStepResult("ok", 0.0, False)


class Silent(Good):
    """Says nothing, but goes on."""

    def _step_impl(self, action: Any) -> Any:
        return EnvStepResult(None, 0.0, False)


class Numeric(Good):
    """Shows a number."""

    def _initial_observation(self) -> Any:
        self.count = 0
        return 7


class Unrewarding(Good):
    """Forgets the reward."""

    def _step_impl(self, action: Any) -> Any:
        missing: Any = None
        return EnvStepResult("ok", missing, False)


class Bare:
    """Has no close()."""

    def __init__(self, task: Task):
        self.task = task

    def reset(self) -> Any:
        return "hi"

    def step(self, action: Any) -> Any:
        return "ho"


class BareClosed(Bare):
    """Has one, but answers in its own way."""

    def close(self) -> None:
        pass


def test_an_environment_that_is_right_has_no_findings():
    assert check_environment(Good, TASK, actions=["a", "b"]) == ()


@pytest.mark.parametrize(
    ("env_class", "says"),
    [
        (Shared, "answered differently in another instance"),
        (Chance, "draw chance from a seed"),
        (Greedy, "changed its task"),
        (Silent, "None although the episode goes on"),
        (Numeric, "The first observation is no text but int"),
        (Unrewarding, "must be a finite number, got None"),
        (Bare, "no method close()"),
    ],
)
def test_each_common_mistake_is_found(env_class, says):
    task = Task("t", "Go.", {"answer": "1"})
    (finding,) = check_environment(env_class, task, actions=["a", "b"])
    assert says in finding


class Careless(Good):
    """Does almost everything wrong."""

    shown: ClassVar[list[int]] = []

    async def _initial_observation(self) -> Any:
        time.sleep(0.001)  # noqa: ASYNC251
        self.log = socket.socket()
        opened.append(self.log)
        return 7

    def _step_impl(self, action: Any) -> Any:
        data: Any = self.task.data
        data["seen"] = len(self.shown)
        self.shown.append(1)
        if action.value == "c":
            raise ValueError("no c")
        return EnvStepResult(None if action.value == "a" else f"{len(self.shown)}", 0.0, False)


opened: list[socket.socket] = []


def test_all_that_is_wrong_is_said_at_once():
    task = Task("t", "Go.", {"answer": "1"})
    findings = check_environment(Careless, task, actions=["a", "b", "c"])
    for held in opened:
        held.close()
    parts = [
        "_initial_observation blocks the loop",
        "The first observation is no text but int",
        "It holds log but has no close()",
        "An observation is None although the episode goes on",
        "It raised ValueError in step: no c",
        "answered differently in another instance",
        "changed its task",
    ]
    for part in parts:
        assert sum(part in finding for finding in findings) == 1, part
    assert len(findings) == len(parts)


def test_one_that_answers_in_its_own_way_is_told_of_each_method():
    findings = check_environment(BareClosed, TASK)
    assert [finding.partition(" must")[0] for finding in findings] == ["reset()", "step()"]


def test_what_follows_the_others_last_action_is_found_though_a_reset_forgets_it():
    class Last(Good):
        last: ClassVar[str] = ""

        def _initial_observation(self) -> Any:
            type(self).last = ""
            return "Go."

        def _step_impl(self, action: Any) -> Any:
            before, type(self).last = self.last, action.value
            return EnvStepResult(f"after {before}", 0.0, False)

    (finding,) = check_environment(Last, TASK, actions=["a", "b", "c"])
    assert "answered differently in another instance" in finding


@pytest.mark.parametrize("first", range(10))
@pytest.mark.parametrize("raises", [False, True])
def test_what_is_wrong_in_every_tenth_instance_is_found(first, raises):
    made = itertools.count(first)

    class Tenth(Good):
        def _initial_observation(self) -> Any:
            self.wrong = next(made) % 10 == 0
            return "Go."

        def _step_impl(self, action: Any) -> Any:
            if self.wrong and raises:
                raise KeyError("x")
            return EnvStepResult("odd" if self.wrong else "ok", 0.0, True)

    findings = check_environment(Tenth, TASK)
    assert any("answered differently" in finding for finding in findings)
    assert any("It raised KeyError in step" in finding for finding in findings) == raises


def test_chance_of_ten_percent_is_found_in_ninety_nine_checks_of_a_hundred():
    """300 checks: 3 misses are expected at most; more than 10 have a probability below 0.001."""
    dice = random.Random(0)

    class Slips(Good):
        def _step_impl(self, action: Any) -> Any:
            return EnvStepResult("slipped" if dice.random() < 0.1 else "ok", 0.0, True)

    assert sum(not check_environment(Slips, TASK) for _ in range(300)) <= 10


@given(chance=st.floats(0.01, 0.9), certainty=st.floats(0.5, 0.999))
def test_as_many_are_played_as_are_needed_and_no_more(chance, certainty):
    count = plays_to_see(chance, certainty)
    assert 1 - (1 - chance) ** count >= certainty - 1e-9 > 1 - (1 - chance) ** (count - 1) - 2e-9
    assert PLAYS == plays_to_see(0.1, 0.99) == 44


def test_where_the_time_does_not_suffice_it_is_said_how_many_were_played():
    with pytest.warns(UserWarning, match="Only 3 of 44 instances were played within time_limit_s=1e-09"):
        assert check_environment(Good, TASK, time_limit_s=1e-9) == ()
    made: list[int] = []

    class Counted(Good):
        def __init__(self, task: Task):
            super().__init__(task)
            made.append(1)

    check_environment(Counted, TASK, instances=7)
    assert len(made) == 7


def test_impossible_limits_are_refused():
    with pytest.raises(ConfigError, match="instances must be at least 3"):
        check_environment(Good, TASK, instances=2)
    with pytest.raises(ConfigError, match="time_limit_s must be more than 0"):
        check_environment(Good, TASK, time_limit_s=0)


def test_an_object_without_a_repr_of_its_own_is_no_difference():
    class Pictured(Good):
        def _step_impl(self, action: Any) -> Any:
            return EnvStepResult([{"role": "user", "content": "see", "picture": object()}], 0.0, True)

    assert check_environment(Pictured, TASK) == ()


def test_the_environments_in_the_box_are_right():
    question = next(iter(arithmetic()))
    lake = next(iter(frozen_lake()))
    tools = {"tool_map": {"calculator": Calculator}, "reward_fn": same_number}
    calls = [(ToolCall("calculator", {"expression": "1 + 1"}),), "2"]
    assert check_environment(ToolEnvironment, question, actions=calls, env_kwargs=tools) == ()
    assert check_environment(TaskEnvironment, question, actions=["1"], env_kwargs={"reward_fn": same_number}) == ()
    assert check_environment(FrozenLake, lake, actions=["down", "right", "jump"]) == ()


def test_keyword_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'max_turns'"):
        check_environment(FrozenLake, TASK, env_kwargs={"max_turn": 3})
