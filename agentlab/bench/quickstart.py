"""Run the quickstart notebook without a browser and say what it learned: `python -m agentlab.bench.quickstart`."""

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlab.errors import ConfigError, RunError

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"
PROGRESS_S = 15.0


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
    try:
        import nbformat
        from nbclient.exceptions import CellExecutionError
        from nbconvert import HTMLExporter
    except ImportError as error:
        raise ConfigError(
            f"Running notebooks needs {error.name}. Install it: pip install 'agentlab[notebook]'."
        ) from None
    if not notebook.is_file():
        raise ConfigError(f"The notebook must lie at {notebook}; run this from a clone of the project.")
    out.mkdir(parents=True, exist_ok=True)
    document = nbformat.read(notebook, as_version=4)
    _set_seed(document, seed)
    executed, page = out / notebook.name, (out / notebook.name).with_suffix(".html")
    began_s = time.monotonic()
    try:
        _client(document, out).execute()
    except CellExecutionError as error:
        raise RunError(
            f"A cell of the notebook failed with {error.ename}: {error.evalue}\nWhat ran so far is in {executed}."
        ) from error
    finally:
        nbformat.write(document, executed)
    page.write_text(HTMLExporter().from_notebook_node(document)[0], encoding="utf-8")
    before, after = (json.loads((out / f"{when}.json").read_text()) for when in ("before", "after"))
    return Outcome(before["solved"], after["solved"], time.monotonic() - began_s, executed, page, out)


def _set_seed(document: Any, seed: int) -> None:
    pattern = re.compile(r"^SEED = \d+$", re.MULTILINE)
    cells = [cell for cell in document.cells if cell.cell_type == "code" and pattern.search(cell.source)]
    if len(cells) != 1:
        raise ConfigError(f"Exactly one cell of the notebook must say SEED = <number>, got {len(cells)}.")
    cells[0].source = pattern.sub(f"SEED = {seed}", cells[0].source)


def _client(document: Any, folder: Path) -> Any:
    from nbclient import NotebookClient

    class Client(NotebookClient):
        """Says which cell runs and, now and then, what a live display says."""

        last_s = 0.0

        async def async_execute_cell(self, cell: Any, cell_index: int, *args: Any, **options: Any) -> Any:
            if cell.cell_type == "code":
                lines = [line for line in cell.source.splitlines() if line.strip()]
                line = next((line for line in lines if not line.startswith(("import ", "from "))), lines[0])
                print(f"  [{cell_index + 1}/{len(document.cells)}] {line[:100]}", flush=True)
            return await super().async_execute_cell(cell, cell_index, *args, **options)

        def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
            if time.monotonic() - self.last_s > PROGRESS_S and (line := _live_line(msg)):
                self.last_s = time.monotonic()
                print(f"      {line[:110]}", flush=True)
            return super().process_message(msg, cell, cell_index)

    return Client(
        document,
        timeout=None,
        kernel_name="python3",
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )


def _live_line(message: Mapping[str, Any]) -> str:
    """What the head of a live dashboard now says, if this message updates it."""
    if message["msg_type"] != "comm_msg":
        return ""
    html = message["content"]["data"].get("state", {}).get("value", "")
    return " ".join(re.sub(r"<[^>]*>", " ", html).split()) if isinstance(html, str) and " of " in html else ""


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
