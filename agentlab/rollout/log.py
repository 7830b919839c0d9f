"""The trajectory log: one JSON object per episode and line, from which the same records can be read again."""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentlab.errors import ConfigError
from agentlab.files import shown, write_atomically
from agentlab.types import Action, Failure, Task, TokenRow, ToolCall, ToolResult, Trajectory, Turn

RECORDS: dict[str, type] = {
    kind.__name__: kind for kind in (Action, Failure, Task, TokenRow, ToolCall, ToolResult, Turn)
}
KIND = "$kind"
"""The key that marks what plain JSON has no word for: a record, a tuple, a number that is not finite."""
MOST_DEEP = 64
"""Lists and dictionaries in each other; what lies deeper, or in itself, is written as its `repr`."""
MOST_BITS = 4096
"""Of a whole number; Python writes no longer ones in decimal."""


def save_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> Path:
    """Write trajectories as JSON lines, whole or not at all; the file is plain ASCII.

    Any text survives: line separators, NUL, lone surrogates. A missing reward is null. A value of
    the environment's own that JSON cannot carry is written as its `repr`, and read as such text; one
    whose `repr` raises is written as its type and the error's.
    """
    return write_atomically(path, "".join(f"{as_line(trajectory)}\n" for trajectory in trajectories))


def load_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """The trajectories of a log, one after the other.

    Raises:
        ConfigError: a line is not a trajectory; it is told by its number.
    """
    with Path(path).expanduser().open(encoding="ascii") as file:
        for number, line in enumerate(file, 1):
            try:
                yield of_line(line)
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"Line {number} of {str(path)!r} is no trajectory: {error}.") from error


def as_line(trajectory: Trajectory) -> str:
    """A trajectory as JSON text without line breaks."""
    fields = {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(trajectory)}
    reward = trajectory.reward if math.isfinite(trajectory.reward) else None
    return json.dumps({name: _plain(value) for name, value in fields.items()} | {"reward": reward})


def of_line(line: str) -> Trajectory:
    """The trajectory that `as_line` wrote."""
    fields: dict[str, Any] = {name: _record(value) for name, value in json.loads(line).items()}
    if fields["reward"] is None:
        fields["reward"] = math.nan
    return Trajectory(**fields)


def _plain(value: Any, within: tuple[Any, ...] = ()) -> Any:
    """The value as JSON has it; `within` are the containers that it lies in."""
    try:
        if value is None or isinstance(value, str | bool):
            return value
        if isinstance(value, int):
            return value if value.bit_length() <= MOST_BITS else shown(value, hex)
        if isinstance(value, float):
            return value if math.isfinite(value) else {KIND: "float", "value": repr(float(value))}
        if len(within) < MOST_DEEP and not any(outer is value for outer in within):
            return _plain_inside(value, (*within, value))
    except (Exception, SystemExit):  # user code that cannot even be looked at is told as far as it can be
        return shown(value)
    return shown(value)


def _plain_inside(value: Any, within: tuple[Any, ...]) -> Any:
    if isinstance(value, list):
        return [_plain(item, within) for item in value]
    if isinstance(value, tuple):
        return {KIND: "tuple", "value": [_plain(item, within) for item in value]}
    if type(value) in RECORDS.values():
        fields = {field.name: _plain(getattr(value, field.name), within) for field in dataclasses.fields(value)}
        return {KIND: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        items = list(value.items())
        if all(isinstance(name, str) for name, _ in items) and KIND not in value:
            return {name: _plain(item, within) for name, item in items}
        return {KIND: "dict", "value": [[_plain(name, within), _plain(item, within)] for name, item in items]}
    return shown(value)


def _record(value: Any) -> Any:
    if isinstance(value, list):
        return [_record(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(KIND)
    if kind is None:
        return {name: _record(item) for name, item in value.items()}
    if kind == "float":
        return float(value["value"])
    if kind == "tuple":
        return tuple(_record(item) for item in value["value"])
    if kind == "dict":
        return {_record(name): _record(item) for name, item in value["value"]}
    return RECORDS[kind](**{name: _record(item) for name, item in value.items() if name != KIND})
