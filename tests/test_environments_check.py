"""The checker of environments: it finds each common mistake, and nothing in those in the box."""

import random
from typing import Any, ClassVar

import pytest

from agentlab.environments import BaseTaskEnv, FrozenLake, TaskEnvironment, ToolEnvironment, check_environment
from agentlab.errors import ConfigError
from agentlab.rewards import same_number
from agentlab.tasks import arithmetic, frozen_lake
from agentlab.tools import Calculator
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
        (BareClosed, "reset() must return (observation, info)"),
    ],
)
def test_each_common_mistake_is_found(env_class, says):
    task = Task("t", "Go.", {"answer": "1"})
    (finding,) = check_environment(env_class, task, actions=["a", "b"])
    assert says in finding


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
