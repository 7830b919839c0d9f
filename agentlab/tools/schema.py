"""Arguments of tools held against JSON schemas, in words that the model can act on."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab.errors import ConfigError, ToolError, nearest
from agentlab.schemas import compiled, expanded, json_text, tool_schema
from agentlab.types import ToolSpec

SPOKEN = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
KINDS = {bool: "boolean", str: "string", int: "integer", float: "number", type(None): "null"}
KINDS |= {list: "array", tuple: "array", dict: "object"}
LIMITS = {
    "minimum": "must be at least {}",
    "exclusiveMinimum": "must be above {}",
    "maximum": "must be at most {}",
    "exclusiveMaximum": "must be below {}",
    "multipleOf": "must be a multiple of {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "pattern": "must match {}",
    "format": "must have the format {}",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "must have at least {} keys",
    "maxProperties": "must have at most {} keys",
    "const": "must be {}",
}
OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties")


@dataclass(frozen=True)
class Rules:
    """A schema of arguments that is ready to be held against calls."""

    schema: Mapping[str, Any]
    validator: Any
    is_open: bool
    """Whether arguments may be given that the schema does not name."""


def check_schema(spec: ToolSpec) -> None:
    """Refuse a schema that is none, before anything is run.

    Raises:
        ConfigError: it is invalid; names the tool.
    """
    try:
        _rules(json_text(spec.parameters))
    except ConfigError as error:
        raise ConfigError(f"Tool {spec.name!r}: {error}") from error


def check_arguments(name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the schema does not allow, in words that the model can act on.

    An argument that the schema does not name is refused, too, unless it says that there may be more.

    Raises:
        ToolError: an argument is unknown, missing, or not what is wanted.
        ConfigError: the schema is invalid.
    """
    rules = _rules(json_text(schema))
    try:
        text = json.dumps(arguments, allow_nan=False, ensure_ascii=False)
        given = json.loads(text.encode(errors="replace"))  # the validator takes no half of a surrogate pair
        errors = list(rules.validator.iter_errors(given))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"{name}: the arguments must be JSON, but {error}.") from error
    properties = rules.schema["properties"]
    unknown = [] if rules.is_open else [key for key in given if key not in properties]
    if unknown:
        takes = nearest(unknown[0], properties) if properties else " It takes no arguments."
        raise ToolError(f"{name} has no argument {unknown[0]!r}.{takes}")
    missing = [error.kind.property for error in errors if error.kind.name == "required" and not error.instance_path]
    if missing:
        raise ToolError(f"{name} needs the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}.")
    if errors:
        raise ToolError(f"{name}: {words_of(_telling(errors), rules.schema)}")


@functools.lru_cache(512)
def _rules(text: str) -> Rules:
    schema = tool_schema(json.loads(text))
    full = expanded(schema, schema)
    is_open = any(full.get(word, False) is not False for word in OPEN)
    return Rules(schema, compiled(json_text(schema)), is_open)


def _telling(errors: Sequence[Any]) -> Any:
    """The error of several that tells most: of alternatives, in the one that was meant."""
    error = errors[0]
    if error.kind.name not in ("anyOf", "oneOf"):
        return error
    path = list(error.instance_path)
    meant = (
        [branch for branch in error.kind.context if branch and not _is_other_kind(branch, path)]
        if _fits_none(error)
        else []
    )
    if not meant or all(_is_missing(branch, path) for branch in meant):
        return error
    return _telling(min(meant, key=_distance))


def _fits_none(error: Any) -> bool:
    return bool(error.kind.context) and all(error.kind.context)


def _is_other_kind(branch: Sequence[Any], path: list[Any]) -> bool:
    return any(error.kind.name in ("type", "enum", "const") and list(error.instance_path) == path for error in branch)


def _is_missing(branch: Sequence[Any], path: list[Any]) -> bool:
    return all(error.kind.name == "required" and list(error.instance_path) == path for error in branch)


def _distance(branch: Sequence[Any]) -> tuple[int, int, int]:
    """How far a value is from an alternative: a wrong mark of its kind counts most, then the number of faults."""
    marks = sum(error.kind.name in ("const", "enum") for error in branch)
    return marks, len(branch), -max(len(list(error.instance_path)) for error in branch)


def words_of(error: Any, schema: Mapping[str, Any]) -> str:
    """An error of the validator: where, what is wanted, and what is there instead."""
    kind, path = error.kind, list(error.instance_path)
    subject = path_text(path) or "the arguments"
    if kind.name in ("required", "additionalProperties", "unevaluatedProperties", "falseSchema", "propertyNames"):
        return _words_of_key(error, subject, schema)
    if kind.name in ("anyOf", "oneOf"):
        if not _fits_none(error):
            return f"{subject} must fit one alternative, but fits several. Leave out what belongs to the others."
        if all(_is_missing(branch, path) for branch in kind.context):
            needs = (" and ".join(inner.kind.property for inner in branch) for branch in kind.context)
            return f"{subject} must have {', or '.join(dict.fromkeys(needs))}."
    return f"{subject} {_wanted(error)}, got {got(error.instance)}."


def _words_of_key(error: Any, subject: str, schema: Mapping[str, Any]) -> str:
    """An error about a key of an object."""
    kind = error.kind
    if kind.name == "required":
        return f"{subject} needs {kind.property!r}."
    if kind.name == "propertyNames":
        return f"{subject} has a key that is not allowed: {kind.value.message}."
    if kind.name == "falseSchema":
        return f"{subject} may not be given, or has too much in it, got {got(error.instance)}."
    target: Any = schema
    for word in list(error.schema_path)[:-1]:
        target = target[word]
    names = target.get("properties", {})
    return f"{subject} has no {kind.unexpected[0]!r}.{nearest(kind.unexpected[0], names) if names else ''}"


def _wanted(error: Any) -> str:
    """What must hold instead."""
    kind = error.kind
    if kind.name in ("anyOf", "oneOf"):
        options = [
            _wanted(next((e for e in branch if e.kind.name in ("type", "enum", "const")), branch[0]))
            for branch in kind.context
        ]
        return "must be " + " or ".join(dict.fromkeys(option.removeprefix("must be ") for option in options))
    if kind.name == "type":
        kinds = [kind.value] if isinstance(kind.value, str) else list(kind.value)
        return "must be " + " or ".join(SPOKEN.get(name, name) for name in sorted(kinds, key="null".__eq__))
    if kind.name == "enum":
        return "must be one of " + ", ".join(map(repr, kind.value))
    if kind.name in LIMITS:
        value = kind.value
        return LIMITS[kind.name].format(repr(value) if kind.name == "const" else value)
    if kind.name == "uniqueItems":
        return "must have no item twice"
    if kind.name == "not":
        return "must not be what it is"
    return f"is not allowed ({error.message:.120})"


def path_text(path: Sequence[Any]) -> str:
    """Where in the arguments a value stands, as `edits[0].old`."""
    text = "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in path)
    return text.removeprefix(".")


def got(value: Any) -> str:
    """A value and its kind in words."""
    kind = SPOKEN.get(KINDS.get(type(value), ""), type(value).__name__)
    return kind if value is None else f"{kind}: {value!r:.60}"
