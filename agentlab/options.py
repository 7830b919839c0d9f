"""Options that are checked when they are given: types, nearest names, keyword arguments of what users pass."""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

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


# -- tasks and what happens in an episode ---------------------------------------------------------
