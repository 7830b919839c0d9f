"""What users pass: options, keyword arguments and ids, checked when they are given, and told as JSON."""

import collections
import datetime
import enum
import functools
import inspect
import json
import math
import numbers
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints
from uuid import UUID

from agentlab.errors import ConfigError, nearest

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """A frozen keyword-only dataclass whose constructor names the nearest option on a misspelling."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    original = made.__init__

    @functools.wraps(original)
    def checked(self: T, **options: Any) -> None:
        hints = option_types(made)
        for name, value in options.items():
            if name not in hints:
                raise ConfigError(f"{made.__name__} has no option {name!r}.{nearest(name, hints)}")
            options[name] = checked_option(name, value, hints[name])
        original(self, **options)

    made.__init__ = checked
    return made


@functools.cache
def option_types(kind: type) -> dict[str, Any]:
    """The options of a config class and the types they must have."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__dataclass_fields__}  # pyright: ignore[reportAttributeAccessIssue]


def checked_option(name: str, value: Any, hint: Any) -> Any:
    """An option's value, if it has the type it must have; NumPy's numbers become Python's, lists tuples.

    Raises:
        ConfigError: it has not.
    """
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    for kind in kinds:
        if (found := _as_kind(value, kind)) is not _NOT_OF_KIND:
            return found
    if get_origin(hint) is Literal:
        raise ConfigError(f"{name} has no value {value!r:.80}.{nearest(str(value), get_args(hint))}")
    wanted = " or ".join(_SPOKEN.get(kind, getattr(kind, "__name__", str(kind))) for kind in kinds)
    raise ConfigError(f"{name} must be {wanted}, got {type(value).__name__}: {value!r:.80}.")


def _as_kind(value: Any, kind: Any) -> Any:
    if get_origin(kind) is tuple:
        items = [_as_kind(item, get_args(kind)[0]) for item in value] if isinstance(value, list | tuple) else [""]
        return _NOT_OF_KIND if any(item is _NOT_OF_KIND or item == "" for item in items) else tuple(items)
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _NOT_OF_KIND
    if isinstance(value, bool):
        return value if kind is bool else _NOT_OF_KIND
    if kind is int:
        return int(value) if isinstance(value, numbers.Integral) else _NOT_OF_KIND
    if kind is float:
        return float(value) if isinstance(value, numbers.Real) and not math.isnan(value) else _NOT_OF_KIND
    return value if isinstance(value, kind) else _NOT_OF_KIND


_NOT_OF_KIND = object()
_SPOKEN: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    dict: "a dictionary",
    str: "a text",
    type(None): "None",
    Callable: "a function",
    tuple[str, ...]: "a list or tuple of non-empty texts",
    tuple[int, ...]: "a list or tuple of whole numbers",
}


def check_kwargs(target: Callable[..., Any], kwargs: Mapping[str, Any], *, given_as: str, reserved: int = 0) -> None:
    """Refuse keyword arguments that `target` does not take, or miss ones it needs.

    Args:
        target: A class or any callable.
        kwargs: What will be passed by keyword.
        given_as: The option through which the person passed them, e.g. "env_kwargs".
        reserved: How many leading positional parameters are filled by us.

    Raises:
        ConfigError: naming the nearest valid keyword, or the missing ones.
    """
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise ConfigError(f"{given_as} must be a dictionary of arguments by name, got {kwargs!r:.80}.")
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][reserved:]
    name_of_target = getattr(target, "__name__", repr(target))
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in kwargs:
            if name not in {p.name for p in named}:
                valid = nearest(name, [p.name for p in named])
                raise ConfigError(f"{given_as}: {name_of_target} takes no argument {name!r}.{valid}")
    missing = [p.name for p in named if p.default is p.empty and p.name not in kwargs]
    if missing:
        raise ConfigError(
            f"{given_as}: {name_of_target} needs {', '.join(missing)}; add {'it' if len(missing) == 1 else 'them'}."
        )


def checked_id(value: Any, owner: str) -> Any:
    """A task's id as plain data: valid text, a finite number, True or False, or a tuple of such, nested at will.

    What equals one of these becomes it and is found in the same tables: NumPy's scalars, members of enums
    that are text or numbers. Lists become tuples. JSON keeps each exactly: see `id_of_json`.

    Args:
        value: The id as it was given.
        owner: What has it, e.g. "Task 3".

    Raises:
        ConfigError: it is something else.
    """
    made = _plain_id(value)
    if made is _NOT_OF_KIND:
        raise ConfigError(
            f"An id must be valid text, a finite number, or a tuple of such, but {owner} has "
            f"{type(value).__name__}: {value!r:.80}. Give a text that is the same in every process."
        )
    return made


def id_of_json(value: Any) -> Any:
    """The id that was written as JSON, where a tuple becomes a list."""
    return tuple(map(id_of_json, value)) if isinstance(value, list) else value


def _plain_id(value: Any) -> Any:
    if isinstance(value, list | tuple):
        items = tuple(map(_plain_id, value))
        return _NOT_OF_KIND if any(item is _NOT_OF_KIND for item in items) else items
    if getattr(getattr(value, "dtype", None), "kind", "") in _NUMPY_KINDS and value.shape == ():
        value = value.item()
    for kind, exact in _EXACT.items():
        if isinstance(value, kind):
            return exact(value) if _is_kept_by_json(exact(value)) else _NOT_OF_KIND
    return _NOT_OF_KIND


