"""Tool calls as FunctionGemma writes them: `call:name{key:<escape>text<escape>,other:1}`, values nested."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.chat.parsers import MAX_ARGUMENTS, broken_call, read_json
from agentlab.types import ToolCall, ToolSpec

ESCAPE = "<escape>"
HEAD = re.compile(r"(?:call:)?\s{0,8}([A-Za-z_][\w.-]{0,63})\s{0,8}\{")
BARE = re.compile(r"[^{}\[\],:<]*+")
SPACE = re.compile(r"\s*+")
JSON_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
MAX_DEPTH = 16
MAX_VALUES = 1024
"""Values of one call, those inside lists and objects included."""


class Malformed(Exception):
    """The text is no call; says what must be there instead."""


def read_function_gemma(body: str, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call that stands between <start_function_call> and <end_function_call>."""
    head = HEAD.match(body)
    if head is None:
        return broken_call("a function call must be call:name{key:value}")
    name = head.group(1)
    schema: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
    try:
        return ToolCall(name, Reader(body, head.end()).object(schema.get("properties", {})))
    except Malformed as error:
        return ToolCall(name, {}, str(error))


class Reader:
    """Reads values one after the other; used for one call and thrown away."""

    def __init__(self, text: str, position: int) -> None:
        self._text, self._position = text, position
        self._depth = self._num_values = 0

    def object(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """What follows an opening brace, up to the closing one.

        Raises:
            Malformed: it is no object.
        """
        made: dict[str, Any] = {}
        while not self._take("}"):
            key = self._key()
            if not self._take(":"):
                raise Malformed(f"an argument must be key:value, got {self._text[self._position :][:40]!r}")
            if key in made:
                raise Malformed(f"the argument {key!r} is given twice")
            if len(made) == MAX_ARGUMENTS:
                raise Malformed(f"an object may have {MAX_ARGUMENTS} keys, this has more")
            made[key] = self._value(properties.get(key, {}))
            if not self._take(",") and not self._text.startswith("}", self._position):
                raise Malformed("the closing '}' of the call is missing")
        return made

    def _key(self) -> str:
        self._skip()
        key = self._escaped() if self._text.startswith(ESCAPE, self._position) else self._bare()
        if not key:
            missing = self._position >= len(self._text)
            raise Malformed("the closing '}' of the call is missing" if missing else "an argument must be key:value")
        return key

    def _value(self, schema: Mapping[str, Any]) -> Any:
        self._num_values += 1
        if self._num_values > MAX_VALUES or self._depth > MAX_DEPTH:
            raise Malformed("the call holds too many values, or is nested too deeply")
        self._skip()
        if self._text.startswith(ESCAPE, self._position):
            text = self._escaped()
            return typed(text, schema) if schema.get("type") in ("integer", "number", "boolean") else text
        self._depth += 1
        try:
            if self._take("{"):
                return self.object(schema.get("properties", {}))
            if self._take("["):
                return self._list(schema.get("items", {}))
        finally:
            self._depth -= 1
        return typed(self._bare(), schema)

    def _list(self, items: Mapping[str, Any]) -> list[Any]:
        made: list[Any] = []
        while not self._take("]"):
            made.append(self._value(items))
            if not self._take(",") and not self._text.startswith("]", self._position):
                raise Malformed("the closing ']' of a list is missing")
        return made

    def _escaped(self) -> str:
        begin = self._position + len(ESCAPE)
        end = self._text.find(ESCAPE, begin)
        if end < 0:
            raise Malformed("the closing '}' of the call is missing: a text has no second <escape>")
        self._position = end + len(ESCAPE)
        self._skip()
        return self._text[begin:end]

    def _bare(self) -> str:
        found = BARE.match(self._text, self._position)
        assert found is not None
        self._position = found.end()
        return found.group().strip()

    def _take(self, character: str) -> bool:
        self._skip()
        taken = self._text.startswith(character, self._position)
        self._position += taken
        return taken

    def _skip(self) -> None:
        found = SPACE.match(self._text, self._position)
        assert found is not None
        self._position = found.end()


def typed(text: str, schema: Mapping[str, Any]) -> Any:
    """A value that is written without quotes: text where only text is wanted, else JSON if it fits."""
    kinds = {option.get("type") for option in schema.get("anyOf", [schema])}
    if kinds == {"string"}:
        return text
    value, error = read_json(text.strip())
    unwanted = "string" in kinds and JSON_KINDS[type(value)] not in kinds
    return text if error is not None or unwanted else value
