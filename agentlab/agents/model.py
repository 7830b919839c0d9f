"""Agents in the box: one that talks, one that calls tools, one that walks over a frozen lake."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from agentlab.agents.base import ConversationAgentBase
from agentlab.chat import ToolCallParser, parser_named, parser_of_model, reasons, split_reasoning
from agentlab.errors import ConfigError, nearest
from agentlab.tools import as_tools, specs_of
from agentlab.types import Action, Message

DIRECTION = re.compile(r"\b(left|right|up|down)\b", re.IGNORECASE)


REASONING = ("auto", "apart", "kept")


@dataclass(frozen=True)
class Taught:
    """What the model that an agent speaks with was taught, as its tokenizer tells."""

    syntax: str = "hermes"
    """The name of the syntax in which it calls tools."""
    reasons: bool = False
    """Whether it reasons in <think> tags before it answers."""

    @classmethod
    def of(cls, tokenizer: Any) -> "Taught":
        return cls(parser_of_model(tokenizer), reasons(tokenizer))


_taught: ContextVar[Taught | None] = ContextVar("agentlab_taught", default=None)


@contextmanager
def speaking_with(taught: Taught) -> Iterator[None]:
    """Agents that are made inside take this for what is "auto"; a rollout makes its agents so."""
    token = _taught.set(taught)
    try:
        yield
    finally:
        _taught.reset(token)


def _model() -> Taught:
    return _taught.get() or Taught()


class ModelAgent(ConversationAgentBase):
    """Says what the model says: the action is the text of the turn.

    Args:
        system_prompt: Said first, unless empty.
        examples: Messages that show the task being done, put after the system prompt.
        reasoning: "apart": the action is what the turn says beside its reasoning in <think> tags, nothing where it was
            cut off in it. "kept": the action is the whole turn, as a reward for the tags themselves wants it
            (`rewards.in_format`). "auto": apart where the model was taught to reason in these tags, as its chat
            template tells (in a rollout), else kept.

    Raises:
        ConfigError: `reasoning` is something else, or as `ConversationAgentBase`.
    """

    def __init__(
        self,
        system_prompt: str = "",
        *,
        examples: Sequence[Message] = (),
        reasoning: Literal["auto", "apart", "kept"] = "auto",
    ) -> None:
        if reasoning not in REASONING:
            raise ConfigError(
                f"reasoning must be one of {', '.join(REASONING)}, got {reasoning!r}."
                f"{nearest(str(reasoning), REASONING)}"
            )
        super().__init__(system_prompt, examples=examples)
        self._answers = reasoning == "apart" or (reasoning == "auto" and _model().reasons)

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        return Action(split_reasoning(response)[1].strip() if self._answers else response)


class ToolAgent(ConversationAgentBase):
    """Calls tools: the action is the calls of the turn, or its text where it makes none.

    The conversation keeps every turn as the model wrote it, tags and reasoning included.

    Args:
        system_prompt: Said first; the description of the tools follows it.
        tool_map: Tools by name: instances, classes or annotated functions.
        tool_parser_name: The syntax in which the model calls them, or a `ToolCallParser`. "auto" is
            the one that the model was taught, as its chat template tells (in a rollout); by itself an agent
            takes "hermes".
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
        self.parser = parser_named(_model().syntax if tool_parser_name == "auto" else tool_parser_name)
        self.tools = specs_of(as_tools(tool_map or {}))
        described = self.parser.describe(self.tools) if describe_tools else ""
        super().__init__("\n\n".join(filter(None, (system_prompt, described))), examples=examples)

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        parsed = self.parser.parse(response, self.tools)
        return Action(parsed.calls or parsed.text)


class FrozenLakeAgent(ConversationAgentBase):
    """Walks by short text: the action is the last of left, right, up and down in the turn, reasoning apart.

    A turn that names none is passed on as it is; the environment says what it can take.
    """

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.record_response(response)
        found = DIRECTION.findall(split_reasoning(response)[1])
        return Action(found[-1].lower() if found else response)
