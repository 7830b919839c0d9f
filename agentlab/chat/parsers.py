"""The syntaxes in which models call tools: described, parsed and written; no input raises."""

import abc
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from agentlab.chat.described import signatures as signatures
from agentlab.chat.examples import example_call as example_call
from agentlab.chat.reasoning import THINK_CLOSE, THINK_OPEN
from agentlab.types import ToolCall, ToolSpec

MAX_CALLS = 64
"""Calls of one turn that are read; what a turn says beyond them is one call with an error."""
MAX_ARGUMENTS = 64
"""Arguments of one call that is not JSON."""
MAX_REASONING = 64
"""Parts of reasoning of one turn that are told apart; after them all up to the last </think> is one."""
MAX_JSON_OBJECTS = 4096
"""Objects that the JSON of one call may hold."""


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
        rest, payloads = between(text, "<tool_call>", "</tool_call>")
        return rest, [call_from_json(payload) for payload in payloads]

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these tools:\n{signatures(tools)}\n"
            f"To call one, reply with its name and arguments as JSON, like this:\n{self.render(example_call(tools[0]))}"
        )


@final
class JSONCalls(ToolCallParser):
    """The whole turn is a JSON object with "name" and "arguments", or a list of them, perhaps fenced."""

    name = "json"
    marks = (('{"', "}"),)

    def render(self, call: ToolCall) -> str:
        return call_json(call)

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        payload = unfenced(text.strip())
        if not payload.startswith(("{", "[")):
            return text, []
        value, error = read_json(payload)
        if error is not None:
            return ("", [broken_call(error)]) if '"name"' in payload else (text, [])
        items = value if isinstance(value, list) else [value]
        if not items or not all(isinstance(item, dict) and "name" in item for item in items):
            return text, []
        return "", [call_from_value(item) for item in items]

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these tools:\n{signatures(tools)}\n"
            f"To call one, reply with nothing but JSON, like this:\n{self.render(example_call(tools[0]))}"
        )


# -- parts that syntaxes share --------------------------------------------------------------------


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


def between(text: str, opening: str, closing: str) -> tuple[str, list[str]]:
    """The text without what stands between tags, and what does; a tag left open reaches to the next.

    Of more than `MAX_CALLS` payloads only one more is read.
    """
    rest: list[str] = []
    payloads: list[str] = []
    begin = 0
    start = text.find(opening)
    while start >= 0 and len(payloads) <= MAX_CALLS:
        rest.append(text[begin:start])
        start += len(opening)
        following = text.find(opening, start)
        limit = following if following >= 0 else len(text)
        closed = text.find(closing, start, limit)
        payloads.append(text[start : closed if closed >= 0 else limit])
        begin = closed + len(closing) if closed >= 0 else limit
        start = following
    if len(payloads) <= MAX_CALLS:
        rest.append(text[begin:])
    return "".join(rest), payloads


def unfenced(text: str) -> str:
    """The inside of a text that is one Markdown code block; other text as it is."""
    if not text.startswith("```"):
        return text
    return text.partition("\n")[2].strip().removesuffix("```").strip()


def call_from_json(payload: str) -> ToolCall:
    """The call that a JSON text holds."""
    value, error = read_json(payload.strip())
    return broken_call(error) if error is not None else call_from_value(value)


def call_from_value(value: Any) -> ToolCall:
    """The call that a JSON value holds: an object with "name" and "arguments" (or "parameters")."""
    if not isinstance(value, dict):
        return broken_call(f"a tool call must be a JSON object, got {type(value).__name__}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return broken_call('a tool call must have a text under "name"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        shown = "null" if arguments is None else type(arguments).__name__
        return ToolCall(name, {}, f'"arguments" must be a JSON object, got {shown}')
    return ToolCall(name, arguments)


def broken_call(error: str) -> ToolCall:
    """A call of which not even the name can be read."""
    return ToolCall("", {}, error)


def read_json(text: str) -> tuple[Any, str | None]:
    """The value of a JSON text, or what is wrong with it."""
    if not text:
        return None, "the tool call is empty"
    if text.count("{") > MAX_JSON_OBJECTS:
        return None, f"the JSON holds more than {MAX_JSON_OBJECTS} objects"
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates), None
    except RecursionError:
        return None, "the JSON is nested too deeply"
    except ValueError as error:
        return None, f"the JSON of the tool call cannot be read: {error!s:.120}"


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is given twice")
    return made


def call_json(call: ToolCall) -> str:
    """The call as a JSON object."""
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)


def with_error(call: ToolCall, error: str) -> ToolCall:
    """The call, marked as one that cannot be run."""
    return dataclasses.replace(call, error=error)
