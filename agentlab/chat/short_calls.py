"""Tool calls as short text, `calculator(12 * 11)`: few tokens, for small models."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

from agentlab.chat.parsers import ToolCallParser, example_call, read_json, signatures
from agentlab.types import ToolCall, ToolSpec

PYTHON_VALUES = {"True": True, "False": False, "None": None}
CLOSING = {"(": ")", "[": "]", "{": "}"}
NAME = r"[A-Za-z_][\w.-]{0,63}"
LINE_CALL = re.compile(rf"^[ \t]*({NAME})[(]", re.MULTILINE)
ACTION = re.compile(rf"^[ \t]*Action:[ \t]*({NAME})[ \t]*([(\[]?)", re.MULTILINE)
ACTION_INPUT = re.compile(r"\s{0,8}Action Input:", re.MULTILINE)
KEYWORD = re.compile(r"\s*([A-Za-z_]\w{0,63})\s*=(?!=)")


@final
class ShortCalls(ToolCallParser):
    """`name(arguments)`: anywhere in the text for a tool on offer, else at the beginning of a line.

    A tool with one parameter takes the text between the parentheses as it is; several are written
    `name=value`, with JSON values or bare text.
    """

    name = "short"

    def render(self, call: ToolCall) -> str:
        return f"{call.name}({render_arguments(call.arguments)})"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        names = sorted((re.escape(tool.name) for tool in tools), key=len, reverse=True)
        pattern = re.compile(rf"(?<![\w.-])({'|'.join(names)})[(]") if names else LINE_CALL
        return _scan(text, pattern, tools)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can use these tools:\n{signatures(tools)}\nTo use one, reply for example {_example(self, tools[0])}"
        )


@final
class ReAct(ToolCallParser):
    """`Action: name[arguments]` on a line of its own, or `Action: name` with `Action Input: arguments`.

    Source: Yao et al. 2022 (arXiv:2210.03629), figure 1, for the bracket form.
    """

    name = "react"

    def render(self, call: ToolCall) -> str:
        return f"Action: {call.name}[{render_arguments(call.arguments)}]"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        return _scan(text, ACTION, tools)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can use these tools:\n{signatures(tools)}\nTo use one, write a line like\n{_example(self, tools[0])}"
        )


def _example(parser: ToolCallParser, tool: ToolSpec) -> str:
    return parser.render(example_call(tool))


def _scan(text: str, pattern: re.Pattern[str], tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
    """All calls whose beginning the pattern finds, and the text around them."""
    rest: list[str] = []
    calls: list[ToolCall] = []
    begin = 0
    while found := pattern.search(text, begin):
        rest.append(text[begin : found.start()])
        raw, begin, error = _raw_arguments(text, found)
        calls.append(ToolCall(found.group(1), {}, error) if error else read_arguments(found.group(1), raw, tools))
    return "".join([*rest, text[begin:]]), calls


def _raw_arguments(text: str, found: re.Match[str]) -> tuple[str, int, str | None]:
    """The text of a call's arguments, where the call ends, and what is wrong with it."""
    opening = text[found.end() - 1] if found.end() > found.start() else ""
    if opening not in "([":
        named = ACTION_INPUT.match(text, found.end())
        if named is None:
            return "", found.end(), None
        stop = _end_of_line(text, named.end())
        return text[named.end() : stop].strip(), stop, None
    end = closing_bracket(text, found.end() - 1)
    if end is None:
        stop = _end_of_line(text, found.end())
        return "", stop, f"the closing {CLOSING[opening]!r} of the call is missing"
    return text[found.end() : end].strip(), end + 1, None


def _end_of_line(text: str, begin: int) -> int:
    end = text.find("\n", begin)
    return len(text) if end < 0 else end


def closing_bracket(text: str, begin: int) -> int | None:
    """Where the bracket at `begin` is closed on its line, other brackets and quoted text skipped.

    Brackets that do not pair and quotes that do not close are taken as text: then the last closing
    bracket of the kind on the line counts.
    """
    line_end = _end_of_line(text, begin)
    waiting: list[str] = []
    position = begin
    while position < line_end:
        character = text[position]
        if character == '"':
            position = _end_of_string(text, position, line_end)
        elif character in CLOSING:
            waiting.append(CLOSING[character])
        elif waiting and character == waiting[-1]:
            waiting.pop()
            if not waiting:
                return position
        position += 1
    last = text.rfind(CLOSING[text[begin]], begin, line_end)
    return last if last >= 0 else None


def _end_of_string(text: str, begin: int, line_end: int) -> int:
    """Where a double-quoted string ends; its beginning, if it never does."""
    position = begin + 1
    while position < line_end:
        if text[position] == "\\":
            position += 1
        elif text[position] == '"':
            return position
        position += 1
    return line_end


def read_arguments(name: str, raw: str, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call with arguments as short text: JSON, `name=value, …`, or the one parameter's value."""
    schema: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
    properties = schema.get("properties", {})
    if not raw:
        return ToolCall(name)
    if raw.startswith("{"):
        value, error = read_json(raw)
        if error is None and isinstance(value, dict):
            return ToolCall(name, value)
    pairs = _keyword_arguments(raw, properties)
    if pairs is not None:
        if len(dict(pairs)) < len(pairs):
            return ToolCall(name, {}, "an argument is given twice")
        return ToolCall(name, {key: _value(text, properties.get(key, {})) for key, text in pairs})
    wanted = schema.get("required") or list(properties)
    if len(wanted) > 1:
        return ToolCall(name, {}, f"arguments must be written name=value, for {', '.join(wanted)}")
    only = wanted[0] if wanted else "input"
    return ToolCall(name, {only: _value(raw, properties.get(only, {}))})


def _keyword_arguments(raw: str, properties: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """`a=1, b=text` as pairs; None if the text is not of this form or names no parameter."""
    pairs: list[tuple[str, str]] = []
    for part in split_commas(raw):
        found = KEYWORD.match(part)
        if found is None:
            return None
        pairs.append((found.group(1), part[found.end() :].strip()))
    known = not properties or any(name in properties for name, _ in pairs)
    return pairs if known else None


def split_commas(text: str) -> list[str]:
    """The parts of a text between commas that stand in no bracket and no double-quoted string."""
    parts: list[str] = []
    depth = begin = position = 0
    while position < len(text):
        character = text[position]
        if character == '"':
            position = _end_of_string(text, position, len(text))
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth = max(0, depth - 1)
        elif character == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
        position += 1
    return [*parts, text[begin:]]


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A value as written: quoted or not where text is wanted, JSON where something else is."""
    value, error = read_json(text)
    if error is not None:
        quoted = len(text) >= 2 and text[0] == text[-1] == "'"
        return text[1:-1] if quoted else PYTHON_VALUES.get(text, text)
    return text if schema.get("type") == "string" and not isinstance(value, str) else value


def render_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments as short text, such that reading it gives them back."""
    if len(arguments) == 1:
        only = next(iter(arguments.values()))
        if isinstance(only, str) and _is_plain(only):
            return only
    return keyword_text(arguments)


def keyword_text(arguments: Mapping[str, Any]) -> str:
    """Arguments as `name=value, …` with JSON values."""
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())


def _is_plain(text: str) -> bool:
    """Whether a text reads as itself between brackets."""
    return (
        bool(re.fullmatch(r"[\w+\-*/.%][\w +\-*/.%]*", text))
        and text == text.strip()
        and read_json(text)[1] is not None
    )
