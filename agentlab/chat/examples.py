"""An example of a call that a tool takes, made from its schema."""

import contextlib
import functools
import itertools
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.schemas import CONDITIONS, Schema, alternatives, compiled, expanded, json_text, references_of
from agentlab.types import ToolCall, ToolSpec

VARIANTS = 8
"""Choices of alternatives that are tried until an example is valid."""
MAX_VALUES, MAX_ITEMS, MAX_LENGTH = 512, 8, 1024
KIND_WORDS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties"),
    "array": ("items", "prefixItems", "contains", "minItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""What tells the type where none is said."""
NUMBER_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TEXTS = ("...", "abc", "ABC", "a", "1", "123", "a1", "a-b", "a.b", "/a", "#ffffff", "1.0.0", "en-US", "a@example.com")
FORMATS = {
    "date": "2025-01-31",
    "time": "12:30:00Z",
    "date-time": "2025-01-31T12:30:00Z",
    "duration": "P1D",
    "email": "a@example.com",
    "idn-email": "a@example.com",
    "hostname": "example.com",
    "idn-hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com",
    "uri-reference": "https://example.com",
    "iri": "https://example.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "json-pointer": "/a",
    "regex": "a+",
}


class Endless(Exception):
    """A value cannot be made because it must hold one of its own kind."""


def example_call(tool: ToolSpec) -> ToolCall:
    """A call of the tool with every required argument, to show the syntax; the tool's schema allows it.

    Only where no example could be found that is allowed, as for a pattern that Python's `re` cannot
    read, is it the nearest.
    """
    return ToolCall(tool.name, json.loads(_example(json_text(tool.parameters))))


@functools.lru_cache(256)
def _example(text: str) -> str:
    root = json.loads(text)
    validator = compiled(text)
    nearest: Any = None
    for given, more, choice in itertools.product((True, False), (False, True), range(VARIANTS)):
        try:
            value = ExampleMaker(root, choice, given=given, more=more).arguments()
        except Endless:
            continue
        if validator.is_valid(value):
            return json.dumps(value)
        nearest = value if nearest is None else nearest
    return json.dumps(nearest or {})


class ExampleMaker:
    """Makes a value that a schema describes; used once.

    Args:
        root: The schema of the arguments, in which references are followed.
        choice: Which of several alternatives is taken.
        given: Whether examples and defaults of the schema itself are taken.
        more: Whether fields that may be left out are filled, too.
    """

    def __init__(self, root: Schema, choice: int, *, given: bool, more: bool) -> None:
        self._root, self._choice, self._given, self._more = root, choice, given, more
        self._open = ["#"]
        self._num_values = 0

    def arguments(self) -> dict[str, Any]:
        """All required arguments, or the first that there is.

        Raises:
            Endless: they would have no end.
        """
        made = self._made(self._root)
        if made or not self._root["properties"]:
            return made
        name, schema = next(iter(self._root["properties"].items()))
        return {name: self.value(schema)}

    def value(self, schema: Any) -> Any:
        """One value.

        Raises:
            Endless: it must hold one of its own kind.
        """
        self._num_values += 1
        names = references_of(schema)
        if self._num_values > MAX_VALUES or any(name in self._open for name in names):
            raise Endless
        self._open += names
        try:
            return self._made(schema)
        finally:
            del self._open[len(self._open) - len(names) :]

    def _made(self, schema: Any) -> Any:
        full = expanded(schema, self._root)
        examples = full.get("examples")
        if self._given and isinstance(examples, list) and examples:
            return examples[0]
        if "const" in full:
            return full["const"]
        if self._given and full.get("default") is not None:
            return full["default"]
        if full.get("enum"):
            return full["enum"][self._choice % len(full["enum"])]
        if full.get("not") == {}:
            raise Endless
        groups = alternatives(full)
        for shift in range(max(map(len, groups), default=0)):
            with contextlib.suppress(Endless):  # then the next alternative
                return self.value(self._chosen(full, self._choice + shift))
        if groups:
            raise Endless
        return self._of_kind(self._conditioned(full))

    def _chosen(self, full: Schema, choice: int) -> dict[str, Any]:
        """A schema with one of its alternatives."""
        chosen = [group[choice % len(group)] for group in alternatives(full)]
        return {"allOf": [*chosen, {key: part for key, part in full.items() if key not in ("anyOf", "oneOf", "allOf")}]}

    def _conditioned(self, full: Schema) -> dict[str, Any]:
        """A schema with what one of its conditions asks for."""
        if "if" not in full:
            return dict(full)
        plain = {key: part for key, part in full.items() if key not in CONDITIONS}
        parts = [full["else"]] if self._choice % 2 and "else" in full else [full["if"], full.get("then", True)]
        return expanded({"allOf": [*parts, plain]}, self._root)

    def _of_kind(self, schema: Schema) -> Any:
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        if not kinds:
            kinds = [kind for kind, words in KIND_WORDS.items() if any(word in schema for word in words)] or ["string"]
        kind = kinds[self._choice % len(kinds)]
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._list(schema)
        if kind in ("integer", "number"):
            return number(schema, is_whole=kind == "integer")
        return {"string": text_of(schema), "boolean": True, "null": None}.get(kind, "...")

    def _object(self, schema: Schema) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), list(schema.get("required", ()))
        made = {name: self.value(properties.get(name, True)) for name in required}
        more = [name for name in properties if name not in made]
        for name in more if self._more else more[:1] if not required else ():
            with contextlib.suppress(Endless):  # it may be left out
                made[name] = self.value(properties[name])
        needs = schema.get("dependentRequired", {})
        for name in [other for given in list(made) for other in needs.get(given, ())]:
            made.setdefault(name, self.value(properties.get(name, True)))
        others = schema.get("additionalProperties", True)
        for index in range(min(schema.get("minProperties", 0) - len(made), MAX_ITEMS)):
            made[f"key{index or ''}"] = self.value(others)
        if isinstance(others, Mapping) and not properties and not made:
            with contextlib.suppress(Endless):  # it may be left out
                made["key"] = self.value(others)
        return made

    def _list(self, schema: Schema) -> list[Any]:
        first = schema.get("prefixItems", schema.get("items"))
        parts = list(first) if isinstance(first, list) else []
        more = schema.get("items" if "prefixItems" in schema else "additionalItems") if parts else first
        wanted = max(schema.get("minItems", 0), len(parts), 1)
        wanted = min(wanted, schema.get("maxItems", wanted), MAX_ITEMS)
        parts += [schema["contains"]] if "contains" in schema else []
        parts += [True if more is None else more] * (wanted - len(parts))
        try:
            made = [self.value(part) for part in parts[:wanted] if part is not False]
        except Endless:
            if schema.get("minItems", 0):
                raise
            return []
        return distinct(made) if schema.get("uniqueItems") else made


