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
from agentlab.types import Action, EnvStepResult, Task, ToolCall


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


class Turning(Good):
    """Decides by a count on the class."""

    turns: ClassVar[int] = 0

    async def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        type(self).turns += 1
        return Action("stop" if self.turns > 3 else "go")


class Echoing(Good):
    """Decides by the last response of whichever agent, which a new one forgets."""

    last: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        type(self).last = ""

    async def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        before, type(self).last = self.last, response
        return Action((ToolCall("said", {"before": before}),))


class Remembering(Good):
    """Keeps what decides in a default argument."""

    def __init__(self, seen: dict[str, int] = {}) -> None:  # noqa: B006
        super().__init__()
        self.seen = seen

    async def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        self.seen[response] = self.seen.get(response, 0) + 1
        return Action(Move(self.seen[response] > 20))


class Move:
    """An action that is an object without `__eq__`."""

    def __init__(self, is_last: bool):
        self.is_last = is_last


class Moving(Good):
    """Is right, and its actions are objects that equal nothing but themselves."""

    async def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        return Action(Move(len(response) > 3))


class Chattering(Good):
    """Tells the model what others were told."""

    count: ClassVar[int] = 0

    def update_from_env(self, observation: Any, reward: float, done: bool, info: Any) -> None:
        type(self).count += 1
        super().update_from_env(f"{observation} {self.count}", reward, done, info)


@pytest.mark.parametrize("agent_class", [Turning, Echoing, Remembering])
def test_state_that_decides_actions_and_that_agents_share_is_found(agent_class):
    (finding,) = check_agent(agent_class)
    assert "Another agent took other actions in the same turns: they share state" in finding


def test_state_that_decides_messages_and_that_agents_share_is_found():
    (finding,) = check_agent(Chattering)
    assert "Another agent had another conversation in the same turns" in finding


def test_actions_that_equal_nothing_but_themselves_are_compared_by_what_is_in_them():
    assert check_agent(Moving) == ()


def test_all_that_is_wrong_with_an_agent_is_said_at_once():
    class Careless(Turning):
        def __init__(self, words: list[str]) -> None:
            super().__init__()
            words.append("more")

        def update_from_env(self, observation: Any, reward: float, done: bool, info: Any) -> None:
            time.sleep(0.001)
            self.messages.append({"role": "user", "content": observation, "tags": {1}})

        async def update_from_model(self, response: str, **kwargs: Any) -> Any:
            self.messages.append({"role": "assistant", "content": response.upper()})
            await super().update_from_model(response)
            if len(response) > 100:
                raise KeyError("long")
            return response

    findings = check_agent(Careless, agent_kwargs={"words": ["one"]})
    parts = [
        "update_from_env blocks the loop",
        "of plain data",
        "must return an Action",
        "keep what the model said as it said it",
        "It raised KeyError",
        "changed its agent_kwargs",
    ]
    for part in parts:
        assert sum(part in finding for finding in findings) == 1, (part, findings)


def test_a_check_of_an_agent_can_be_bounded():
    with pytest.warns(UserWarning, match="Only 3 of 44 instances were played"):
        assert check_agent(Good, time_limit_s=1e-9) == ()
    with pytest.raises(ConfigError, match="instances must be at least 3"):
        check_agent(Good, instances=1)


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
