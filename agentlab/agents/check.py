"""Finds what people get wrong in an agent of their own, and says how to put it right."""

import asyncio
import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentlab.agents.base import ConversationAgentBase
from agentlab.options import described
from agentlab.tracing.blocking import apart, blocking_calls
from agentlab.tracing.trials import PLAYS, checked_limits, play_trials
from agentlab.types import Action, Message, check_kwargs

RESPONSES = ("Hello.", "", "<tool_call>{", "\N{SNOWMAN} <|im_end|>", "a" * 5000)
"""Turns of a model: ordinary, empty, malformed, strange and long ones."""


@apart
def check_agent(
    agent_class: Callable[..., Any],
    *,
    agent_kwargs: Mapping[str, Any] | None = None,
    responses: Sequence[str] = RESPONSES,
    observation: Any = "Go on.",
    instances: int = PLAYS,
    time_limit_s: float = 20.0,
) -> tuple[str, ...]:
    """All that is wrong with an agent, a sentence each with how to put it right; empty if nothing was found.

    Plays the responses in turn in one agent, then in others, two at once, on a thread without an event loop.
    It finds: a missing `super().__init__()`, an answer that is no `Action`, a conversation that is
    rewritten or leaves out what was said or observed, messages that are not plain, state that agents
    share (other messages or other actions of the same turns), options that are changed, an error on a strange
    turn, and calls that block.

    Args:
        agent_class: A class or any callable, as it is given to a learner.
        agent_kwargs: As they are given to a learner.
        responses: What the model says, in turn.
        observation: What the agent observes before each.
        instances: How many are played, at least 3. What goes wrong in one of ten is seen in 44 with probability 0.99.
        time_limit_s: Seconds after which no more are begun; then a warning says how many were played.

    Raises:
        ConfigError: agent_kwargs do not fit, or a number is impossible.
    """
    options = dict(agent_kwargs or {})
    check_kwargs(agent_class, options, given_as="agent_kwargs")
    limits = checked_limits(instances, time_limit_s)
    before = _plain_part(options)
    findings: dict[str, str] = {}

    def compare(first: Played, other: Played) -> None:
        if other.begun != first.begun:
            findings["other beginning"] = (
                "Another agent began with other messages: they share state. Make lists and dictionaries in __init__, "
                "not on the class or as a default argument."
            )
        elif other.actions != first.actions:
            findings["other actions"] = (
                "Another agent took other actions in the same turns: they share state, or draw chance. Keep what "
                "decides an action on `self`, made in __init__, not on the class or in a module."
            )
        elif other.messages != first.messages:
            findings["other messages"] = (
                "Another agent had another conversation in the same turns: they share state, or draw chance. Keep "
                "what decides a message on `self`, made in __init__, not on the class or in a module."
            )

    play_trials(lambda: Played(lambda: agent_class(**options), responses, observation, findings), compare, **limits)
    if _plain_part(options) != before:
        findings["options"] = (
            "It changed its agent_kwargs, which all episodes share. Copy what you change: list(examples)."
        )
    return tuple(findings.values())


class Played:
    """One agent that is played; used by one thread.

    Args:
        make: Makes the agent.
        responses: What the model says, in turn.
        observation: What the agent observes before each.
        findings: What is wrong, by kind, of all that are played; the first of a kind is kept.
    """

    def __init__(
        self, make: Callable[[], Any], responses: Sequence[str], observation: Any, findings: dict[str, str]
    ) -> None:
        self.playable = True
        self.begun: Any = None
        self.messages: Any = None
        """Those with which it began, and those at its end, as JSON."""
        self.actions: list[Any] = []
        """What it made of each response, as JSON."""
        self._make, self._responses, self._observation, self._findings = make, responses, observation, findings
        self._agent: Any = None

    def moves(self) -> Iterator[None]:
        """Play it as the rollout does."""
        try:
            yield from self._turns()
        except Exception as error:  # user code: whatever it raises is what is to be found
            self._find(
                f"raised {type(error).__name__}",
                f"It raised {type(error).__name__}: {error}. A turn may be any text at all.",
            )
            self.actions.append(["raised", type(error).__name__])

    def _turns(self) -> Iterator[None]:
        self._agent = self._make()
        if refused := _refused(self._agent):
            self.playable = False
            self._find("refused", refused)
            return
        self.begun = described(self._agent.messages, inside=True)
        self._observe(done=False)
        for number, response in enumerate(self._responses):
            yield
            self._respond(response)
            self._observe(done=number == len(self._responses) - 1)
        self.messages = described(self._agent.messages, inside=True)

    def _respond(self, response: str) -> None:
        known = copy.deepcopy(self._agent.messages)
        action = self._call("update_from_model", response, finish_reason="stop")
        self.actions.append(described(action, inside=True))
        self._agent.record_response(response)
        if not isinstance(action, Action):
            self._find(
                "no action",
                f"update_from_model must return an Action, got {type(action).__name__}. "
                "Return Action(value), where value is what the environment takes.",
            )
        said = self._agent.messages[len(known) : len(known) + 1]
        if self._agent.messages[: len(known)] != known:
            self._find_rewriting()
        elif not said or said[0].get("role") != "assistant" or said[0].get("content") != response:
            self._find(
                "not as said",
                "The conversation must keep what the model said as it said it. "
                "Begin update_from_model with self.record_response(response).",
            )

    def _observe(self, *, done: bool) -> None:
        known = copy.deepcopy(self._agent.messages)
        self._call("update_from_env", self._observation, 0.0, done, {})
        messages = self._agent.messages
        if messages[: len(known)] != known:
            self._find_rewriting()
        elif len(messages) == len(known) and not done:
            self._find(
                "not read",
                "What update_from_env was given did not become a message, so the model never reads it. "
                "Call super().update_from_env(observation, reward, done, info).",
            )
        for message in messages:
            if not _is_plain(message):
                self._find(
                    "not plain",
                    f'A message must be {{"role": "user", "content": "text"}} of plain data, got {message!r:.80}.',
                )

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the agent, on a loop as the rollout does; what blocks is a finding."""
        blocked: list[str] = []

        async def call() -> Any:
            with blocking_calls(blocked):
                result = getattr(self._agent, method)(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

        answer = asyncio.run(call())
        if blocked:
            self._find(
                f"blocks in {method}",
                f"{method} blocks the loop that all episodes share: {blocked[0]}. Agents run on that loop: do what "
                "takes time in the environment or a tool, or await something that does not block.",
            )
        return answer

    def _find_rewriting(self) -> None:
        self._find(
            "rewriting",
            "It changes messages that the model has seen, so that every turn begins a token row of its own. "
            "Only append to self.messages.",
        )

    def _find(self, kind: str, finding: str) -> None:
        self._findings.setdefault(kind, finding)


def _refused(agent: Any) -> str:
    if not isinstance(agent, ConversationAgentBase):
        return f"It must derive from ConversationAgentBase, got {type(agent).__name__}."
    if not isinstance(getattr(agent, "messages", None), list) or not hasattr(agent, "_turn_begin"):
        return "It has no list `messages`. Call super().__init__(system_prompt) in its __init__."
    return ""


def _is_plain(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    try:
        json.dumps(message)
    except (TypeError, ValueError):
        return False
    return isinstance(message.get("content"), str | None)


def _plain_part(options: Mapping[str, Any]) -> list[Any]:
    """The options that are plain data, as they are now."""
    plain: list[Message | Any] = []
    for name, value in options.items():
        try:
            plain.append((name, json.dumps(value)))
        except (TypeError, ValueError):
            continue
    return plain
