"""The two pictures of the dashboard: lanes of the last minute with the device's gauge, and the reward curve."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator

from agentlab.tracing import Account, Stage
from agentlab.tracing.table import SpanTable
from agentlab.viz.canvas import Canvas, Label
from agentlab.viz.colors import BLUE, CAUSE_COLORS, FAINT, GREY, INK, PAPER, STAGE_COLORS, VERMILION
from agentlab.viz.lanes import LANES, flight_of, paint_lanes, rgb
from agentlab.viz.learning import curve_points, moving_mean
from agentlab.viz.minute import WINDOW_S

_LIVE_LANES = LANES[:8]
_FONT = 17
_PIXELS_PER_CHARACTER = 13
_MOST_POINTS = 400
_MOST_MARKERS = 100
_MARK = 4
"""Pixels of the mark on the gauge where the chips say that their busy time ends."""


class LanesPicture:
    """What was busy in the last minute, and how the device's time divides; owned by one thread."""

    width, height = 760, 440

    def __init__(self) -> None:
        self._canvas = Canvas(self.width, self.height)
        rows = len(_LIVE_LANES)
        self._lanes = lanes = self._canvas.figure.add_axes((0.29, 0.27, 0.645, 0.66))
        lanes.set(xlim=(-WINDOW_S, 0), ylim=(rows, 0))
        lanes.set_yticks(np.arange(rows) + 0.5, [lane.label for lane in _LIVE_LANES])
        lanes.set_xticks([-60, -45, -30, -15, 0], ["60 s ago", "45", "30", "15", "now"])
        _plain(lanes)
        lanes.text(
            1.01, -0.3, "max", color=GREY, fontsize=_FONT - 2, va="center", transform=lanes.get_yaxis_transform()
        )
        self._gauge = gauge = self._canvas.figure.add_axes((0.29, 0.03, 0.645, 0.10))
        gauge.set(xlim=(0, 1), ylim=(0, 1))
        gauge.set_yticks([0.5], ["device time"])
        gauge.set_xticks([])
        _plain(gauge)
        self.rows, self.columns = self._canvas.size_of(lanes)

    def render(self, table: SpanTable, found: Account, now_ns: int) -> np.ndarray:
        """[height, width, 3] uint8 picture of the minute before `now_ns`."""
        start_ns = now_ns - round(WINDOW_S * 1e9)
        edges = np.linspace(start_ns, now_ns, self.columns + 1).astype(np.int64)
        return self.draw(flight_of(table.within(start_ns, now_ns), edges), found)

    def draw(self, flight: np.ndarray, found: Account, duty: float = math.nan) -> np.ndarray:
        """The same from [stages, columns] spans in flight; `duty` is the chips' own share of busy time, if they say."""
        drawn = paint_lanes(flight, _LIVE_LANES, rows_per_lane=self.rows // len(_LIVE_LANES))
        image = np.full((self.rows, self.columns, 3), 255, np.uint8)
        image[: len(drawn.image)] = drawn.image
        labels = [
            Label(self._lanes, 1.01, (row + 0.5) / len(_LIVE_LANES), str(round(peak)), _FONT - 2, INK, centred=False)
            for row, (lane, peak) in enumerate(zip(_LIVE_LANES, drawn.peaks, strict=True))
            if not lane.stacked and round(peak) >= 2
        ]
        bar = np.full((*self._canvas.size_of(self._gauge), 3), 241, np.uint8)
        labels += self._fill_gauge(bar, found)
        if math.isfinite(duty):
            at = round(min(max(duty, 0.0), 1.0) * (bar.shape[1] - _MARK))
            bar[:, at : at + _MARK] = rgb(INK)
            labels.append(Label(self._gauge, min(max(duty, 0.12), 0.88), -0.25, f"chip {duty:.0%}", _FONT - 2, INK))
        return self._canvas.render(((self._lanes, image), (self._gauge, bar)), labels=labels)

    def _fill_gauge(self, bar: np.ndarray, found: Account) -> list[Label]:
        pixels = bar.shape[1]
        low, labels = 0.0, []
        for name, share, color in gauge_parts(found):
            bar[:, round(low * pixels) : round((low + share) * pixels)] = rgb(color)
            for text in (f"{name} {share:.0%}", f"{share:.0%}"):
                if share * pixels >= _PIXELS_PER_CHARACTER * (len(text) + 1):
                    labels.append(Label(self._gauge, low + share / 2, 0.5, text, _FONT - 1, readable_on(color)))
                    break
            low += share
        return labels


class CurvePicture:
    """Reward, or the loss of a run that has none, over updates, with evaluations; owned by one thread."""

    width, height = 560, 440

    def __init__(self) -> None:
        self._canvas = Canvas(self.width, self.height)
        axes = self._axes = self._canvas.figure.add_axes((0.17, 0.18, 0.80, 0.71))
        self._title = axes.set_title("reward", loc="left", fontsize=_FONT + 1, color=INK)
        axes.set_xlabel("update", fontsize=_FONT, color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y", color=FAINT)
        _plain(axes)
        axes.spines["bottom"].set_visible(True)
        (self._raw,) = axes.plot([], [], color=GREY, linewidth=1, marker=".", markersize=5)
        (self._smooth,) = axes.plot([], [], color=BLUE, linewidth=3)
        (self._evaluated,) = axes.plot([], [], color=VERMILION, linewidth=1.5, marker="o", markersize=8)
        self._intervals = axes.vlines([], [], [], color=VERMILION, linewidth=2)
        for x, label, color in ((0.22, "each", GREY), (0.385, "mean of 8", BLUE), (0.71, "evaluation", VERMILION)):
            self._of_evaluations = axes.text(x, 1.03, label, color=color, fontsize=_FONT, transform=axes.transAxes)
        self._limits = (0.0, 0.0, 0.0)

    def render(
        self, metrics: Sequence[Mapping[str, float]], evaluations: Sequence[Mapping[str, float]], steps: int
    ) -> np.ndarray:
        """[height, width, 3] uint8 picture of the whole run; `steps` is how many updates it will have."""
        name, at, rewards = curve_points(metrics)
        self._name(name)
        every = max(1, math.ceil(len(at) / _MOST_POINTS))
        smooth = moving_mean(rewards)
        self._raw.set_marker("." if len(at) <= _MOST_MARKERS else "")
        self._raw.set_data(at[::every], rewards[::every])
        self._smooth.set_data(at[::every], smooth[::every])
        self._evaluated.set_data([row["step"] for row in evaluations], [row["success"] for row in evaluations])
        self._intervals.set_segments([[(r["step"], r["low"]), (r["step"], r["high"])] for r in evaluations])
        values = [*rewards, *(row["low"] for row in evaluations), *(row["high"] for row in evaluations)]
        self._fit(values, max([steps, 1, *at]))
        return self._canvas.render((), (self._raw, self._smooth, self._intervals, self._evaluated))

    def _name(self, name: str) -> None:
        if self._title.get_text() != name:
            self._title.set_text(name)
            self._of_evaluations.set_visible(name == "reward")
            self._canvas.stale()

    def _fit(self, values: Sequence[float], last_step: float) -> None:
        """Set limits to round numbers around the data, so that they seldom change."""
        low, high = round_limits(min(values, default=0.0), max(values, default=1.0))
        if self._limits != (low, high, last_step):
            self._limits = (low, high, last_step)
            self._axes.set(xlim=(-0.02 * last_step, 1.02 * last_step), ylim=(low, high))
            self._canvas.stale()


def gauge_parts(found: Account) -> list[tuple[str, float, str]]:
    """(name, share of the time, colour): the device's work, then what it waited for; sums to 1 of any time."""
    if not found.duration_s:
        return []
    busy: list[tuple[Stage, float]] = [(s, seconds / found.duration_s) for s, seconds in found.busy.items() if seconds]
    parts = [(_SHORT.get(stage, stage), share, STAGE_COLORS[stage]) for stage, share in busy]
    idle = found.idle_shares.items()
    return parts + [(_SHORT.get(cause, cause), share, CAUSE_COLORS[cause]) for cause, share in idle]


_SHORT = {
    "forward_backward": "train",
    "weight_sync": "swap",
    "environment": "env",
    "engine": "host",
    "nothing": "idle",
}


def readable_on(color: str) -> str:
    """Dark or light ink, whichever stands out on this colour."""
    red, green, blue = to_rgb(color)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else PAPER


def round_limits(low: float, high: float) -> tuple[float, float]:
    """Limits at multiples of a power of ten (or 2 or 5 times one) that enclose the values with room."""
    size = max(high - low, 0.1)
    power = 10.0 ** math.floor(math.log10(size))
    unit = next(power * factor for factor in (0.2, 0.5, 1.0, 2.0) if size / (power * factor) <= 6)
    return math.floor(low / unit) * unit, math.ceil(high / unit + 0.2) * unit


def _plain(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelsize=_FONT, colors=INK)
