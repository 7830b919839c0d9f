"""Tools as the model is told of them: every field of their arguments, however deep, and what it may be."""

import collections
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.errors import ConfigError
from agentlab.schemas import (
    NOTES,
    Schema,
    alternatives,
    argument_schemas,
    expanded,
    is_compound,
    json_text,
    parts_of,
    references_of,
)
from agentlab.types import ToolSpec

MAX_PARTS = 4096
"""Types that the description of one tool may tell."""
MAX_DEFAULT = 80
"""Characters of a default that are told."""
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matching {}",
    "format": "{}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} keys",
    "maxProperties": "at most {} keys",
}
OBJECT_WORDS = ("properties", "patternProperties", "additionalProperties", "required", "propertyNames")
OBJECT_WORDS += ("dependentSchemas", "dependentRequired", "if")
ARRAY_WORDS = ("items", "prefixItems", "contains")


def signatures(tools: Sequence[ToolSpec]) -> str:
    """The tools, a line each: name, arguments with their types, and what it does; then what each field is.

    Raises:
        ConfigError: a tool's arguments have too many parts to be told.
    """
    try:
        return "\n".join(_signature(tool.name, tool.description, json_text(tool.parameters)) for tool in tools)
    except RecursionError as error:
        raise ConfigError("The arguments of a tool are nested too deeply to be told.") from error


@functools.lru_cache(256)
def _signature(name: str, description: str, parameters: str) -> str:
    """One tool; every episode tells the same ones anew."""
    tool = ToolSpec(name, description, json.loads(parameters))
    words = SchemaWords(tool)
    arguments = words.arguments()
    notes = "".join(f"\n  {note}" for note in words.notes)
    return f"- {tool.name}({arguments}){f': {tool.description}' if tool.description else ''}{notes}"