def _is_kept_by_json(value: Any) -> bool:
    """Whether it comes back: NaN equals nothing, and two lone surrogates may become one character."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    return not isinstance(value, float) or math.isfinite(value)


_EXACT: dict[type, Callable[[Any], Any]] = {bool: bool, str: str.__str__, int: int.__int__, float: float.__float__}
"""From a kind or a subclass of it, such as an enum's, to the kind itself."""
_NUMPY_KINDS = frozenset("biufU")
"""NumPy's letters for truth values, whole numbers, floats and text."""


class Options(dict[str, Any]):
    """Options by name, as plain JSON."""

    defaults: frozenset[str] = frozenset()
    """Names of those that have their default value."""


def described(value: Any, *, leave_out: Collection[str] = (), inside: bool = False) -> Any:
    """A value as plain JSON that is the same in every process, and tells two different ones apart.

    Data is told as it is, whatever the order of a set or a dictionary; arrays by type, shape and checksum;
    `functools.partial` with its arguments. Functions, classes and all other objects are told by name alone:
    two of one name are the same.

    Args:
        value: Anything.
        leave_out: Fields of dataclasses that are not told.
        inside: Tell other objects with their attributes.
    """
    return _Description(frozenset(leave_out), inside).of(value, ())


@dataclass(frozen=True)
class _Description:
    leave_out: frozenset[str]
    inside: bool

    def of(self, value: Any, around: tuple[int, ...]) -> Any:
        """The value as JSON; `around` are the ids of what it lies in."""
        if value is None:
            return None
        for kind, exact in _EXACT.items():
            if isinstance(value, kind):
                return "NaN" if kind is float and math.isnan(value) else exact(value)
        if id(value) in around:
            return "…"
        parts = self._parts(value)
        if parts is None:
            return self._named(value, around)
        return parts((*around, id(value)))

    def _parts(self, value: Any) -> Callable[[tuple[int, ...]], Any] | None:
        """How to tell a value that is made of others; None of one that is not."""
        if isinstance(value, Mapping):
            return lambda around: self._mapping(value, around)
        if isinstance(value, list | tuple | collections.deque):
            return lambda around: [self.of(item, around) for item in value]
        if isinstance(value, set | frozenset):
            return lambda around: sorted((self.of(item, around) for item in value), key=_in_order)
        if is_dataclass(value) and not isinstance(value, type):
            return lambda around: self._dataclass(value, around)
        if isinstance(value, functools.partial):
            return lambda around: {
                "partial": self.of(value.func, around),
                "args": self.of(value.args, around),
                "keywords": self.of(value.keywords, around),
            }
        if isinstance(value, SimpleNamespace):
            return lambda around: self.of(vars(value), around)
        return None

    def _mapping(self, value: Mapping[Any, Any], around: tuple[int, ...]) -> dict[str, Any]:
        if all(isinstance(name, str) for name in value):
            return {str(name): self.of(item, around) for name, item in value.items()}
        pairs = [(_in_order(self.of(name, around)), self.of(item, around)) for name, item in value.items()]
        return dict(sorted(pairs, key=_in_order))

    def _dataclass(self, value: Any, around: tuple[int, ...]) -> Options:
        told = [field for field in fields(value) if field.name not in self.leave_out]
        made = Options({field.name: self.of(getattr(value, field.name), around) for field in told})
        usual = {field.name: self.of(_default(field), around) for field in told if _default(field) is not MISSING}
        made.defaults = frozenset(name for name in usual if usual[name] == made[name])
        return made

    def _named(self, value: Any, around: tuple[int, ...]) -> Any:
        """Of a value that is not made of others."""
        if isinstance(value, enum.Enum):
            return f"{_name(type(value))}.{value.name}"
        if isinstance(value, PurePath):
            return value.as_posix()
        if isinstance(value, bytes | bytearray):
            return {"bytes": len(value), "crc32": zlib.crc32(value)}
        if isinstance(value, re.Pattern):
            return {"pattern": self.of(value.pattern, around), "flags": value.flags}
        if isinstance(value, _PLAIN):
            return repr(value)
        if _is_array(value):
            return self._array(value)
        if hasattr(value, "__qualname__"):
            return _name(value)
        if self.inside and hasattr(value, "__dict__"):
            return {"type": _name(type(value)), **self.of(vars(value), (*around, id(value)))}
        return _name(type(value))

    def _array(self, value: Any) -> Any:
        import numpy as np

        array = np.asarray(value)
        if array.dtype.kind in _NUMPY_KINDS and array.shape == ():
            return self.of(array.item(), ())
        told = {"dtype": str(array.dtype), "shape": list(array.shape)}
        if array.dtype.hasobject:
            return {**told, "items": self.of(array.tolist(), ())}
        return {**told, "crc32": zlib.crc32(np.ascontiguousarray(array).tobytes())}


_PLAIN = (complex, range, Decimal, Fraction, UUID, datetime.date, datetime.time, datetime.timedelta)
"""Types whose `repr` tells all of a value, and no address."""


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def _in_order(value: Any) -> str:
    """JSON as text: the same for the same, and of an order of its own."""
    return json.dumps(value, sort_keys=True)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{value.__qualname__}"


def _is_array(value: Any) -> bool:
    """Whether NumPy has a type for what is in it: an array of NumPy or JAX, or a scalar of NumPy."""
    return hasattr(type(value), "__array__") and isinstance(getattr(getattr(value, "dtype", None), "kind", None), str)
