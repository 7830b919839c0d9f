"""Calls in JSON: JSON itself decides where one ends, whatever its texts hold."""

import json
import re
from collections.abc import Sequence
from typing import Any

from agentlab.types import ToolCall, ToolSpec

MAX_CALLS = 64
"""Calls of one turn that are read; what a turn says beyond them is one call with an error."""
MAX_JSON_OBJECTS = 4096
"""Objects that the JSON of one turn may hold."""
BEGINNING = re.compile(r'^[ \t]{0,16}+[{\[]|\{\s*+"(?:name|type|id|arguments|parameters)"\s*+:', re.MULTILINE)
"""Where JSON may begin: at the beginning of a line, or as an object that says its name."""
NAMED = re.compile(r'[{,]\s*+"name"\s*+:\s*+"([^"\\]{1,128})"')
PROSE_FIRST = re.compile(r"\s*+(?:<\|python_tag\|>\s*+)?+(?:```\w{0,16}\s*+)?+[^{\[\s]")
SHOWN_CHARS = 2048
"""Of JSON that cannot be read, the beginning that tells whether it was to be a call."""
SPACE = re.compile(r"\s*+")
FENCES = re.compile(r"```\w{0,16}\s*+```")
BESIDE_NAME = {"name", "type", "id"}
"""Keys that a call without arguments may have."""


class JSONReader:
    """Reads JSON values out of a text; used for one turn and thrown away."""

    def __init__(self) -> None:
        self._num_objects = 0
        self._wrong: str | None = None
        self._decoder = json.JSONDecoder(parse_constant=self._constant, object_pairs_hook=self._object)

    def read(self, text: str, begin: int) -> tuple[Any, int, str | None]:
        """(value, where it ends, what is wrong with it) of the JSON value that begins here.

        Of a value that cannot be read, the end is where reading failed.
        """
        self._wrong = None
        try:
            value, end = self._decoder.raw_decode(text, begin)
        except RecursionError:
            return None, len(text), "the JSON is nested too deeply"
        except json.JSONDecodeError as error:
            return None, max(begin, error.pos), f"the JSON of the tool call cannot be read: {error!s:.120}"
        except ValueError as error:
            return None, len(text), f"the JSON of the tool call cannot be read: {error!s:.120}"
        wrong = self._wrong and f"the JSON of the tool call cannot be read: {self._wrong}"
        return value, end, wrong

    def _constant(self, constant: str) -> None:
        self._wrong = f"{constant} is no JSON value"

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._num_objects += 1
        if self._num_objects > MAX_JSON_OBJECTS:
            raise ValueError(f"it holds more than {MAX_JSON_OBJECTS} objects")
        made = dict(pairs)
        if len(made) < len(pairs):
            self._wrong = "a key is given twice"
        return made


def read_json(text: str) -> tuple[Any, str | None]:
    """The value of a JSON text, or what is wrong with it."""
    if not text:
        return None, "the tool call is empty"
    begin = len(text) - len(text.lstrip())
    value, end, error = JSONReader().read(text, begin)
    if error is None and text[end:].strip():
        return None, f"the JSON of the tool call cannot be read: text follows it, {text[end:].strip()[:40]!r}"
    return value, error


def tagged_calls(text: str, opening: str, closing: str) -> tuple[str, list[ToolCall]]:
    """The text without the calls that stand between tags, and those calls: one object or several in each.

    A tag left open ends with its JSON. Of more than `MAX_CALLS` calls only one more is read.
    """
    rest: list[str] = []
    calls: list[ToolCall] = []
    reader, begin = JSONReader(), 0
    while len(calls) <= MAX_CALLS and (start := text.find(opening, begin)) >= 0:
        rest.append(text[begin:start])
        read, begin = _inside_tags(reader, text, start + len(opening), opening, closing)
        calls += read
    if len(calls) <= MAX_CALLS:
        rest.append(text[begin:])
    return "".join(rest), calls


