"""JSON schemas of tools: brought into one form, followed through their references, compiled."""

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from agentlab.errors import ConfigError

MAX_DEPTH = 64
DIALECTS = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(19-09|20-12))/schema#?\Z")
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLES = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
SINGLES += ("contains", "propertyNames", "not", "if", "then", "else")
CONDITIONS = ("if", "then", "else")
MAY_BE_NULL = ("default", "const")
LIMITS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}
NOTES = ("title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly", "$comment")
Schema = Mapping[str, Any]


def tool_schema(schema: Any) -> dict[str, Any]:
    """The schema of a tool's arguments in the form that all readers of it may rely on.

    "type" is "object"; "properties" names every argument, also those that stand only behind a
    reference or in an alternative; "required" is a list. Null stands nowhere but where it is a
    value. References inside the arguments are kept: `expanded` follows them.

    Raises:
        ConfigError: it describes no object, is nested too deeply, or has a reference that leads
            nowhere, in a circle, or out of the schema.
    """
    if not isinstance(schema, Mapping):
        raise ConfigError(f"a schema must be a mapping like {{'type': 'object'}}, got {type(schema).__name__}.")
    return json.loads(_in_one_form(json_text(without_nulls(schema))))


@functools.lru_cache(512)
def _in_one_form(text: str) -> str:
    """`tool_schema` of JSON text; every episode makes the same tools anew."""
    root = json.loads(text)
    if any(isinstance(part.get("items"), list) or "dependencies" in part for part in parts_of(root)):
        root.setdefault("$schema", DRAFT_7)  # the last draft in which that means anything
    _check_keywords(root)
    for part in parts_of(root):
        if "$dynamicRef" in part or "$recursiveRef" in part:
            raise ConfigError("dynamic references are not followed. Write a plain $ref.")
        if "$ref" in part or "allOf" in part:
            expanded(part, root)
    top = expanded(root, root)
    kinds = top.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise ConfigError(f"arguments are an object, but the schema says type {json.dumps(kinds)}.")
    if not isinstance(top.get("const", {}), Mapping):
        raise ConfigError(f"arguments are an object, but the schema says they are {json.dumps(top['const'])}.")
    properties = argument_schemas(root, root)
    behind = argument_schemas({key: part for key, part in root.items() if key != "properties"}, root)
    own = root.get("properties", {})  # where it only repeats what stands behind, it was put there by this function
    properties |= {name: part for name, part in own.items() if name in behind and part == behind[name]}
    return json_text({**root, "type": "object", "properties": properties, "required": top.get("required", [])})


def without_nulls(schema: Any, depth: int = 0) -> Any:
    """The schema without keywords that are null, as some servers write what is empty.

    Raises:
        ConfigError: it is nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(f"a schema may be nested {MAX_DEPTH} deep, this is deeper.")
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in MAPS and isinstance(value, Mapping):
            made[key] = {name: without_nulls({} if part is None else part, depth + 1) for name, part in value.items()}
        elif key in MAPS and value == []:
            made[key] = {}  # as PHP writes an empty object
        elif key in LISTS and isinstance(value, list):
            made[key] = [without_nulls(part, depth + 1) for part in value]
        elif key in SINGLES:
            made |= {} if value is None else {key: without_nulls(value, depth + 1)}
        elif value is not None or key in MAY_BE_NULL:
            made[key] = value
    return made


def parts_of(schema: Any) -> Iterator[Schema]:
    """The schema and all that stand in it, definitions included."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key, value in schema.items():
        inner: Any = ()
        if key in MAPS and isinstance(value, Mapping):
            inner = value.values()
        elif key in LISTS and isinstance(value, list):
            inner = value
        elif key in SINGLES:
            inner = (value,)
        for part in inner:
            yield from parts_of(part)


