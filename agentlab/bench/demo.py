"""What the quickstart learns: success on held-out tasks before and after, over several seeds."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from agentlab.bench.contract import Row
from agentlab.bench.quickstart import execute

MINUTES = 20.0
POINTS = 15.0


def run(arguments: Sequence[str]) -> list[Row]:
    """Run the quickstart notebook once per seed and compare."""
    parser = argparse.ArgumentParser(prog="python -m agentlab.bench demo", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/bench-demo"))
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for seed in options.seeds:
        outcome = execute((options.out / f"seed{seed}").resolve(), seed=seed)
        gain, low, high = outcome.gain
        count = len(outcome.before)
        rows += [
            Row.at_least(f"seed {seed}: held-out tasks", count, 100),
            Row(f"seed {seed}: success before", 100 * sum(outcome.before) / count, unit="%"),
            Row(f"seed {seed}: success after", 100 * sum(outcome.after) / count, unit="%"),
            Row.at_least(f"seed {seed}: gain", gain, POINTS, "points"),
            Row(f"seed {seed}: gain, 95 % interval, low end", low, "> 0", "points", low > 0),
            Row(f"seed {seed}: gain, 95 % interval, high end", high, unit="points"),
            Row.at_most(f"seed {seed}: notebook from top to bottom", outcome.duration_s / 60, MINUTES, "min"),
        ]
    return rows
