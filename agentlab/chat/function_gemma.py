"""Tool calls as FunctionGemma writes them: `call:name{key:<escape>text<escape>,other:1}`, values nested."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.chat.json_calls import MAX_CALLS, broken_call
from agentlab.chat.literals import Malformed
from agentlab.chat.typed import kinds, parameters_of, properties_of, typed
from agentlab.types import ToolCall, ToolSpec

ESCAPE = "<escape>"
OPENING, CLOSING = "<start_function_call>", "<end_function_call>"
HEAD = re.compile(r"\s{0,8}(?:call:)?\s{0,8}([A-Za-z_][\w.-]{0,63})\s{0,8}\{")
BARE = re.compile(r"[^{}\[\],:<]*+")
SPACE = re.compile(r"\s*+")
UNQUOTED = {"integer", "number", "boolean", "null"}
MAX_DEPTH = 16
MAX_ARGUMENTS = 64
"""Keys of one object."""
MAX_VALUES = 1024
"""Values of one call, those inside lists and objects included."""


def function_gemma_calls(text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
    """The text without the calls in tags, and those calls; a text between <escape> marks may hold any tag."""
    rest: list[str] = []
    calls: list[ToolCall] = []
    begin = 0
    while len(calls) <= MAX_CALLS and (start := text.find(OPENING, begin)) >= 0:
        rest.append(text[begin:start])
        call, position = read_function_gemma(text, start + len(OPENING), tools)
        following = text.find(OPENING, position)
        limit = following if following >= 0 else len(text)
        closed = text.find(CLOSING, position, limit)
        begin = closed + len(CLOSING) if closed >= 0 else limit
        if call.error is None and text[position : begin if closed < 0 else closed].strip():
            call = ToolCall(call.name, {}, f"after the '}}' of a call there must be {CLOSING}")
        calls.append(call)
    if len(calls) <= MAX_CALLS:
        rest.append(text[begin:])
    return "".join(rest), calls


def read_function_gemma(text: str, begin: int, tools: Sequence[ToolSpec]) -> tuple[ToolCall, int]:
    """The call that begins here, behind its opening tag, and where it ends or cannot be read on."""
    head = HEAD.match(text, begin)
    if head is None:
        return broken_call("a function call must be call:name{key:value}"), begin
    name = head.group(1)
    schema = parameters_of(name, tools) or {}
    reader = Reader(text, head.end(), schema)
    try:
        return ToolCall(name, reader.object(properties_of(schema))), reader.position
    except Malformed as error:
        return ToolCall(name, {}, str(error)), reader.position


class Reader:
    """Reads values one after the other; used for one call and thrown away."""

    def __init__(self, text: str, position: int, root: Mapping[str, Any]) -> None:
        self._text, self.position = text, position
        self._root = root
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
                raise Malformed(f"an argument must be key:value, got {self._text[self.position :][:40]!r}")
            if key in made:
                raise Malformed(f"the argument {key!r} is given twice")
            if len(made) == MAX_ARGUMENTS:
                raise Malformed(f"an object may have {MAX_ARGUMENTS} keys, this has more")
            made[key] = self._value(properties.get(key, {}))
            if not self._take(",") and not self._text.startswith("}", self.position):
                raise Malformed("the closing '}' of the call is missing")
        return made

    def _key(self) -> str:
        self._skip()
        key = self._escaped() if self._text.startswith(ESCAPE, self.position) else self._bare()
        if not key:
            missing = self.position >= len(self._text)
            raise Malformed("the closing '}' of the call is missing" if missing else "an argument must be key:value")
        return key

    def _value(self, stated: Any) -> Any:
        schema = stated if isinstance(stated, Mapping) else {}
        self._num_values += 1
        if self._num_values > MAX_VALUES or self._depth > MAX_DEPTH:
            raise Malformed("the call holds too many values, or is nested too deeply")
        self._skip()
        if self._text.startswith(ESCAPE, self.position):
            text = self._escaped()
            admitted = kinds(schema, self._root)
            return typed(text, schema, self._root) if admitted and admitted <= UNQUOTED else text
        self._depth += 1
        try:
            if self._take("{"):
                return self.object(properties_of(schema))
            if self._take("["):
                return self._list(schema.get("items"))
        finally:
            self._depth -= 1
        return typed(self._bare(), schema, self._root)

    def _list(self, items: Any) -> list[Any]:
        made: list[Any] = []
        while not self._take("]"):
            made.append(self._value(items))
            if not self._take(",") and not self._text.startswith("]", self.position):
                raise Malformed("the closing ']' of a list is missing")
        return made

    def _escaped(self) -> str:
        begin = self.position + len(ESCAPE)
        end = self._text.find(ESCAPE, begin)
        if end < 0:
            raise Malformed("the closing '}' of the call is missing: a text has no second <escape>")
        self.position = end + len(ESCAPE)
        self._skip()
        return self._text[begin:end]

    def _bare(self) -> str:
        found = BARE.match(self._text, self.position)
        assert found is not None
        self.position = found.end()
        return found.group().strip()

    def _take(self, character: str) -> bool:
        self._skip()
        taken = self._text.startswith(character, self.position)
        self.position += taken
        return taken

    def _skip(self) -> None:
        found = SPACE.match(self._text, self.position)
        assert found is not None
        self.position = found.end()
