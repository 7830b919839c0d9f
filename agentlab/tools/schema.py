"""JSON schemas from signatures, and arguments checked against them."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from agentlab.errors import ConfigError, ToolError, nearest

SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
SPOKEN = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"} | {
    "null": "null",
    "array": "a list",
    "object": "an object",
}
ARGS_SECTION = re.compile(r"^Args:\s*$", re.MULTILINE)
ARGUMENT_LINE = re.compile(r"^ {4}(\w+): ?(.*)$")


def parameters_of(function: Callable[..., Any], name: str, docstring: str = "") -> dict[str, Any]:
    """The JSON schema of a function's arguments; descriptions come from the docstring's "Args:".

    Raises:
        ConfigError: a parameter has no annotation, or one that JSON cannot carry.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(called)
    except (NameError, TypeError) as error:
        raise ConfigError(f"Tool {name!r}: its annotations cannot be read ({error}). Use types that exist.") from error
    said = argument_descriptions(docstring)
    properties: dict[str, Any] = {}
    required: list[str] = []
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            schema["additionalProperties"] = True
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"Tool {name!r}: {parameter} cannot be given by name. Use ordinary parameters.")
        if parameter.name not in hints:
            raise ConfigError(
                f"Tool {name!r}: parameter {parameter.name!r} needs an annotation, e.g. `{parameter.name}: str`."
            )
        properties[parameter.name] = schema_of(hints[parameter.name], f"Tool {name!r}: parameter {parameter.name!r}")
        if parameter.name in said:
            properties[parameter.name]["description"] = said[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return schema


def schema_of(hint: Any, where: str) -> dict[str, Any]:
    """The JSON schema of one annotation.

    Raises:
        ConfigError: JSON cannot carry it.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    if origin is typing.Annotated:
        return schema_of(arguments[0], where)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(argument, where) for argument in arguments]}
    if (origin or hint) in (list, tuple) or _is_abstract_sequence(origin or hint):
        return {"type": "array", **({"items": schema_of(arguments[0], where)} if arguments else {})}
    if (origin or hint) is dict or (isinstance(origin or hint, type) and issubclass(origin or hint, Mapping)):
        return {"type": "object"}
    raise ConfigError(
        f"{where} has the annotation {hint!r}. Use str, int, float, bool, list, dict, Literal or a union of them."
    )


def _is_abstract_sequence(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Sequence) and not issubclass(kind, str | bytes | bytearray)


def argument_descriptions(docstring: str) -> dict[str, str]:
    """What a docstring's "Args:" section says about each parameter."""
    parts = ARGS_SECTION.split(inspect.cleandoc(docstring), maxsplit=1)
    said: dict[str, str] = {}
    last = None
    for line in parts[1].splitlines() if len(parts) > 1 else ():
        if found := ARGUMENT_LINE.match(line):
            last, said[found.group(1)] = found.group(1), found.group(2).strip()
        elif last and line.startswith(" " * 5):
            said[last] = f"{said[last]} {line.strip()}"
        elif line.strip():
            break
    return said


def description_of(docstring: str) -> str:
    """A docstring without its "Args:" section and what follows it."""
    return ARGS_SECTION.split(docstring, maxsplit=1)[0].strip()


def check_arguments(name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the schema does not allow, in words that the model can act on.

    Raises:
        ToolError: an argument is unknown, missing or of the wrong type.
    """
    properties = schema["properties"]
    for given in arguments:
        if given not in properties and not schema.get("additionalProperties"):
            takes = nearest(given, properties) if properties else " It takes no arguments."
            raise ToolError(f"{name} has no argument {given!r}.{takes}")
    if missing := [needed for needed in schema["required"] if needed not in arguments]:
        raise ToolError(f"{name} needs the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}.")
    for given, value in arguments.items():
        if given in properties and not matches(properties[given], value):
            raise ToolError(f"{name}: {given} must be {spoken(properties[given])}, got {_shown(value)}.")


def matches(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a JSON value is what the schema asks for."""
    if "anyOf" in schema:
        return any(matches(option, value) for option in schema["anyOf"])
    if "enum" in schema:
        return any(value == option and type(value) is type(option) for option in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return isinstance(value, list) and all(matches(schema.get("items", {}), item) for item in value)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    python_types = {"string": str, "integer": int, "boolean": bool, "null": type(None), "object": dict}
    return kind is None or type(value) is python_types[kind] or (kind == "object" and isinstance(value, Mapping))


def spoken(schema: Mapping[str, Any]) -> str:
    """The schema of one argument in words."""
    if "anyOf" in schema:
        return " or ".join(spoken(option) for option in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    return SPOKEN.get(schema.get("type", ""), "anything")


def _shown(value: Any) -> str:
    kinds = {
        bool: "boolean",
        str: "string",
        int: "integer",
        float: "number",
        type(None): "null",
        list: "array",
        dict: "object",
    }
    kind = SPOKEN.get(kinds.get(type(value), ""), type(value).__name__)
    return kind if value is None else f"{kind}: {value!r:.60}"
