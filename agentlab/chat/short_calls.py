"""Tool calls as short text, `calculator(12 * 11)`: few tokens, for small models."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from agentlab.chat.parsers import MAX_ARGUMENTS, MAX_CALLS, ToolCallParser, example_call, read_json, signatures
from agentlab.types import ToolCall, ToolSpec

PYTHON_VALUES = {"True": True, "False": False, "None": None}
PYTHON_WORD = re.compile(r"\b(?:True|False|None)\b")
MAX_BRACKETS = 256
"""Brackets and quotes of one call that are paired; with more, they are taken as text."""
SIGNIFICANT = re.compile(r'["()\[\]{}]')
SEPARATING = re.compile(r'["()\[\]{},]')
STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
NAME = r"[A-Za-z_][\w.-]{0,63}"
LINE_CALL = re.compile(rf"^[ \t]*({NAME})[(]", re.MULTILINE)
ACTION = re.compile(rf"\n[ \t]{{0,16}}Action:[ \t]*({NAME})[ \t]*([(\[]?)")
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
        if not names:
            return _scan(text, LINE_CALL, tools)
        # A look-behind in the pattern would keep `re` from searching for the names' first letters.
        return _scan(text, re.compile(rf"({'|'.join(names)})[(]"), tools, stands=_begins_word)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        example = _example(tools[0], "{}({})")
        return f"You can use these tools:\n{signatures(tools)}\nTo use one, reply for example {example}"


@final
class ReAct(ToolCallParser):
    """`Action: name[arguments]` on a line of its own, or `Action: name` with `Action Input: arguments`.

    Source: Yao et al. 2022 (arXiv:2210.03629), figure 1, for the bracket form.
    """

    name = "react"
    marks = (("Action:", "\n"),)

    def render(self, call: ToolCall) -> str:
        return f"Action: {call.name}[{render_arguments(call.arguments)}]"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        return _scan(f"\n{text}", ACTION, tools)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        example = _example(tools[0], "Action: {}[{}]")
        return f"You can use these tools:\n{signatures(tools)}\nTo use one, write a line like\n{example}"


def _example(tool: ToolSpec, form: str) -> str:
    """A call as text, with names wherever a lone value would not tell which argument it is."""
    arguments = example_call(tool).arguments
    wanted = tool.parameters["required"] or tool.parameters["properties"]
    return form.format(tool.name, render_arguments(arguments) if len(wanted) == 1 else keyword_text(arguments))


def _scan(
    text: str, pattern: re.Pattern[str], tools: Sequence[ToolSpec], *, stands: Callable[[str, int], bool] | None = None
) -> tuple[str, list[ToolCall]]:
    """All calls whose beginning the pattern finds, and the text around them.

    Args:
        stands: Whether a call may begin at this place of the text.
    """
    rest: list[str] = []
    calls: list[ToolCall] = []
    begin = 0
    while len(calls) <= MAX_CALLS and (found := pattern.search(text, begin)):
        rest.append(text[begin : found.start()])
        if stands is not None and not stands(text, found.start()):
            rest.append(found.group())
            begin = found.end()
            continue
        raw, begin, error = _raw_arguments(text, found)
        calls.append(ToolCall(found.group(1), {}, error) if error else read_arguments(found.group(1), raw, tools))
    return "".join([*rest, text[begin:]]), calls


def _begins_word(text: str, place: int) -> bool:
    before = text[place - 1 : place]
    return not (before.isalnum() or before in ("_", ".", "-"))


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


def closing_bracket(text: str, begin: int, end: int | None = None) -> int | None:
    """Where the bracket at `begin` is closed before `end`, other brackets and quoted text skipped.

    Brackets that do not pair and quotes that do not close are taken as text, and so are all where
    there are more than `MAX_BRACKETS`: then the last closing bracket of the kind counts.

    Args:
        end: By default the end of the line.
    """
    end = _end_of_line(text, begin) if end is None else end
    waiting: list[str] = []
    position = begin
    for _ in range(MAX_BRACKETS):
        found = SIGNIFICANT.search(text, position, end)
        if found is None:
            break
        character, position = found.group(), found.end()
        if character == '"':
            quoted = STRING.match(text, found.start(), end)
            position = quoted.end() if quoted else end
        elif character in CLOSING:
            waiting.append(CLOSING[character])
        elif waiting and character == waiting[-1]:
            waiting.pop()
            if not waiting:
                return found.start()
    last = text.rfind(CLOSING[text[begin]], begin, end)
    return last if last >= 0 else None


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


def split_commas(text: str) -> Iterator[str]:
    """The parts of a text between commas that stand in no bracket and no double-quoted string.

    After `MAX_ARGUMENTS` parts, or `MAX_BRACKETS` brackets, quotes and commas, the rest is one part.
    """
    depth = begin = position = num_parts = 0
    for _ in range(MAX_BRACKETS):
        found = SEPARATING.search(text, position)
        if found is None or num_parts == MAX_ARGUMENTS:
            break
        character, position = found.group(), found.end()
        if character == '"':
            quoted = STRING.match(text, found.start())
            position = quoted.end() if quoted else len(text)
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth = max(0, depth - 1)
        elif depth == 0:
            yield text[begin : found.start()]
            begin = position
            num_parts += 1
    yield text[begin:]


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A value as written: quoted or not where text is wanted, JSON or Python where something else is."""
    value, error = read_json(text)
    if error is None:
        return text if schema.get("type") == "string" and not isinstance(value, str) else value
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    if text in PYTHON_VALUES:
        return PYTHON_VALUES[text]
    if text[:1] in ("[", "{") and schema.get("type") != "string":
        return _python_value(text)
    return text


def _python_value(text: str) -> Any:
    """A list or dictionary as Python writes it, if it has no double quotes; else the text."""
    named = PYTHON_WORD.sub(lambda word: {"True": "true", "False": "false", "None": "null"}[word.group()], text)
    value, error = read_json(named if '"' in text else named.replace("'", '"'))
    return text if error is not None else value


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