def followed(reference: str, root: Schema) -> Any:
    """The schema that a reference within `root` leads to.

    Raises:
        ConfigError: it leads nowhere, or out of the schema.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise ConfigError(f"the reference {reference!r} leads out of the schema. Put what it means into $defs.")
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        target = next((part for part in parts_of(root) if part.get("$anchor") == pointer), None)
        if target is None:
            raise ConfigError(f"the reference {reference!r} leads nowhere.")
        return target
    target: Any = root
    try:
        for word in pointer.split("/")[1:]:
            name = word.replace("~1", "/").replace("~0", "~")
            target = target[int(name) if isinstance(target, list) else name]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"the reference {reference!r} leads nowhere.") from error
    return target


def references_of(schema: Any) -> list[str]:
    """The definitions of which a schema is made: its own reference, and those in its `allOf`."""
    if not isinstance(schema, Mapping):
        return []
    own = [str(schema["$ref"])] if "$ref" in schema else []
    return own + [name for part in _list(schema.get("allOf")) for name in references_of(part)]


def expanded(
    schema: Any, root: Schema, seen: frozenset[str] = frozenset(), known: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A schema with what its own `$ref` and `allOf` say merged into it; those of its parts stay.

    What cannot be merged stays in "allOf". True is {}, false is {"not": {}}.

    Raises:
        ConfigError: a reference leads nowhere, in a circle, or out of the schema.
    """
    if schema is False:
        return {"not": {}}
    if not isinstance(schema, Mapping):
        return {}
    known = {} if known is None else known
    made = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
    if "$ref" in schema:
        reference = schema["$ref"]
        if reference in seen:
            raise ConfigError(f"the reference {reference!r} leads back to itself.")
        if reference not in known:
            known[reference] = expanded(followed(reference, root), root, seen | {reference}, known)
        made = _merged(made, known[reference])
    for part in _list(schema.get("allOf")):
        made = _merged(made, expanded(part, root, seen, known))
    return made


def _merged(first: Schema, second: Schema) -> dict[str, Any]:
    """What allows only what both allow; annotations are those of the first."""
    made: dict[str, Any] = {**first, **{k: v for k, v in second.items() if k not in first and k not in MAPS[3:]}}
    rest: dict[str, Any] = {}
    shared = (first.keys() & second.keys()) - set(MAPS[3:]) - set(NOTES) - {"$schema", "$id"}
    for key in sorted(shared):
        a: Any = first[key]
        b: Any = second[key]
        if a == b and type(a) is type(b):
            continue
        if key == "properties":
            both = {name: {"allOf": [part, b[name]]} for name, part in a.items() if name in b and part != b[name]}
            made[key] = {**b, **a, **both}
        elif key == "required":
            made[key] = list(dict.fromkeys([*a, *b]))
        elif key == "allOf":
            made[key] = [*a, *b]
        elif key == "enum":
            made[key] = [value for value in a if value in b]
        elif key == "type":
            made[key] = _common_types(a, b)
        elif key in LIMITS and not isinstance(a, bool) and not isinstance(b, bool):
            made[key] = LIMITS[key](a, b)
        else:
            rest[key] = b
    return {**made, "allOf": [*made.get("allOf", []), rest]} if rest else made


def _common_types(a: Any, b: Any) -> Any:
    first, second = ([kinds] if isinstance(kinds, str) else list(kinds) for kinds in (a, b))
    common = [kind for kind in first if kind in second]
    common += [kind for kind in ("integer",) if kind in first + second and "number" in first + second]
    common = list(dict.fromkeys(common))
    return common[0] if len(common) == 1 else common


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def alternatives(schema: Schema) -> list[list[Any]]:
    """The choices that an expanded schema leaves: one list for each `anyOf` and `oneOf`."""
    groups = [_list(schema.get(key)) for key in ("anyOf", "oneOf")]
    groups += [group for part in _list(schema.get("allOf")) for group in alternatives(part)]
    return [group for group in groups if group]


