"""Learning curves: training reward per update, evaluations with their 95 % intervals."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from agentlab.viz.colors import BLUE, GREY, VERMILION

_SMOOTH = 8


def curves(
    metrics: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, float]] = (),
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean reward of each update, its moving mean, and evaluations with intervals.

    Args:
        metrics: A run's rows, with "step" and "reward_mean".
        evaluations: Rows of "step", "success", "low", "high" and "count", as in `RunSnapshot`.
        ax: Where to draw; by default a new figure.
    """
    ax = ax or _new_axes()
    steps, rewards = reward_points(metrics)
    if steps:
        ax.plot(steps, rewards, color=GREY, linewidth=0.8, marker=".", markersize=3, label="training reward")
        ax.plot(steps, moving_mean(rewards), color=BLUE, linewidth=2, label=f"mean of {_SMOOTH} updates")
    if evaluations:
        at = [row["step"] for row in evaluations]
        success = [row["success"] for row in evaluations]
        below = [row["success"] - row["low"] for row in evaluations]
        above = [row["high"] - row["success"] for row in evaluations]
        label = f"evaluation, 95 % of {round(evaluations[-1]['count'])} tasks"
        ax.errorbar(at, success, yerr=(below, above), color=VERMILION, fmt="o-", capsize=3, markersize=4, label=label)
    if steps or evaluations:
        ax.legend(fontsize=8, frameon=False)
    else:
        ax.set_title("No updates yet")
    ax.set(xlabel="update", ylabel="reward")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def reward_points(metrics: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float]]:
    """(steps, rewards) of the rows that have a finite mean reward."""
    rows = [(i + 1, row) for i, row in enumerate(metrics) if math.isfinite(row.get("reward_mean", math.nan))]
    return [row.get("step", index) for index, row in rows], [row["reward_mean"] for _, row in rows]


def moving_mean(values: Sequence[float], width: int = _SMOOTH) -> list[float]:
    """The mean of each value and up to `width - 1` before it."""
    if not len(values):
        return []
    sums = np.convolve(np.asarray(values, np.float64), np.ones(width))[: len(values)]
    return (sums / np.minimum(np.arange(1, len(values) + 1), width)).tolist()


def _new_axes() -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(6, 3.4), layout="constrained")[1]
