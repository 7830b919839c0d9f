"""Run the quickstart notebook without a browser and say what it learned: `python -m agentlab.bench.quickstart`."""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlab.bench import notebooks
from agentlab.errors import ConfigError, RunError

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"


@dataclass(frozen=True)
class Outcome:
    """What a run of the quickstart left behind."""

    before: Sequence[float]
    """1.0 or 0.0 per held-out task, in the tasks' order: solved by the untrained model."""
    after: Sequence[float]
    duration_s: float
    notebook: Path
    page: Path
    folder: Path

    @property
    def gain(self) -> tuple[float, float, float]:
        """Points of success gained, and the ends of the paired 95 % interval (normal approximation)."""
        differences = [100 * (b - a) for a, b in zip(self.before, self.after, strict=True)]
        count = len(differences)
        if count < 2:
            raise ConfigError(f"A gain needs at least 2 held-out tasks, got {count}.")
        mean = sum(differences) / count
        variance = sum((d - mean) ** 2 for d in differences) / (count - 1)
        half = 1.96 * math.sqrt(variance / count)
        return mean, mean - half, mean + half


def execute(out: Path, *, seed: int = 0, notebook: Path = NOTEBOOK) -> Outcome:
    """Run the notebook top to bottom in `out`, and save it there with its outputs, also as HTML.

    Args:
        out: Made if missing; the notebook's own files (metrics, trace) are written there.
        seed: Put in place of the notebook's `SEED`.
        notebook: The file to run; it is not changed.

    Raises:
        ConfigError: a package of the extra "notebook" is missing, or the notebook is not there.
        RunError: a cell raised; what ran so far is saved.
    """
    if not notebook.is_file():
        raise ConfigError(f"The notebook must lie at {notebook}; run this from a clone of the project.")
    document = notebooks.read(notebook)
    _set_seed(document, seed)
    executed = out / notebook.name
    spent_s = notebooks.execute(document, executed)
    before, after = (json.loads((out / f"{when}.json").read_text()) for when in ("before", "after"))
    return Outcome(before["solved"], after["solved"], spent_s, executed, executed.with_suffix(".html"), out)


def _set_seed(document: Any, seed: int) -> None:
    pattern = re.compile(r"^SEED = \d+$", re.MULTILINE)
    cells = [cell for cell in document.cells if cell.cell_type == "code" and pattern.search(cell.source)]
    if len(cells) != 1:
        raise ConfigError(f"Exactly one cell of the notebook must say SEED = <number>, got {len(cells)}.")
    cells[0].source = pattern.sub(f"SEED = {seed}", cells[0].source)


def report(outcome: Outcome) -> str:
    """The outcome in a few lines."""
    before, after = (100 * sum(solved) / len(solved) for solved in (outcome.before, outcome.after))
    gain, low, high = outcome.gain
    files = sorted(p for p in outcome.folder.iterdir() if p.suffix in (".jsonl", ".pftrace"))
    return "\n".join(
        [
            f"Success on {len(outcome.before)} held-out tasks: {before:.1f} % before, {after:.1f} % after training "
            f"({gain:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}), in {outcome.duration_s / 60:.1f} minutes.",
            f"Notebook:  {outcome.notebook}",
            f"As HTML:   {outcome.page}",
            *(f"{'Metrics:' if f.suffix == '.jsonl' else 'Trace:':<10} {f}" for f in files),
            "The trace opens in ui.perfetto.dev.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and print the outcome."""
    parser = argparse.ArgumentParser(prog="python -m agentlab.bench.quickstart", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for everything it writes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        outcome = execute(options.out.resolve(), seed=options.seed)
    except (ConfigError, RunError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    print(report(outcome))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
