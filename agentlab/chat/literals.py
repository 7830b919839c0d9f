"""Arguments of calls as Python writes them, `'a', k=[1, None]`: read as literals, never run."""

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 16
MAX_VALUES = 4096
"""Literals of one turn, those inside lists and dictionaries included."""
WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
CLOSING = {"(": ")", "[": "]", "{": "}"}
SPACE = re.compile(r"(?:\s++|#[^\n]*+)*+")
WORD = re.compile(r"[A-Za-z_]\w{0,63}")
KEYWORD = re.compile(r"([A-Za-z_]\w{0,63})\s{0,8}=(?!=)")
NUMBER = re.compile(
    r"[-+]?\s{0,4}(?:0[xXoObB][0-9a-fA-F_]++|(?:[0-9][0-9_]*+(?:\.[0-9_]*+)?|\.[0-9][0-9_]*+)(?:[eE][-+]?[0-9]++)?)(?![\w.])"
)
STRING = re.compile(
    r'([A-Za-z]{0,2})(?:"""((?:[^"\\]++|\\.|"(?!""))*+)"""'
    r"|'''((?:[^'\\]++|\\.|'(?!''))*+)'''"
    r'|"(?!"")((?:[^"\\\n]++|\\.)*+)"'
    r"|'(?!'')((?:[^'\\\n]++|\\.)*+)')",
    re.DOTALL,
)
OPENED = re.compile(r"[A-Za-z]{0,2}(?:\"\"\"|''')")
QUOTED = re.compile(r"[A-Za-z]{0,2}[\"']")
ESCAPE = re.compile(
    r"\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}\n]{1,99}\}|[\\'\"abfnrtv\nxuUN])"
)
SIMPLE = {rf"\{letter}": made for letter, made in zip("\\'\"abfnrtv\n", [*"\\'\"\a\b\f\n\r\t\v", ""], strict=True)}
SURROGATE = re.compile("[\ud800-\udfff]")


class Malformed(Exception):
    """The text is no literal or call; says what must be there instead.

    `unclosed` tells that a text of several lines was opened and never closed, so that nothing after
    it can be told from its contents.
    """

    def __init__(self, text: str, *, unclosed: bool = False) -> None:
        super().__init__(text)
        self.unclosed = unclosed


@dataclass(frozen=True)
class Argument:
    """One argument: its name, unless it is positional, its value, and how it was written."""

    name: str | None
    value: Any
    written: str


