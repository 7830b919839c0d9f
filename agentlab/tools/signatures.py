"""Python functions as tools: the schema of their arguments, and arguments of the annotated types, by pydantic."""

import collections.abc
import contextlib
import functools
import inspect
import operator
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentlab.errors import ConfigError, ToolError
from agentlab.schemas import json_text, parts_of, tool_schema
from agentlab.tools.docstrings import argument_descriptions
from agentlab.tools.schema import check_arguments, got, path_text

TAKEN = "Use str, int, float, bool, list, dict, Literal, an Enum, a dataclass, a TypedDict, a date or a union of them"


@dataclass(frozen=True)
class Signature:
    """What a function takes by name.

    Attributes:
        parameters: The JSON schema.
    """

    parameters: Mapping[str, Any]
    named: Any
    """The pydantic adapter of the named arguments."""
    others: Any = None
    """That of all further ones, where the function takes any."""

    def arguments(self, tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from JSON as the function takes them: only those given, of the annotated types.

        Types are held strictly: no text becomes a number. A float without a fraction is an integer
        where one is wanted.

        Raises:
            ToolError: an argument is unknown, missing, or not what is wanted; in words for the model.
        """
        import pydantic
        from pydantic_core import PydanticSerializationError

        try:
            return self._taken(given, _from_json)
        except pydantic.ValidationError as error:
            refused = error
        except PydanticSerializationError:  # text with half a surrogate pair, which no JSON text in UTF-8 can hold
            return self._taken_loosely(tool, given)
        roots = {part["loc"][0] for part in refused.errors(include_url=False) if part["type"] == "int_type"}
        if roots:
            try:
                return self._taken({n: whole_numbers(v) if n in roots else v for n, v in given.items()}, _from_json)
            except pydantic.ValidationError as error:
                refused = error
        check_arguments(tool, self.parameters, given)
        raise ToolError(f"{tool}: {_words(refused, given)}") from refused

    def _taken_loosely(self, tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with the types held by the schema alone."""
        import pydantic

        check_arguments(tool, self.parameters, given)
        try:
            return self._taken(given, lambda adapter, value: adapter.validate_python(value))
        except pydantic.ValidationError as error:
            raise ToolError(f"{tool}: {_words(error, given)}") from error

    def _taken(self, given: Mapping[str, Any], validate: Callable[[Any, Any], dict[str, Any]]) -> dict[str, Any]:
        if self.others is None:
            return validate(self.named, given)
        fields = self.parameters["properties"]
        named = {name: value for name, value in given.items() if name in fields}
        others = {name: value for name, value in given.items() if name not in fields}
        return validate(self.named, named) | validate(self.others, others)


def _from_json(adapter: Any, value: Any) -> dict[str, Any]:
    """Validate as JSON: a date is a text there, and a tuple a list."""
    from pydantic_core import to_json

    return adapter.validate_json(to_json(value, inf_nan_mode="constants"), strict=True)


def whole_numbers(value: Any) -> Any:
    """A JSON value in which every float without a fraction is an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [whole_numbers(item) for item in value]
    if isinstance(value, Mapping):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


def _words(refused: Any, given: Any) -> str:
    """What pydantic alone refuses, as a day that no calendar has, in the words of our other errors."""
    problem = refused.errors(include_url=False)[0]
    value: Any = given
    path: list[Any] = []
    words: Any = problem["loc"]
    for word in words:  # the location also names members of unions, which are no part of the path
        is_key = isinstance(value, Mapping) and word in value
        if is_key or (isinstance(value, list | tuple) and isinstance(word, int) and word < len(value)):
            value = value[word]
            path.append(word)
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):  # which older schemas do not tell
        return f"{path_text(path[:-1]) or 'the arguments'} has no {path[-1]!r}."
    message = problem["msg"]
    if problem["type"] in ("value_error", "assertion_error"):  # of the user's own validator: its text alone
        message = f"is not accepted: {message.partition(', ')[2]}"
    message = re.sub(r"^Input should be", "must be", message)
    return f"{path_text(path) or 'the arguments'} {message}, got {got(value)}."


_KNOWN: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], Signature | str]] = weakref.WeakKeyDictionary()
"""Signatures by function: making one takes a millisecond, and every episode makes its tools anew."""


def signature_of(function: Callable[..., Any], *docstrings: str) -> Signature:
    """What a function takes; descriptions of arguments come from their annotations, then from the docstrings.

    Raises:
        ConfigError: a parameter has no annotation, or one that JSON cannot carry.
    """
    called = function if inspect.isroutine(function) or _is_partial(function) else function.__call__
    key = (inspect.ismethod(called), *docstrings)
    owner = getattr(called, "__func__", called)
    try:
        known = _KNOWN.setdefault(owner, {})
    except TypeError:  # an object that cannot be referred to weakly is read each time
        known = {}
    if key not in known:
        try:
            known[key] = _read(called, docstrings)
        except ConfigError as error:
            known[key] = str(error)
    result = known[key]
    if isinstance(result, str):
        raise ConfigError(result)
    return result


def _is_partial(function: Any) -> bool:
    return isinstance(function, functools.partial)


def _read(function: Callable[..., Any], docstrings: tuple[str, ...]) -> Signature:
    import pydantic
    from typing_extensions import TypedDict  # before Python 3.12 pydantic takes no other

    hints = _hints(function)
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    others: Any = None
    for parameter in _parameters(function):
        hint = _hint(parameter, hints)
        if parameter.kind is parameter.VAR_KEYWORD:
            others = hint
        elif parameter.default is parameter.empty:
            fields[parameter.name] = typing.Required[hint]
        else:
            fields[parameter.name], defaults[parameter.name] = typing.NotRequired[hint], parameter.default
    make: Any = TypedDict
    arguments = make("Arguments", fields)
    arguments.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    mapping: Any = dict
    try:
        named = pydantic.TypeAdapter(arguments)
        schema = _schema_of(named)
        del schema["additionalProperties"]
        adapter = None if others is None else pydantic.TypeAdapter(mapping[str, others])
        if others is not None:
            schema["additionalProperties"] = _schema_of(adapter).get("additionalProperties", True)
    except Exception as error:  # of the annotated types, which may raise anything: tell which parameter it was
        raise _unfit(hints, error) from error
    _describe(schema["properties"], hints, defaults, docstrings)
    json_text(schema)
    return Signature(tool_schema(schema), named, adapter)


def _hints(function: Any) -> dict[str, Any]:
    written = function.func if _is_partial(function) else function
    try:
        return typing.get_type_hints(inspect.unwrap(written), include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"its annotations cannot be read ({error}). Use types that exist.") from error


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:  # of some functions that are written in C
        raise ConfigError(
            f"its parameters cannot be read ({error}). Wrap it in a function with annotations."
        ) from error


def _hint(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    """The annotation of a parameter that can be given by name."""
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        raise ConfigError(f"{parameter} cannot be given by name. Use ordinary parameters.")
    if parameter.kind is parameter.VAR_KEYWORD:
        return hints.get(name, Any)
    if name not in hints:
        raise ConfigError(f"parameter {name!r} needs an annotation, e.g. `{name}: str`.")
    if type(parameter.default).__module__.startswith("pydantic."):
        raise ConfigError(
            f"parameter {name!r} has pydantic's {type(parameter.default).__name__} as its default, which a plain "
            f"call would hand to the function. Write `{name}: Annotated[..., Field(...)] = default`."
        )
    hint = _with_known_dictionaries(hints[name])
    return typing.Optional[hint] if parameter.default is None else hint  # noqa: UP045 (`|` takes no text as a type)


def _with_known_dictionaries(hint: Any) -> Any:
    """The annotation with each `typing.TypedDict` as that of typing_extensions, which pydantic wants before 3.12."""
    from typing_extensions import TypedDict

    if typing.is_typeddict(hint) and type(hint).__module__ == "typing" and sys.version_info < (3, 12):
        fields = {name: _with_known_dictionaries(part) for name, part in _hints(hint).items()}
        needed: dict[str, Any] = {
            name: part
            if typing.get_origin(part) in (typing.Required, typing.NotRequired)
            else typing.Required[part]
            if name in hint.__required_keys__
            else typing.NotRequired[part]
            for name, part in fields.items()
        }
        make: Any = TypedDict
        made = make(hint.__name__, needed)
        made.__doc__ = hint.__doc__
        return made
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None or origin in (typing.Literal, collections.abc.Callable):
        return hint
    known = tuple(map(_with_known_dictionaries, arguments))
    if known == arguments:
        return hint
    if origin is types.UnionType:
        return functools.reduce(operator.or_, known)
    return typing.Annotated[known] if origin is typing.Annotated else origin[known]


def _schema_of(adapter: Any) -> dict[str, Any]:
    """The JSON schema of what an adapter takes, without what goes without saying."""
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def bytes_schema(self, schema: Any) -> Any:
            raise PydanticInvalidForJsonSchema("JSON has no bytes")

    schema = adapter.json_schema(schema_generator=Generator)
    untitled: Any = list(parts_of(schema))
    for part in untitled:
        part.pop("title", None)
        if part.get("additionalProperties") is True:
            del part["additionalProperties"]
    return schema


def _unfit(hints: Mapping[str, Any], error: Exception) -> ConfigError:
    """Which parameter has an annotation that cannot be used."""
    import pydantic

    for name in hints.keys() - {"return"}:
        try:
            _schema_of(pydantic.TypeAdapter(hints[name]))
        except Exception as inner:  # as above
            reason = str(inner).partition("\n")[0]
            return ConfigError(f"parameter {name!r} has the annotation {hints[name]!r} ({reason}). {TAKEN}.")
    return ConfigError(f"its annotations cannot be used: {error}. {TAKEN}.")


def _describe(
    properties: dict[str, Any], hints: Mapping[str, Any], defaults: Mapping[str, Any], docstrings: tuple[str, ...]
) -> None:
    """Add descriptions and defaults to the schemas of the arguments."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    documented: dict[str, str] = {}
    for docstring in reversed(docstrings):
        documented |= argument_descriptions(docstring)
    for name, schema in properties.items():
        if text := _annotated_text(hints[name]) or documented.get(name):
            schema.setdefault("description", text)
        if name in defaults:
            with contextlib.suppress(PydanticSerializationError, ConfigError):
                value = to_jsonable_python(defaults[name])
                json_text({"default": value})  # what JSON cannot carry is not told: the argument is optional, no more
                schema["default"] = value


def _annotated_text(hint: Any) -> str | None:
    """A text, or a `typing_extensions.Doc`, that stands in `Annotated` beside the type."""
    if typing.get_origin(hint) is not typing.Annotated:
        return None
    texts = [getattr(note, "documentation", note) for note in typing.get_args(hint)[1:]]
    return next((text for text in texts if isinstance(text, str)), None)
