"""The checkers of agents and of async or leaking environments: each common mistake is found, none is invented."""

import asyncio
import socket
import time
from typing import Any, ClassVar

import gymnasium
import pytest

from agentlab.agents import ConversationAgentBase, FrozenLakeAgent, ModelAgent, ToolAgent, check_agent
from agentlab.environments import BaseTaskEnv, check_environment
from agentlab.errors import ConfigError
from agentlab.tools import Calculator
from agentlab.tracing.blocking import blocking_calls
from agentlab.types import Action, EnvStepResult, Task


class Good(ConversationAgentBase):
    """Does as it should, asynchronously."""

    async def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        await asyncio.sleep(0.001)
        return Action(response)


class Unfinished(Good):
    """Forgets to return."""

    def update_from_model(self, response: str, **kwargs: Any) -> Any:
        self.record_response(response)


class Headless(Good):
    """Forgets its base."""

    def __init__(self) -> None:
        self.turns = 0


class Tidy(Good):
    """Keeps another text than the model's."""

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.messages.append({"role": "assistant", "content": response.strip().upper()})
        return Action(response)


class Forgetful(Good):
    """Drops what came first."""

    def update_from_env(self, observation: Any, reward: float, done: bool, info: Any) -> None:
        super().update_from_env(observation, reward, done, info)
        del self.messages[:-3]


class Deaf(Good):
    """Lets the model read nothing."""

    def update_from_env(self, observation: Any, reward: float, done: bool, info: Any) -> None:
        self.seen = observation


class Sharing(Good):
    """One conversation for all."""

    kept: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.messages = self.kept


class Sleepy(Good):
    """Sleeps on the loop."""

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        time.sleep(0.001)
        return Action(response)


class Brittle(Good):
    """Expects what a model does not always write."""

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        return Action(response.split("answer:")[1])


class Odd(Good):
    """Puts a set into a message."""

    def update_from_env(self, observation: Any, reward: float, done: bool, info: Any) -> None:
        self.messages.append({"role": "user", "content": observation, "tags": {1}})


class Greedy(Good):
    """Changes what it was given."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        words.append("more")


@pytest.mark.parametrize(
    ("agent_class", "says"),
    [
        (Unfinished, "must return an Action, got NoneType"),
        (Headless, "Call super().__init__"),
        (Tidy, "keep what the model said as it said it"),
        (Forgetful, "Only append to self.messages"),
        (Deaf, "the model never reads it"),
        (Sharing, "they share state"),
        (Sleepy, "time.sleep at test_agents_check.py"),
        (Brittle, "It raised IndexError"),
        (Odd, "of plain data"),
        (dict, "must derive from ConversationAgentBase"),
    ],
)
def test_each_common_mistake_of_an_agent_is_found(agent_class, says):
    findings = check_agent(agent_class)
    assert says in findings[0]
    assert len(findings) == (2 if agent_class is Deaf else 1)  # its answers follow each other, too


def test_changed_options_are_found_and_wrong_ones_refused():
    assert "changed its agent_kwargs" in check_agent(Greedy, agent_kwargs={"words": ["one"]})[0]
    with pytest.raises(ConfigError, match="Did you mean 'words'"):
        check_agent(Greedy, agent_kwargs={"word": []})


@pytest.mark.parametrize(
    ("agent_class", "agent_kwargs"),
    [
        (Good, {}),
        (ModelAgent, {"system_prompt": "S"}),
        (FrozenLakeAgent, {}),
        (ToolAgent, {"tool_map": {"calculator": Calculator}}),
    ],
)
def test_agents_that_are_right_have_no_findings(agent_class, agent_kwargs):
    assert check_agent(agent_class, agent_kwargs=agent_kwargs) == ()


class Room(BaseTaskEnv):
    """Says ok, asynchronously."""

    async def _initial_observation(self) -> Any:
        await asyncio.sleep(0.001)
        return "Go."

    async def _step_impl(self, action: Any) -> Any:
        return EnvStepResult("ok", 0.0, False)


class BlockingRoom(Room):
    """Sleeps where it should await."""

    async def _step_impl(self, action: Any) -> Any:
        time.sleep(0.001)  # noqa: ASYNC251
        return EnvStepResult("ok", 0.0, False)


class LeakyRoom(Room):
    """Makes an environment and never closes it."""

    async def _initial_observation(self) -> Any:
        self.gym = gymnasium.make("FrozenLake-v1")
        self.gym.reset(seed=0)
        return "Go."


class HalfClosedRoom(Room):
    """Has a close() that forgets one of two."""

    async def _initial_observation(self) -> Any:
        self.log = open("/dev/null")  # noqa: ASYNC230, PTH123, SIM115
        opened.append(self.log)
        return "Go."

    async def close(self) -> None:
        pass


opened: list[Any] = []


@pytest.mark.parametrize(
    ("env_class", "says"),
    [
        (BlockingRoom, "_step_impl blocks the loop that all episodes share: time.sleep at test_agents_check.py"),
        (LeakyRoom, "It holds gym but has no close(). Write `def close(self): self.gym.close()`"),
        (HalfClosedRoom, "close() left log open"),
    ],
)
def test_each_common_mistake_of_an_async_environment_is_found(env_class, says):
    findings = check_environment(env_class, Task("t", ""), actions=["a"])
    for held in opened:
        held.close()
    assert len(findings) == 1 and says in findings[0]


def test_an_async_environment_that_is_right_has_no_findings():
    assert check_environment(Room, Task("t", ""), actions=["a"]) == ()


def test_waiting_for_a_socket_blocks_and_waiting_in_a_loop_does_not():
    here, there = socket.socketpair()
    found: list[str] = []

    async def wait() -> None:
        with blocking_calls(found):
            await asyncio.sleep(0.001)
            assert found == []
            there.send(b"x")
            here.recv(1)

    with here, there:
        asyncio.run(wait())
    assert [text.split(" at ")[0] for text in found] == ["socket.send", "socket.recv"]


def test_the_checkers_work_inside_an_event_loop_as_a_notebook_has_one():
    async def cell() -> tuple[str, ...]:
        task = Task("1", "Say ok.")
        return check_agent(Good) + check_environment(Room, task, actions=["ok"])

    assert asyncio.run(cell()) == ()
