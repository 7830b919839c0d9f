"""Timelines: what was busy when, one lane per kind of work."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from agentlab.errors import ConfigError
from agentlab.tracing import Stage, account
from agentlab.tracing.table import SpanTable
from agentlab.viz.colors import STAGE_COLORS
from agentlab.viz.lanes import Lane, LanePicture, device_stages_of, draw_lanes, lanes_named, lanes_of
from agentlab.viz.sources import SpanSource, spans_of

_PIXELS = 1200
_INCHES_PER_LANE = 0.36
_LEGEND_COLUMNS = 3
"""More of them are wider than a figure of 6 inches with its labels, which then shrinks its lanes to nothing."""
_FONT = 10
"""Points, in a figure of 6 inches: 8 pixels where a phone shows it 360 pixels wide."""


def timeline(
    spans: SpanSource,
    *,
    ax: Axes | None = None,
    start: float | None = None,
    stop: float | None = None,
    lanes: Iterable[Lane | str] | None = None,
) -> Axes:
    """Draw spans over time. A lane with several spans at once is darker the more are in flight.

    Args:
        spans: Spans in any order, or a run.
        ax: Where to draw; by default a new figure.
        start, stop: Window in seconds since the first span; by default all of it.
        lanes: Rows to draw, by label such as "device" or "tools", or as `Lane`; by default all of
            which anything was recorded.

    Raises:
        ConfigError: the window is empty, or a lane is unknown.
    """
    table = SpanTable.of(spans_of(spans))
    rows = lanes_named(lanes) or lanes_of(table)
    if ax is None:
        ax = _new_axes(1, len(rows))[0]
    return _timeline(ax, table, rows, start, stop)


def _timeline(ax: Axes, table: SpanTable, rows: tuple[Lane, ...], start: float | None, stop: float | None) -> Axes:
    if not len(table):
        ax.set_title("No spans recorded")
        return ax
    origin_ns = int(table.start_ns.min())
    whole_s = (int(table.end_ns.max()) - origin_ns) / 1e9
    start_s, stop_s = 0.0 if start is None else start, whole_s if stop is None else stop
    if stop_s <= start_s:
        if start is not None or stop is not None:
            raise ConfigError(f"The window must end after it starts, got start={start_s} s, stop={stop_s} s.")
        stop_s = start_s + 1e-6
    window = origin_ns + round(start_s * 1e9), origin_ns + round(stop_s * 1e9)
    _draw(ax, draw_lanes(table, *window, rows, pixels=_PIXELS), start_s, stop_s)
    found = account(table, *window)
    stages = device_stages_of(table)
    _set_title(ax, f"device busy {found.utilisation:.0%} of {found.duration_s:.1f} s", stages)
    _add_legend(ax, stages)
    return ax


def _set_title(ax: Axes, text: str, stages: tuple[Stage, ...]) -> None:
    """Above the legend."""
    ax.set_title(text, loc="left", fontsize=_FONT, pad=4 + 17 * math.ceil(len(stages) / _LEGEND_COLUMNS))


def timelines(runs: Mapping[str, SpanSource], **options: Any) -> list[Axes]:
    """Timelines under each other with the same seconds per inch, e.g. `{"synchronous": a, "one ahead": b}`.

    Args:
        runs: Spans or a run by name.
        options: As in `timeline`, apart from `ax`.

    Raises:
        ConfigError: nothing to draw.
    """
    if not runs:
        raise ConfigError('timelines needs at least one entry like {"name": run}, got none.')
    tables = {name: SpanTable.of(spans_of(run)) for name, run in runs.items()}
    rows = lanes_named(options.pop("lanes", None)) or lanes_of(SpanTable.join(tables.values()))
    axes = _new_axes(len(tables), len(rows))
    longest = 0.0
    for ax, (name, table) in zip(axes, tables.items(), strict=True):
        timeline(table, ax=ax, lanes=rows, **options)
        _set_title(ax, f"{name}: {ax.get_title(loc='left')}", device_stages_of(table))
        longest = max(longest, ax.get_xlim()[1])
    for ax in axes:
        ax.set_xlim(right=longest)
    return axes


def _new_axes(count: int, num_lanes: int) -> list[Axes]:
    from matplotlib import pyplot

    height = count * (1.2 + _INCHES_PER_LANE * num_lanes)
    _, axes = pyplot.subplots(count, 1, figsize=(6, height), squeeze=False, layout="constrained")
    return list(axes[:, 0])


def _draw(ax: Axes, picture: LanePicture, start_s: float, stop_s: float) -> None:
    num_lanes = len(picture.labels)
    extent = (start_s, stop_s, num_lanes, 0)
    ax.imshow(picture.image, aspect="auto", interpolation="nearest", extent=extent)
    ax.set_yticks(np.arange(num_lanes) + 0.5, lane_labels(picture))
    ax.tick_params(axis="y", length=0)
    ax.tick_params(labelsize=_FONT)
    ax.set_xlabel("time (s)", fontsize=_FONT)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def lane_labels(picture: LanePicture) -> list[str]:
    """Labels with the most that were in flight where that was more than one."""
    shown = zip(picture.labels, picture.peaks, strict=True)
    return [f"{label} (max {round(peak)})" if round(peak) > 1 else label for label, peak in shown]


def _add_legend(ax: Axes, stages: tuple[Stage, ...]) -> None:
    if stages:
        patches = [Patch(color=STAGE_COLORS[stage], label=stage.replace("_", " ")) for stage in stages]
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.1, "columnspacing": 1.0}
        ax.legend(handles=patches, ncol=_LEGEND_COLUMNS, fontsize=_FONT, frameon=False, handlelength=0.8, **place)