class PythonReader:
    """Reads literals and arguments one after the other; used for one turn and thrown away."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text, self.position = text, position
        self._depth = self._num_values = 0

    def arguments(self, closing: str) -> list[Argument]:
        """What follows an opening bracket, up to the closing one, which is taken, too.

        Raises:
            Malformed: they are no literals, or are not closed.
        """
        made: list[Argument] = []
        names: set[str] = set()
        while not self.take(closing):
            named = KEYWORD.match(self.text, self.position)
            if named is None and names:
                raise Malformed(f"after name=value all arguments must be named, got {self._next()}")
            if named is not None:
                if named.group(1) in names:
                    raise Malformed(f"the argument {named.group(1)!r} is given twice")
                names.add(named.group(1))
                self.position = named.end()
            self.skip()
            begin = self.position
            value = self.value()
            made.append(Argument(named and named.group(1), value, self.text[begin : self.position]))
            self._separate(closing)
        return made

    def value(self) -> Any:
        """The literal that begins here.

        Raises:
            Malformed: none does, or JSON has no such value.
        """
        self.skip()
        self._num_values += 1
        if self._num_values > MAX_VALUES or self._depth > MAX_DEPTH:
            raise Malformed("the call holds too many values, or is nested too deeply")
        opening = self.text[self.position : self.position + 1]
        if opening in ("[", "(", "{"):
            self.position += 1
            self._depth += 1
            made = self._dictionary() if opening == "{" else self._sequence(opening)
            self._depth -= 1
            return made
        if QUOTED.match(self.text, self.position):
            return self._string()
        if number := NUMBER.match(self.text, self.position):
            self.position = number.end()
            return _number(number.group())
        word = WORD.match(self.text, self.position)
        if word is None or word.group() not in WORDS:
            raise Malformed(f"a value must be a literal, such as 'text', 1 or [True, None], got {self._next()}")
        self.position = word.end()
        return WORDS[word.group()]

    def take(self, character: str) -> bool:
        """Whether this comes next, spaces and comments aside; it is then taken."""
        self.skip()
        taken = self.text.startswith(character, self.position)
        self.position += len(character) * taken
        return taken

    def skip(self) -> None:
        """Go on to what is neither space nor comment."""
        found = SPACE.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def _separate(self, closing: str) -> None:
        if self.take(",") or self.text.startswith(closing, self.position):
            return
        if self.position >= len(self.text) or self.text.startswith("```", self.position):
            raise Malformed(f"the closing {closing!r} of the call is missing")
        raise Malformed(f"a value must be a literal alone, followed by ',' or {closing!r}, got {self._next()}")

    def _sequence(self, opening: str) -> Any:
        made: list[Any] = []
        closing, comma = CLOSING[opening], False
        while not self.take(closing):
            made.append(self.value())
            self._separate(closing)
            comma = comma or self.text[self.position - 1] == ","
        return made[0] if opening == "(" and len(made) == 1 and not comma else made

    def _dictionary(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while not self.take("}"):
            key = self.value()
            if not isinstance(key, str):
                raise Malformed(f"the keys of a dictionary must be texts, got {key!r:.40}")
            if key in made:
                raise Malformed(f"the key {key!r:.40} is given twice")
            if not self.take(":"):
                raise Malformed(f"after a key of a dictionary there must be ':', got {self._next()}")
            made[key] = self.value()
            self._separate("}")
        return made

    def _string(self) -> str:
        parts: list[str] = []
        while found := STRING.match(self.text, self.position):
            prefix = found.group(1).lower()
            body = next(part for part in found.groups()[1:] if part is not None)
            if prefix not in ("", "r", "u"):
                raise Malformed(f"a text must be a plain literal, without the prefix {found.group(1)!r}")
            self._num_values += 1
            if self._num_values > MAX_VALUES:
                raise Malformed("the call holds too many values")
            parts.append(body if prefix == "r" else unescape(body))
            self.position = found.end()
            self.skip()
        if QUOTED.match(self.text, self.position):
            unclosed = OPENED.match(self.text, self.position) is not None
            raise Malformed(f"the quotes of a text must be closed, got {self._next()}", unclosed=unclosed)
        return "".join(parts)

    def _next(self) -> str:
        return repr(self.text[self.position : self.position + 40])


def python_value(text: str) -> Any:
    """The value of a text that is one literal.

    Raises:
        Malformed: it is none.
    """
    reader = PythonReader(text)
    value = reader.value()
    reader.skip()
    if reader.position < len(text):
        raise Malformed(f"a value must be a literal alone, got {text[:40]!r}")
    return value


def literal(value: Any) -> str:
    """A JSON value as Python writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    if value is None or isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def unescape(body: str) -> str:
    """What stands between quotes, with its escapes decoded as Python does; unknown ones stay as they are.

    Two escapes that are a surrogate pair, as JSON writes them, are the one character that they mean.

    Raises:
        Malformed: an escape is cut short.
    """
    if "\\" not in body:
        return body
    made = ESCAPE.sub(_escape, body)
    if SURROGATE.search(made):
        made = made.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return made


def _escape(found: re.Match[str]) -> str:
    written = found.group()
    if (simple := SIMPLE.get(written)) is not None:
        return simple
    kind, code = written[1], written[2:]
    try:
        if kind == "N" and code:
            return unicodedata.lookup(code[1:-1])
        return chr(int(code, 16)) if kind in "xuU" else chr(int(written[1:], 8))
    except (ValueError, KeyError, OverflowError):
        raise Malformed(f"the escape {written!r} in a text is cut short or names no character") from None


def _number(written: str) -> int | float:
    digits = re.sub(r"\s", "", written)
    try:
        whole = digits.lstrip("-+")[:2].lower() in ("0x", "0o", "0b") or not re.search(r"[.eE]", digits)
        number = int(digits, 0) if whole else float(digits)
    except ValueError:
        raise Malformed(f"Python has no number {digits[:40]!r}") from None
    if not math.isfinite(number):
        raise Malformed(f"the number {digits[:40]!r} is too large")
    return number
