"""What a bench is, how its rows are judged, and the report that every bench writes.

A bench is a module `agentlab/bench/<name>.py` with a function `run(arguments) -> list[Row]`, where
`arguments` are the words of the command line that the bench reads itself (by argparse). The first
line of its docstring describes it.
"""

import ast
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from agentlab.errors import ConfigError, nearest
from agentlab.files import write_atomically
from agentlab.platform.detect import Device, Platform, detect
from agentlab.platform.versions import package_versions


@dataclass(frozen=True)
class Row:
    """One measured figure and what was hoped of it.

    A figure that is not a finite number never holds, whatever was claimed for it.
    """

    figure: str
    value: float
    goal: str = ""
    """In words or signs, e.g. "≤ 0.3"; empty for a figure that is only reported."""
    unit: str = ""
    holds: bool | None = None
    """None for a figure without a goal."""

    def __post_init__(self) -> None:
        if self.holds and not math.isfinite(self.value):
            object.__setattr__(self, "holds", False)
        if (self.holds is None) != (self.goal == ""):
            raise ConfigError(
                f"Row {self.figure!r} must have both a goal and whether it holds, or neither, "
                f"got goal={self.goal!r} and holds={self.holds}."
            )

    @classmethod
    def at_most(cls, figure: str, value: float, limit: float, unit: str = "") -> "Row":
        """A figure that must not exceed `limit`."""
        return cls(figure, value, f"≤ {limit:g}", unit, bool(value <= limit))

    @classmethod
    def at_least(cls, figure: str, value: float, limit: float, unit: str = "") -> "Row":
        """A figure that must reach `limit`."""
        return cls(figure, value, f"≥ {limit:g}", unit, bool(value >= limit))


Bench = Callable[[Sequence[str]], Sequence[Row]]


@dataclass(frozen=True)
class Report:
    """The rows of one bench, with all that is needed to compare them with another machine's."""

    bench: str
    rows: tuple[Row, ...]
    duration_s: float
    arguments: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no goal was missed. A bench that measured nothing missed them all."""
        return bool(self.rows) and all(row.holds is not False for row in self.rows)

    def as_json(self, machine: Platform) -> dict[str, Any]:
        """What is written to the file: plain JSON, with null for a value that is not a finite number."""
        rows = [asdict(row) | {"value": row.value if math.isfinite(row.value) else None} for row in self.rows]
        return {
            "bench": self.bench,
            "arguments": list(self.arguments),
            "holds": self.holds,
            "rows": rows,
            "duration_s": round(self.duration_s, 3),
            "versions": {"python": machine.python, **package_versions()},
            "machine": asdict(machine),
        }

    def table(self) -> str:
        """The rows as text, one a line, columns aligned."""
        cells = [("figure", "value", "unit", "goal", "holds")]
        for row in self.rows:
            verdict = {True: "yes", False: "NO", None: ""}[row.holds]
            cells.append((row.figure, f"{row.value:.6g}", row.unit, row.goal, verdict))
        widths = [max(len(line[column]) for line in cells) for column in range(5)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join(line.rstrip() for line in lines)


def machine(environment_of: Callable[..., Platform] = detect) -> Platform:
    """The machine of the report. JAX is asked for its devices only if the bench has loaded it."""
    return environment_of() if "jax" in sys.modules else environment_of(devices=_no_devices)


def _no_devices() -> tuple[Device, ...]:
    return ()


def discover(package: ModuleType) -> dict[str, str]:
    """The benches of a package by name, with the first line of their docstrings. Imports none of them."""
    found = {}
    for folder in package.__path__:
        for path in sorted(Path(folder).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
                found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def load(package: ModuleType, name: str) -> Bench:
    """The `run` function of a bench.

    Raises:
        ConfigError: there is no such bench; the nearest is named.
    """
    benches = discover(package)
    if name not in benches:
        raise ConfigError(f"There is no bench {name!r}.{nearest(name, benches)}")
    return importlib.import_module(f"{package.__name__}.{name}").run


def check_writable(path: Path) -> None:
    """Refuse a place for the report before the bench has run for nothing.

    Raises:
        ConfigError: the folder does not exist or is not writable, or the path is a folder.
    """
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--json must be a file in an existing folder that can be written to, got {str(path)!r}.")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all: a report that was there before survives a failure.

    Raises:
        OSError: the disk is full or the folder is gone; no half-made file is left.
        ValueError: the content holds a number that JSON has no word for.
    """
    write_atomically(path.resolve(), json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
