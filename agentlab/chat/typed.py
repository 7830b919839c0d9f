"""Values that a syntax writes without quotes, read by the types that a tool's schema admits."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.chat.json_calls import read_json
from agentlab.chat.literals import Malformed, python_value
from agentlab.types import ToolSpec

JSON_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
MAX_NESTING = 8
"""How deep references and alternatives of a schema are followed."""


def parameters_of(name: str, tools: Sequence[ToolSpec]) -> Mapping[str, Any] | None:
    """The schema of a tool's arguments; None where there is no tool of the name."""
    return next((tool.parameters or {} for tool in tools if tool.name == name), None)


def properties_of(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The arguments that a schema names, each with its own schema; their order is that of its calls."""
    found = (schema or {}).get("properties")
    return found if isinstance(found, Mapping) else {}


def kinds(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema admits; empty where it does not limit them.

    Args:
        root: The schema in which local references are looked up.
    """
    if not isinstance(schema, Mapping) or depth > MAX_NESTING:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return kinds(_referred(reference, root or {}), root, depth + 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(JSON_KINDS.get(type(value), "object") for value in values)
    stated = schema.get("type")
    if stated is not None:
        return frozenset([stated] if isinstance(stated, str) else filter(_is_text, stated))
    for word in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(word), list):
            admitted = [kinds(option, root, depth + 1) for option in options]
            return frozenset().union(*admitted) if all(admitted) else frozenset()
    if isinstance(parts := schema.get("allOf"), list):
        limits = [limit for part in parts if (limit := kinds(part, root, depth + 1))]
        return frozenset.intersection(*limits) if limits else frozenset()
    return frozenset()


def typed(text: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """A value that is written without quotes: text where only text is wanted, else JSON or Python if it fits.

    Where text is admitted beside other types, what reads as one of those is one of those.
    """
    admitted = kinds(schema, root)
    if admitted == {"string"}:
        return text
    value, error = read_json(text.strip())
    if error is not None:
        try:
            value = python_value(text)
        except Malformed:
            return text
    return text if "string" in admitted and not fits(value, admitted) else value


def fits(value: Any, admitted: frozenset[str]) -> bool:
    """Whether a JSON value is of one of these types; any is where none is named."""
    kind = JSON_KINDS[type(value)]
    return not admitted or kind in admitted or (kind == "integer" and "number" in admitted)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