def distinct(values: Sequence[Any]) -> list[Any]:
    """The values with equal ones made different where that is easy: counted up, or lengthened."""
    made: list[Any] = []
    for value in values:
        while value in made and isinstance(value, int | float | str) and not isinstance(value, bool):
            value = f"{value}." if isinstance(value, str) else value + 1
        made.append(value)
    return made


def number(schema: Schema, *, is_whole: bool) -> float:
    """A number within the schema's limits: 1 or 1.5 where they allow it."""
    limits = {key: schema[key] for key in NUMBER_LIMITS if type(schema.get(key)) in (int, float)}
    above, below = limits.get("exclusiveMinimum", -math.inf), limits.get("exclusiveMaximum", math.inf)
    low = max(limits.get("minimum", -math.inf), above)
    high = min(limits.get("maximum", math.inf), below)
    step = limits.get("multipleOf") or (1 if is_whole else 0)
    tried = [1 if is_whole else 1.5, low, high, low + 1, high - 1, (low + high) / 2]
    if step:
        around = [bound / step for bound in (low, high, 1) if math.isfinite(bound)]
        tried += [(math.floor(bound) + n) * step for bound in around for n in (0, 1, -1, 2)]
    for value in tried:
        fits = math.isfinite(value) and low <= value <= high and above < value < below
        if fits and not (step and value % step):
            return int(value) if is_whole else value
    return int(tried[0]) if is_whole else tried[0]


def text_of(schema: Schema) -> str:
    """A text of the schema's format, pattern and length."""
    if isinstance(pattern := schema.get("pattern"), str):
        return matching(pattern)
    text = FORMATS.get(schema.get("format", ""), "...")
    text = text.ljust(min(schema.get("minLength", 0), MAX_LENGTH), ".")
    return text[: schema.get("maxLength", len(text))]


def matching(pattern: str) -> str:
    """A text that a pattern finds something in, "..." where `re` cannot read the pattern."""
    try:
        wanted = re.compile(pattern)
    except re.error:  # of a dialect of another language
        return "..."
    if text := next(filter(wanted.search, TEXTS), None):
        return text
    import rstr

    maker = rstr.Rstr(random.Random(0))
    texts = (maker.xeger(pattern) for _ in range(VARIANTS))
    return next(filter(wanted.search, texts), "...")
