"""Learning curves: training reward per update, evaluations with their 95 % intervals."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from agentlab.errors import ConfigError
from agentlab.viz.colors import BLUE, GREY, RUN_COLORS, VERMILION
from agentlab.viz.sources import HasMetrics

_SMOOTH = 8


def curves(
    metrics: Sequence[Mapping[str, float]] | HasMetrics,
    evaluations: Sequence[Mapping[str, float]] = (),
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean reward of each update (or the loss), its moving mean, and evaluations with intervals.

    Args:
        metrics: A run; or its rows, with "step" and "reward_mean" or "loss".
        evaluations: Rows of "step", "success", "low", "high" and "count", as in `RunSnapshot`; those
            of the run where one is given.
        ax: Where to draw; by default a new figure.
    """
    if isinstance(metrics, HasMetrics):
        metrics, evaluations = metrics.metrics, metrics.evaluations
    ax = ax or _new_axes()
    name, steps, values = curve_points(metrics)
    if steps:
        ax.plot(steps, values, color=GREY, linewidth=0.8, marker=".", markersize=3, label=f"training {name}")
        ax.plot(steps, moving_mean(values), color=BLUE, linewidth=2, label=f"mean of {_SMOOTH} updates")
    if evaluations:
        label = f"evaluation, 95 % of {round(evaluations[-1]['count'])} tasks"
        _draw_evaluations(ax, evaluations, VERMILION, label)
    if steps or evaluations:
        ax.legend(fontsize=10, frameon=False)
    else:
        ax.set_title("No updates yet")
    return _finished(ax, name)


def compare(runs: Mapping[str, HasMetrics], *, ax: Axes | None = None) -> Axes:
    """Draw several runs' moving mean rewards and evaluations in one picture, e.g. `{"lead 0": a, "lead 1": b}`.

    Raises:
        ConfigError: there is no run.
    """
    if not runs:
        raise ConfigError('compare needs at least one entry like {"name": run}, got none.')
    ax, shown = ax or _new_axes(), dict[str, None]()
    for (name, run), color in zip(runs.items(), cycle(RUN_COLORS), strict=False):
        what, steps, values = curve_points(run.metrics)
        shown[what] = None
        ax.plot(steps, moving_mean(values), color=color, linewidth=2, label=name)
        if run.evaluations:
            _draw_evaluations(ax, run.evaluations, color, None)
    ax.set_title(f"mean of {_SMOOTH} updates; dots: evaluation, 95 %", loc="left", fontsize=10)
    ax.legend(fontsize=10, frameon=False)
    return _finished(ax, ", ".join(shown))


def _draw_evaluations(ax: Axes, rows: Sequence[Mapping[str, float]], color: str, label: str | None) -> None:
    at, success = [row["step"] for row in rows], [row["success"] for row in rows]
    around = ([row["success"] - row["low"] for row in rows], [row["high"] - row["success"] for row in rows])
    ax.errorbar(at, success, yerr=around, color=color, fmt="o-", capsize=3, markersize=4, linewidth=1, label=label)


def _finished(ax: Axes, name: str) -> Axes:
    ax.set_xlabel("update", fontsize=10)
    ax.set_ylabel(name, fontsize=10)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def curve_points(metrics: Sequence[Mapping[str, float]]) -> tuple[str, list[float], list[float]]:
    """("reward", steps, means) of the updates that have one; where none has, as by example, ("loss", steps, losses)."""
    steps, rewards = _points(metrics, "reward_mean")
    if steps:
        return "reward", steps, rewards
    steps, losses = _points(metrics, "loss")
    return ("loss" if steps else "reward"), steps, losses


def _points(metrics: Sequence[Mapping[str, float]], name: str) -> tuple[list[float], list[float]]:
    rows = [(i + 1, row) for i, row in enumerate(metrics) if math.isfinite(row.get(name, math.nan))]
    return [row.get("step", index) for index, row in rows], [row[name] for _, row in rows]


def moving_mean(values: Sequence[float], width: int = _SMOOTH) -> list[float]:
    """The mean of each value and up to `width - 1` before it."""
    if not len(values):
        return []
    sums = np.convolve(np.asarray(values, np.float64), np.ones(width))[: len(values)]
    return (sums / np.minimum(np.arange(1, len(values) + 1), width)).tolist()


def _new_axes() -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(6, 3.4), layout="constrained")[1]
