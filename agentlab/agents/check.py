"""Finds what people get wrong in an agent of their own, and says how to put it right."""

import asyncio
import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentlab.agents.base import ConversationAgentBase
from agentlab.tracing.blocking import apart, blocking_calls
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
) -> tuple[str, ...]:
    """What is wrong with an agent, a sentence each with how to put it right; empty if nothing was found.

    Plays the responses in turn in one agent, then makes another, on a thread without an event loop.
    It finds: a missing `super().__init__()`, an answer that is no `Action`, a conversation that is
    rewritten or leaves out what was said or observed, messages that are not plain, state that agents
    share, options that are changed, an error on a strange turn, and calls that block.

    Args:
        agent_class: A class or any callable, as it is given to a learner.
        agent_kwargs: As they are given to a learner.
        responses: What the model says, in turn.
        observation: What the agent observes before each.

    Raises:
        ConfigError: agent_kwargs do not fit.
    """
    options = dict(agent_kwargs or {})
    check_kwargs(agent_class, options, given_as="agent_kwargs")
    before = _plain_part(options)
    findings: list[str] = []
    try:
        agent = agent_class(**options)
        if refused := _refused(agent):
            return (refused,)
        begun = copy.deepcopy(agent.messages)
        Played(agent, findings).play(responses, observation)
        again = agent_class(**options).messages
    except Exception as error:  # user code: whatever it raises is what is to be found
        return (*dict.fromkeys(findings), f"It raised {type(error).__name__}: {error}. A turn may be any text at all.")
    if again != begun:
        findings.append(
            "Another agent began with other messages: they share state. Make lists and dictionaries in __init__, "
            "not on the class or as a default argument."
        )
    if _plain_part(options) != before:
        findings.append("It changed its agent_kwargs, which all episodes share. Copy what you change: list(examples).")
    return tuple(dict.fromkeys(findings))


def _refused(agent: Any) -> str:
    if not isinstance(agent, ConversationAgentBase):
        return f"It must derive from ConversationAgentBase, got {type(agent).__name__}."
    if not isinstance(getattr(agent, "messages", None), list) or not hasattr(agent, "_turn_begin"):
        return "It has no list `messages`. Call super().__init__(system_prompt) in its __init__."
    return ""


class Played:
    """One agent that is played, and what was found; used by one thread."""

    def __init__(self, agent: ConversationAgentBase, findings: list[str]) -> None:
        self._agent, self._findings = agent, findings

    def play(self, responses: Sequence[str], observation: Any) -> None:
        """Play the responses as the rollout does."""
        self._observe(observation, done=False)
        for number, response in enumerate(responses):
            self._respond(response)
            self._observe(observation, done=number == len(responses) - 1)

    def _respond(self, response: str) -> None:
        known = copy.deepcopy(self._agent.messages)
        action = self._call("update_from_model", response, finish_reason="stop")
        self._agent.record_response(response)
        if not isinstance(action, Action):
            self._find(
                f"update_from_model must return an Action, got {type(action).__name__}. "
                "Return Action(value), where value is what the environment takes."
            )
        said = self._agent.messages[len(known) : len(known) + 1]
        if self._agent.messages[: len(known)] != known:
            self._find_rewriting()
        elif not said or said[0].get("role") != "assistant" or said[0].get("content") != response:
            self._find(
                "The conversation must keep what the model said as it said it. "
                "Begin update_from_model with self.record_response(response)."
            )

    def _observe(self, observation: Any, *, done: bool) -> None:
        known = copy.deepcopy(self._agent.messages)
        self._call("update_from_env", observation, 0.0, done, {})
        messages = self._agent.messages
        if messages[: len(known)] != known:
            self._find_rewriting()
        elif len(messages) == len(known) and not done:
            self._find(
                "What update_from_env was given did not become a message, so the model never reads it. "
                "Call super().update_from_env(observation, reward, done, info)."
            )
        for message in messages:
            if not _is_plain(message):
                self._find(
                    f'A message must be {{"role": "user", "content": "text"}} of plain data, got {message!r:.80}.'
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
                f"{method} blocks the loop that all episodes share: {blocked[0]}. Agents run on that loop: do what "
                "takes time in the environment or a tool, or await something that does not block."
            )
        return answer

    def _find_rewriting(self) -> None:
        self._find(
            "It changes messages that the model has seen, so that every turn begins a token row of its own. "
            "Only append to self.messages."
        )

    def _find(self, finding: str) -> None:
        self._findings.append(finding)


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
