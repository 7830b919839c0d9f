"""The syntaxes in which models call tools: described, parsed and written; no input raises."""

import abc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from agentlab.chat.described import signatures
from agentlab.chat.examples import example_call
from agentlab.chat.json_calls import MAX_CALLS, broken_call, tagged_calls, untagged_calls
from agentlab.chat.reasoning import THINK_CLOSE, THINK_OPEN
from agentlab.types import ToolCall, ToolSpec

MAX_REASONING = 64
"""Parts of reasoning of one turn that are told apart; after them all up to the last </think> is one."""


@dataclass(frozen=True)
class ParsedResponse:
    """What a model's turn says: text for the user, calls of tools, and the reasoning before them."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


class ToolCallParser(abc.ABC):
    """One syntax of tool calls. Holds no state.

    Reasoning, in <think> tags or before a lone </think>, is set apart first, unless the tags stand
    inside a call.

    A call that is malformed, cut off or otherwise unusable is still a `ToolCall`: its `error` says
    what is wrong, for the model to read. Whether the tool exists and takes these arguments is
    checked where it is run.
    """

    name: str
    marks: tuple[tuple[str, str], ...] = ()
    """What a call begins and ends with; between them <think> is no reasoning."""

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedResponse:
        """What the turn says. Never raises; takes time linear in the length of the text.

        Args:
            text: A whole turn of the model, after what the prompt had opened of it (`opened_thought`). Calls inside
                its reasoning do not count.
            tools: The tools on offer. Syntaxes that leave out names or types need them.
        """
        reasoning, said = leading_thought(text)
        rest, calls = self._find(said, tools) if has_tags(said) else ("", [])
        if not 0 < len(calls) <= MAX_CALLS or has_tags(rest):  # else all tags that remain stand in arguments
            reasoning, said = split_reasoning(text, self.marks)
            rest, calls = self._find(said, tools)
        if len(calls) > MAX_CALLS:
            calls = [*calls[:MAX_CALLS], broken_call(f"a turn may make {MAX_CALLS} calls; the others were not run")]
        return ParsedResponse(rest.strip(), tuple(calls), reasoning)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Text for the system prompt: which tools there are, and how to call one; empty without tools."""
        return self._describe(tools) if tools else ""

    @abc.abstractmethod
    def render(self, call: ToolCall) -> str:
        """The call as the model would write it."""

    @abc.abstractmethod
    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        """The text without its calls, and the calls in their order."""

    @abc.abstractmethod
    def _describe(self, tools: Sequence[ToolSpec]) -> str: ...


@final
class Hermes(ToolCallParser):
    """JSON in <tool_call> tags, as Hermes and Qwen models write it."""

    name = "hermes"
    marks = (("<tool_call>", "</tool_call>"),)

    def render(self, call: ToolCall) -> str:
        return f"<tool_call>\n{call_json(call)}\n</tool_call>"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        return tagged_calls(text, "<tool_call>", "</tool_call>")

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these tools:\n{signatures(tools)}\n"
            f"To call one, reply with its name and arguments as JSON, like this:\n{self.render(example_call(tools[0]))}"
        )


@final
class JSONCalls(ToolCallParser):
    """JSON objects with "name" and "arguments", or a list of them, perhaps fenced or after prose."""

    name = "json"
    marks = (('{"', "}"),)

    def render(self, call: ToolCall) -> str:
        return call_json(call)

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        return untagged_calls(text, tools)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these tools:\n{signatures(tools)}\n"
            f"To call one, reply with nothing but JSON, like this:\n{self.render(example_call(tools[0]))}"
        )


# -- parts that syntaxes share --------------------------------------------------------------------


def leading_thought(text: str) -> tuple[str, str]:
    """The thought in tags that a turn begins with, if it does and closes it, and what follows."""
    inside, closed, after = text.lstrip().removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return (inside.strip(), after) if closed and text.lstrip().startswith(THINK_OPEN) else ("", text)


def has_tags(text: str) -> bool:
    """Whether a text opens or closes reasoning."""
    return THINK_OPEN in text or THINK_CLOSE in text


def split_reasoning(text: str, marks: Sequence[tuple[str, str]] = ()) -> tuple[str, str]:
    """The reasoning of a turn, and what it says beside it; reasoning that was cut off takes all the rest.

    Args:
        text: The turn. Where it closes reasoning that it did not open, the prompt had opened it.
        marks: What calls begin and end with: reasoning tags inside a call are part of it.
    """
    begin = text.find(THINK_CLOSE)
    reasoning: list[str] = []
    said: list[str] = []
    if begin >= 0 and THINK_OPEN not in text[:begin] and not _is_inside(begin, text, marks):
        reasoning.append(text[:begin])
        begin += len(THINK_CLOSE)
    else:
        begin = 0
    while (opened := text.find(THINK_OPEN, begin)) >= 0 and not _call_begins(text, begin, opened, marks):
        said.append(text[begin:opened])
        closed = text.find(THINK_CLOSE, opened) if len(reasoning) < MAX_REASONING else text.rfind(THINK_CLOSE, opened)
        reasoning.append(text[opened + len(THINK_OPEN) : closed if closed >= 0 else len(text)])
        begin = closed + len(THINK_CLOSE) if closed >= 0 else len(text)
    said.append(text[begin:])
    return "\n".join(filter(None, map(str.strip, reasoning))), "".join(said)


def _call_begins(text: str, begin: int, end: int, marks: Sequence[tuple[str, str]]) -> bool:
    return any(text.find(opening, begin, end) >= 0 for opening, _ in marks)


def _is_inside(place: int, text: str, marks: Sequence[tuple[str, str]]) -> bool:
    """Whether a call that began before this place has not ended there."""
    return any(text.rfind(opening, 0, place) > text.rfind(closing, 0, place) for opening, closing in marks)


def call_json(call: ToolCall) -> str:
    """The call as a JSON object."""
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