class SchemaWords:
    """Writes the types of one tool's arguments; used once.

    A definition is spelled out where it is first used, and named where it is used again, so that
    recursion ends and nothing is told twice.

    Attributes:
        notes: Descriptions of fields, each under its path.
    """

    def __init__(self, tool: ToolSpec) -> None:
        self.notes: list[str] = []
        self._tool, self._root = tool, tool.parameters
        self._uses = collections.Counter(str(part["$ref"]) for part in parts_of(self._root) if "$ref" in part)
        self._spelled = {"#"}
        self._open = ["#"]
        self._num_parts = 0

    def arguments(self) -> str:
        """All arguments, separated by commas."""
        full = expanded(self._root, self._root)
        choices = argument_schemas({key: part for key, part in full.items() if key != "properties"}, self._root)
        properties = self._root["properties"].items()
        shown = {name: part for name, part in properties if name not in choices or part != choices[name]}
        return ", ".join(self._fields({**full, "properties": shown}, ""))

    def type_of(self, schema: Any, path: str) -> str:
        """What a value may be, in one line."""
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise ConfigError(
                f"Tool {self._tool.name!r}: its arguments have more than {MAX_PARTS} parts, too many to be told. "
                "Offer a tool with a smaller schema."
            )
        full = expanded(schema, self._root)
        self._note(path, full)
        names = references_of(schema) if is_compound(full) else []
        pure = len(names) == 1 and not _without(schema, names)
        again = [name for name in names if name in (self._spelled if pure else self._open)]
        if again:
            rest = _without(schema, again)
            more = [self._text(expanded(rest, self._root), path)] if rest else []
            return " and ".join([*map(_last, again), *more])
        self._spelled.update(names if pure else ())
        self._open += names
        text = self._text(full, path)
        del self._open[len(self._open) - len(names) :]
        return f"{_last(names[0])} {text}" if pure and self._uses[names[0]] > 1 else text

    def _note(self, path: str, schema: Schema) -> None:
        if path and isinstance(text := schema.get("description"), str) and text.strip():
            note = f"{path}: {' '.join(text.split())}"
            if note not in self.notes:
                self.notes.append(note)

    def _text(self, schema: Schema, path: str) -> str:
        if "const" in schema:
            return _json(schema["const"])
        if isinstance(schema.get("enum"), list):
            return " | ".join(map(_json, schema["enum"])) or "never"
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        groups = alternatives(schema)
        if not kinds:
            kinds = ["object"] * any(word in schema for word in OBJECT_WORDS)
            kinds += ["array"] * any(word in schema for word in ARRAY_WORDS)
        if groups and not (kinds == ["object"] and "properties" in schema):
            texts = [self._choice(group, schema, kinds, path) for group in groups]
            text = texts[0] if len(texts) == 1 else " and ".join(f"({one})" for one in texts)
        else:
            text = " | ".join(dict.fromkeys(self._of_kind(kind, schema, path) for kind in kinds)) or "any"
        if schema.get("not") == {}:
            return "never"
        limits = self._limits(schema)
        return f"{text} ({', '.join(limits)})" if limits else text

    def _choice(self, group: Sequence[Any], schema: Schema, kinds: list[str], path: str) -> str:
        base = {key: schema[key] for key in ("type", *OBJECT_WORDS, *ARRAY_WORDS) if key in schema}
        texts = []
        for variant in group:
            full = expanded(variant, self._root)
            adds_to_base = base and not {"type", "const", "enum"} & full.keys()
            texts.append(self.type_of({"allOf": [variant, base]} if adds_to_base else variant, path))
        return " | ".join(dict.fromkeys(texts)) or " | ".join(kinds)

    def _of_kind(self, kind: str, schema: Schema, path: str) -> str:
        if kind == "object":
            fields = self._fields(schema, f"{path}." if path else "")
            return f"{{{', '.join(fields)}}}" if fields else "object"
        return self._list(schema, path) if kind == "array" else kind

    def _list(self, schema: Schema, path: str) -> str:
        first = schema.get("prefixItems", schema.get("items"))
        more = schema.get("items" if "prefixItems" in schema else "additionalItems")
        if isinstance(first, list):
            parts = [self.type_of(part, f"{path}[{index}]") for index, part in enumerate(first)]
            parts += [f"...{self.type_of(more, f'{path}[]')}"] if isinstance(more, Mapping) and more else []
            return f"[{', '.join(parts)}]"
        if not isinstance(first, Mapping) or not first:
            return "array"
        items = self.type_of(first, f"{path}[]")
        return f"array of ({items})" if " | " in items else f"array of {items}"

    def _fields(self, schema: Schema, prefix: str) -> list[str]:
        """The fields of an object, and how they depend on each other."""
        properties, required = schema.get("properties", {}), schema.get("required", ())
        fields = [self._field(name, part, name in required, prefix) for name, part in properties.items()]
        fields += [name for name in required if name not in properties]
        others = schema.get("patternProperties", {})
        fields += [f"keys matching {key}: {self.type_of(part, f'{prefix}*')}" for key, part in others.items()]
        if isinstance(more := schema.get("additionalProperties"), Mapping) and more:
            fields.append(f"any {'other ' if properties else ''}key: {self.type_of(more, f'{prefix}*')}")
        for group in alternatives(schema):
            variants = [f"({', '.join(self._fields(self._variant(part, schema), prefix))})" for part in group]
            fields.append(f"either {' or '.join(variants)}")
        conditions = [
            f"{word} ({', '.join(self._fields(self._variant(schema[word], schema), prefix))})"
            for word in ("if", "then", "else")
            if word in schema and "if" in schema
        ]
        fields += [" ".join(conditions)] if conditions else []
        for name, part in schema.get("dependentSchemas", {}).items():
            fields.append(f"with {name} ({', '.join(self._fields(self._variant(part, schema), prefix))})")
        fields += [f"with {name} ({', '.join(names)})" for name, names in schema.get("dependentRequired", {}).items()]
        return fields

    def _variant(self, part: Any, schema: Schema) -> Schema:
        """One alternative of an object; one that was told before is only named."""
        self._num_parts += 1
        names = references_of(part)
        if names and all(name in self._spelled for name in names):
            return {"required": [f"as {' and '.join(map(_last, names))}"]}
        self._spelled.update(names)
        full = expanded(part, self._root)
        own = full.get("properties", {})
        return {**full, "required": [*full.get("required", ()), *(set(schema.get("required", ())) & own.keys())]}

    def _field(self, name: str, schema: Any, required: bool, prefix: str) -> str:
        text = f"{name}: {self.type_of(schema, f'{prefix}{name}')}"
        full = expanded(schema, self._root)
        if "default" not in full:
            return text if required else f"{text} (optional)"
        default = _json(full["default"])
        default = default if len(default) <= MAX_DEFAULT else f"{default[:MAX_DEFAULT]}…"
        return f"{text} = {default}{' (required)' if required else ''}"

    def _limits(self, schema: Schema) -> list[str]:
        fixed = len(schema.get("prefixItems", ()))  # as many items as are spelled out need no other word
        shown = [
            key for key in LIMITS if key in schema and not (fixed and schema[key] == fixed and key.endswith("Items"))
        ]
        limits = [LIMITS[key].format(schema[key]) for key in shown]
        limits += ["all different"] if schema.get("uniqueItems") else []
        if isinstance(names := schema.get("propertyNames"), Mapping) and names:
            limits.append(f"keys are {self.type_of(names, '')}")
        if "contains" in schema:
            limits.append(f"with {self.type_of(schema['contains'], '')} in it")
        if "not" in schema:
            limits.append(f"not {self.type_of(schema['not'], '')}")
        rest = [{key: value for key, value in part.items() if key not in NOTES} for part in schema.get("allOf", ())]
        return limits + [f"and {self.type_of(part, '')}" for part in rest if part and not alternatives(part)]


def _without(schema: Any, names: Sequence[str]) -> dict[str, Any]:
    """What a schema says beside these references and annotations."""
    kept = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", *NOTES)}
    if schema.get("$ref", names[0]) not in names:
        kept["$ref"] = schema["$ref"]
    if parts := [part for inner in schema.get("allOf", ()) if (part := _without(inner, names))]:
        kept["allOf"] = parts
    return kept


def _last(reference: str) -> str:
    """The name of a definition: the last word of the reference to it."""
    return reference.rpartition("/")[2].lstrip("#") or "(as all arguments)"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
