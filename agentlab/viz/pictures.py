"""The two pictures of the dashboard: lanes of the last minute with the device's gauge, and the reward curve."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator

from agentlab.tracing import Account, Stage
from agentlab.tracing.table import SpanTable
from agentlab.viz.canvas import Canvas
from agentlab.viz.colors import BLUE, CAUSE_COLORS, FAINT, GREY, INK, PAPER, STAGE_COLORS, VERMILION
from agentlab.viz.lanes import LANES, draw_lanes, rgb
from agentlab.viz.learning import moving_mean, reward_points

WINDOW_S = 60.0
_LIVE_LANES = LANES[:8]
_FONT = 17
_PIXELS_PER_CHARACTER = 13
_SEGMENT_LABELS = 6
_MOST_POINTS = 400


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
        beside = {"fontsize": _FONT - 2, "va": "center", "transform": lanes.get_yaxis_transform()}
        lanes.text(1.01, -0.3, "max", color=GREY, **beside)
        self._peaks = [lanes.text(1.01, row + 0.5, "", color=INK, **beside) for row in range(rows)]
        self._gauge = gauge = self._canvas.figure.add_axes((0.29, 0.03, 0.645, 0.10))
        gauge.set(xlim=(0, 1), ylim=(0, 1))
        gauge.set_yticks([0.5], ["device time"])
        gauge.set_xticks([])
        _plain(gauge)
        style = {"fontsize": _FONT - 1, "ha": "center", "va": "center"}
        self._segments = [gauge.text(0, 0.5, "", **style) for _ in range(_SEGMENT_LABELS)]

    def render(self, table: SpanTable, found: Account, now_ns: int) -> np.ndarray:
        """[height, width, 3] uint8 picture of the minute before `now_ns`."""
        rows, pixels = self._canvas.size_of(self._lanes)
        per_lane = rows // len(_LIVE_LANES)
        start_ns = now_ns - round(WINDOW_S * 1e9)
        drawn = draw_lanes(table, start_ns, now_ns, _LIVE_LANES, pixels=pixels, rows_per_lane=per_lane)
        image = np.full((rows, pixels, 3), 255, np.uint8)
        image[: len(drawn.image)] = drawn.image
        for text, lane, peak in zip(self._peaks, _LIVE_LANES, drawn.peaks, strict=True):
            text.set_text("" if lane.stacked or round(peak) < 2 else str(round(peak)))
        bar = self._draw_gauge(found, *self._canvas.size_of(self._gauge))
        texts = [text for text in (*self._peaks, *self._segments) if text.get_text()]
        return self._canvas.render(((self._lanes, image), (self._gauge, bar)), texts)

    def _draw_gauge(self, found: Account, rows: int, pixels: int) -> np.ndarray:
        bar = np.full((rows, pixels, 3), 241, np.uint8)
        low, labels = 0.0, []
        for name, share, color in gauge_parts(found):
            bar[:, round(low * pixels) : round((low + share) * pixels)] = rgb(color)
            for label in (f"{name} {share:.0%}", f"{share:.0%}"):
                if share * pixels >= _PIXELS_PER_CHARACTER * (len(label) + 1):
                    labels.append((low + share / 2, label, color))
                    break
            low += share
        for text in self._segments:
            text.set_text("")
        for text, (middle, label, color) in zip(self._segments, labels, strict=False):
            text.set(text=label, x=middle, color=readable_on(color))
        return bar


class CurvePicture:
    """Reward over updates, with evaluations; owned by one thread."""

    width, height = 560, 440

    def __init__(self) -> None:
        self._canvas = Canvas(self.width, self.height)
        axes = self._axes = self._canvas.figure.add_axes((0.17, 0.18, 0.80, 0.71))
        axes.set_title("reward", loc="left", fontsize=_FONT + 1, color=INK)
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
            axes.text(x, 1.03, label, color=color, fontsize=_FONT, transform=axes.transAxes)
        self._limits = (0.0, 0.0, 0.0)

    def render(
        self, metrics: Sequence[Mapping[str, float]], evaluations: Sequence[Mapping[str, float]], steps: int
    ) -> np.ndarray:
        """[height, width, 3] uint8 picture of the whole run; `steps` is how many updates it will have."""
        at, rewards = reward_points(metrics)
        every = max(1, math.ceil(len(at) / _MOST_POINTS))
        smooth = moving_mean(rewards)
        self._raw.set_data(at[::every], rewards[::every])
        self._smooth.set_data(at[::every], smooth[::every])
        self._evaluated.set_data([row["step"] for row in evaluations], [row["success"] for row in evaluations])
        self._intervals.set_segments([[(r["step"], r["low"]), (r["step"], r["high"])] for r in evaluations])
        values = [*rewards, *(row["low"] for row in evaluations), *(row["high"] for row in evaluations)]
        self._fit(values, max([steps, 1, *at]))
        return self._canvas.render((), (self._raw, self._smooth, self._intervals, self._evaluated))

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