def argument_schemas(schema: Any, root: Schema, seen: set[str] | None = None) -> dict[str, Any]:
    """Every argument that a schema of an object names, with what it may be.

    An argument of several alternatives may be what any of them says.

    Args:
        seen: References that were followed before; they are not followed again.
    """
    if not isinstance(schema, Mapping):
        return {}
    seen = set() if seen is None else seen
    reference = schema.get("$ref")
    if reference is not None:
        if reference in seen:
            return {}
        seen.add(reference)
    full = expanded(schema, root)
    named = {name: _readable(part, root) for name, part in full.get("properties", {}).items()}
    added: dict[str, list[Any]] = {}
    for variant in (variant for group in alternatives(full) for variant in group):
        for name, part in argument_schemas(variant, root, seen).items():
            added.setdefault(name, []).append(part)
    for variant in (*(full.get(key) for key in CONDITIONS), *full.get("dependentSchemas", {}).values()):
        for name in argument_schemas(variant, root, seen):
            added.setdefault(name, []).append({})  # what it may be depends on the others
    for name, parts in added.items():
        distinct = [part for index, part in enumerate(parts) if part not in parts[:index]]
        named.setdefault(name, distinct[0] if len(distinct) == 1 else {} if {} in distinct else {"anyOf": distinct})
    return named


def _readable(schema: Any, root: Schema) -> dict[str, Any]:
    """The schema of one argument: its type can be read off, unless what it is made of is an object or a list.

    Those keep their reference, by which they are told once and not again.
    """
    made = expanded(schema, root)
    if not isinstance(schema, Mapping) or not is_compound(made):
        return made
    if references_of(schema):
        return dict(schema)
    simple = {
        key: [_readable(part, root) for part in _list(made.get(key))] for key in ("anyOf", "oneOf") if key in made
    }
    return made | simple


def is_compound(schema: Schema) -> bool:
    """Whether an expanded schema has schemas in it."""
    return next((True for part in parts_of(schema) if part is not schema), False)


@functools.lru_cache(512)
def compiled(text: str) -> Any:
    """The validator of a schema that is given as JSON text.

    The drafts from 4 to 2020-12 are told apart by "$schema"; without one it is 2020-12. Nothing is
    ever fetched. Of the validators for Python this one (jsonschema-rs) knows all of these drafts,
    imports in 0.03 s (0.07 s the first time) and checks a call in 0.3 µs. `jsonschema` takes 1.1 s (3.4 s)
    to be imported where rfc3987-syntax is installed, as on Colab and beside JupyterLab, which
    `python -X importtime -c "import jsonschema"` shows; `fastjsonschema` knows no later draft
    than 7, and so neither prefixItems nor what stands beside a reference.

    Raises:
        ConfigError: the schema is invalid.
    """
    import jsonschema_rs

    with _invalid():
        return jsonschema_rs.validator_for(json.loads(text), retriever=_never_fetched)


def _check_keywords(root: Any) -> None:
    """Refuse what no draft allows, before anything reads the schema and takes it for what it should be.

    Raises:
        ConfigError: the schema is invalid.
    """
    import jsonschema_rs

    dialect = root.get("$schema", DRAFT_7)
    if not DIALECTS.match(str(dialect)):  # would be fetched
        raise ConfigError(
            f"the schema is invalid: Unknown meta-schema {dialect!r}. Leave $schema out, or name a draft."
        )
    with _invalid():
        jsonschema_rs.meta.validate(root)


@contextlib.contextmanager
def _invalid() -> Iterator[None]:
    import jsonschema_rs

    try:
        yield
    except jsonschema_rs.ValidationError as error:
        path = ".".join(map(str, error.instance_path))
        raise ConfigError(f"the schema is invalid{f' at {path}' if path else ''}: {error.message}") from error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise ConfigError(f"the schema is invalid: {error}") from error


def _never_fetched(address: str) -> Any:
    raise ValueError(f"{address} is not fetched; put what it means into $defs")


def json_text(schema: Any) -> str:
    """A schema as JSON text.

    Raises:
        ConfigError: it holds what JSON cannot carry.
    """
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the schema holds what JSON cannot carry: {error}.") from error
