"""Agents in the box: one that talks, one that calls tools, one that walks over a frozen lake."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentlab.agents.base import ConversationAgentBase
from agentlab.chat import ToolCallParser, parser_named, parser_of_model
from agentlab.tools import as_tools, specs_of
from agentlab.types import Action, Message

DIRECTION = re.compile(r"\b(left|right|up|down)\b", re.IGNORECASE)


class ModelAgent(ConversationAgentBase):
    """Says what the model says: the action is the text of the turn."""

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        return Action(response)


class ToolAgent(ConversationAgentBase):
    """Calls tools: the action is the calls of the turn, or its text where it makes none.

    The conversation keeps every turn as the model wrote it, tags and reasoning included.

    Args:
        system_prompt: Said first; the description of the tools follows it.
        tool_map: Tools by name: instances, classes or annotated functions.
        tool_parser_name: The syntax in which the model calls them, or a `ToolCallParser`. "auto" is
            the one that the model was taught, as its chat template tells: a rollout puts that in
            (`with_parser_of`); by itself an agent takes "hermes".
        examples: Messages that show the task being done, put after the system prompt.
        describe_tools: False leaves the description out, where the prompt has one of its own.

    Raises:
        ConfigError: the syntax is unknown, or a tool is none.
    """

    def __init__(
        self,
        system_prompt: str = "",
        tool_map: Mapping[str, Any] | None = None,
        tool_parser_name: str | ToolCallParser = "auto",
        *,
        examples: Sequence[Message] = (),
        describe_tools: bool = True,
    ) -> None:
        self.parser = parser_named("hermes" if tool_parser_name == "auto" else tool_parser_name)
        self.tools = specs_of(as_tools(tool_map or {}))
        described = self.parser.describe(self.tools) if describe_tools else ""
        super().__init__("\n\n".join(filter(None, (system_prompt, described))), examples=examples)

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        parsed = self.parser.parse(response, self.tools)
        return Action(parsed.calls or parsed.text)


def with_parser_of(
    agent_class: Callable[..., Any], agent_kwargs: Mapping[str, Any], tokenizer: Any
) -> Mapping[str, Any]:
    """The keyword arguments with the model's own syntax where `tool_parser_name` is "auto".

    That is where it is given as "auto", or left out by an agent class whose default it is.
    """
    try:
        default = inspect.signature(agent_class).parameters["tool_parser_name"].default
    except (KeyError, TypeError, ValueError):
        default = None
    if agent_kwargs.get("tool_parser_name", default) != "auto":
        return agent_kwargs
    return {**agent_kwargs, "tool_parser_name": parser_of_model(tokenizer)}


class FrozenLakeAgent(ConversationAgentBase):
    """Walks by short text: the action is the last of left, right, up and down in the turn.

    A turn that names none is passed on as it is; the environment says what it can take.
    """

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        found = DIRECTION.findall(response)
        return Action(found[-1].lower() if found else response)