def _inside_tags(reader: JSONReader, text: str, begin: int, opening: str, closing: str) -> tuple[list[ToolCall], int]:
    """The calls of one pair of tags, and where the text goes on after them."""
    calls: list[ToolCall] = []
    position = _after_space(text, begin)
    while len(calls) <= MAX_CALLS:
        if text.startswith(closing, position) or position >= len(text):
            break
        if calls and text[position] != "{":
            ending = text.find(closing, position)
            if ending < 0 or 0 <= text.find(opening, position) < ending:
                return calls, position
            wrong = broken_call("between the tags of a tool call there must be nothing but JSON")
            return [wrong], ending + len(closing)
        value, position, error = reader.read(text, position)
        if error is not None and value is None:
            return [*calls, broken_call(error)], _tag_end(text, position, opening, closing)
        calls.append(broken_call(error) if error is not None else call_from_value(value))
        position = _after_space(text, position)
    found = text.startswith(closing, position)
    return calls or [broken_call("the tool call is empty")], position + len(closing) * found


def _tag_end(text: str, position: int, opening: str, closing: str) -> int:
    """Where the text goes on after a call that cannot be read: behind its tag, or at the next one."""
    following = text.find(opening, position)
    limit = following if following >= 0 else len(text)
    closed = text.find(closing, position, limit)
    return closed + len(closing) if closed >= 0 else limit


def _after_space(text: str, position: int) -> int:
    found = SPACE.match(text, position)
    assert found is not None
    return found.end()


def untagged_calls(text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
    """The text without its calls, and the calls: JSON objects or lists of them, with or without prose around.

    JSON that is no call is part of the text. It is a call where it has a text under "name" and also
    "arguments" or "parameters", or the name of a tool; after prose it must have the name of a tool.
    """
    names = {tool.name for tool in tools}
    announced = PROSE_FIRST.match(text) is None or not tools
    reader = JSONReader()
    rest: list[str] = []
    calls: list[ToolCall] = []
    begin = position = 0
    for _ in range(2 * MAX_CALLS):
        found = BEGINNING.search(text, position)
        if found is None or len(calls) > MAX_CALLS:
            break
        start = found.start() if found.group().endswith(":") else found.end() - 1
        value, position, error = reader.read(text, start)
        position = max(position, start + 1)
        if value is None:
            read = _broken_calls(text[start : start + SHOWN_CHARS], error or "it is null", names, announced)
        else:
            read = _calls_of(value, error, names, announced)
        if read:
            rest.append(text[begin:start])
            calls += read
            begin = position = len(text) if value is None else position
    return FENCES.sub("", "".join([*rest, text[begin:]])).strip(" ;\n\t") if calls else text, calls


def _calls_of(value: Any, error: str | None, names: set[str], announced: bool) -> list[ToolCall]:
    items = value if isinstance(value, list) else [value]
    if not all(is_call(item, names) and (announced or item["name"] in names) for item in items):
        return []
    return [call_from_value(item) if error is None else broken_call(error) for item in items]


def _broken_calls(written: str, error: str, names: set[str], announced: bool) -> list[ToolCall]:
    """A call that cannot be read, if JSON that begins like this was to be one."""
    named = NAMED.search(written)
    known = named is not None and named.group(1) in names
    meant = announced and named is not None and ('"arguments"' in written or '"parameters"' in written)
    return [broken_call(error)] if known or meant else []


def is_call(value: Any, names: set[str]) -> bool:
    """Whether a JSON value that no tag announces is a call, and no answer."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    return "arguments" in value or "parameters" in value or value["name"] in names


def call_from_value(value: Any) -> ToolCall:
    """The call that a JSON value holds: an object with "name" and "arguments" (or "parameters")."""
    if not isinstance(value, dict):
        return broken_call(f"a tool call must be a JSON object, got {type(value).__name__}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return broken_call('a tool call must have a text under "name"')
    if "arguments" in value and "parameters" in value:
        return ToolCall(name, {}, 'a tool call must have either "arguments" or "parameters", not both')
    if "arguments" not in value and "parameters" not in value:
        others = sorted(set(value) - BESIDE_NAME)
        error = f'the arguments must stand in an object under "arguments", got {", ".join(others)[:80]} beside "name"'
        return ToolCall(name, {}, error if others else None)
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, dict):
        shown = "null" if arguments is None else type(arguments).__name__
        return ToolCall(name, {}, f'"arguments" must be a JSON object, got {shown}')
    return ToolCall(name, arguments)


def broken_call(error: str) -> ToolCall:
    """A call of which not even the name can be read."""
    return ToolCall("", {}, error)
