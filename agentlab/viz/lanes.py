"""Spans as a picture of lanes: one column of pixels per slice of time, whatever the number of spans."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_rgb

from agentlab.errors import ConfigError, nearest
from agentlab.tracing import Stage
from agentlab.tracing.accounting import DEVICE_STAGES
from agentlab.tracing.table import STAGE_CODES, SpanTable
from agentlab.viz.colors import STAGE_COLORS

ROWS_PER_LANE = 24
_MARGIN = 0.125
_FAINTEST = 0.25
_EMPTY = 241


@dataclass(frozen=True)
class Lane:
    """A row of the timeline."""

    label: str
    stages: tuple[Stage, ...]
    without: tuple[Stage, ...] = ()
    """Stages that run inside those and have a lane of their own."""
    stacked: bool = False
    """True fills each moment by stage, up to full; False shades it by how many are in flight."""
    optional: bool = False
    """Left out where nothing of it was recorded."""


LANES: tuple[Lane, ...] = (
    Lane("device", ("prefill", "decode", "forward_backward", "optimizer", "weight_sync"), stacked=True),
    Lane("model calls", ("model_call",)),
    Lane("tools", ("tool",), optional=True),
    Lane("environments", ("step", "reset", "close"), without=("tool", "reward")),
    Lane("reward", ("reward",), optional=True),
    Lane("groups waiting", ("queue",)),
    Lane("learner", ("train",)),
    Lane("weight sync", ("weight_sync",)),
    Lane("calls queueing", ("queueing",), optional=True),
    Lane("compile", ("compile",), optional=True),
    Lane("checkpoint", ("checkpoint",), optional=True),
    Lane("evaluation", ("evaluation",), optional=True),
)


def in_flight(table: SpanTable, edges_ns: np.ndarray) -> np.ndarray:
    """[pixels] mean number of spans under way between each two of the [pixels + 1] rising edges."""
    covered = _covered(table.start_ns, edges_ns) - _covered(table.end_ns, edges_ns)
    return np.diff(covered) / np.diff(edges_ns)


def flight_of(table: SpanTable, edges_ns: np.ndarray) -> np.ndarray:
    """[stages, pixels] `in_flight` of every stage, by its code."""
    found = np.zeros((len(STAGE_CODES), len(edges_ns) - 1))
    order = np.argsort(table.stages, kind="stable")
    bounds = np.searchsorted(table.stages[order], np.arange(len(STAGE_CODES) + 1))
    starts, ends = table.start_ns[order], table.end_ns[order]
    for code in np.unique(table.stages):
        mine = slice(bounds[code], bounds[code + 1])
        covered = _covered(starts[mine], edges_ns) - _covered(ends[mine], edges_ns)
        found[code] = np.diff(covered) / np.diff(edges_ns)
    return found


def _covered(moments_ns: np.ndarray, edges_ns: np.ndarray) -> np.ndarray:
    """[edges] sum over the moments before an edge of the time since then."""
    moments = np.sort(moments_ns)
    sums = np.concatenate([np.zeros(1), np.cumsum(moments - edges_ns[0], dtype=np.float64)])
    before = np.searchsorted(moments, edges_ns, "right")
    return before * (edges_ns - edges_ns[0]).astype(np.float64) - sums[before]


@dataclass(frozen=True)
class LanePicture:
    """Lanes drawn over a window of time."""

    image: np.ndarray
    """[lanes * rows per lane, pixels, 3] uint8."""
    labels: tuple[str, ...]
    peaks: tuple[float, ...]
    """Most spans in flight per lane, as a mean over one pixel."""


def draw_lanes(
    table: SpanTable,
    start_ns: int,
    stop_ns: int,
    lanes: tuple[Lane, ...],
    *,
    pixels: int,
    rows_per_lane: int = ROWS_PER_LANE,
) -> LanePicture:
    """Draw these lanes from `start_ns` to `stop_ns`, `pixels` wide."""
    edges = np.linspace(start_ns, max(stop_ns, start_ns + pixels), pixels + 1).astype(np.int64)
    flight = flight_of(table.within(start_ns, stop_ns), edges)
    return paint_lanes(flight, lanes, rows_per_lane=rows_per_lane)


def paint_lanes(flight: np.ndarray, lanes: tuple[Lane, ...], *, rows_per_lane: int = ROWS_PER_LANE) -> LanePicture:
    """Draw these lanes of [stages, pixels] spans in flight."""
    image = np.full((len(lanes) * rows_per_lane, flight.shape[1], 3), 255, np.uint8)
    margin = round(rows_per_lane * _MARGIN)
    peaks = []
    for index, lane in enumerate(lanes):
        bar = image[index * rows_per_lane + margin : (index + 1) * rows_per_lane - margin]
        if lane.stacked:
            _fill_stacked(bar, [(stage, flight[STAGE_CODES[stage]]) for stage in lane.stages])
            peaks.append(1.0)
        else:
            inside, outside = ([STAGE_CODES[s] for s in stages] for stages in (lane.stages, lane.without))
            count = np.maximum(flight[inside].sum(axis=0) - flight[outside].sum(axis=0), 0)
            count[count < 1e-6] = 0  # what rounding leaves
            peaks.append(float(count.max(initial=0)))
            _fill_shaded(bar, count, peaks[-1], STAGE_COLORS[lane.stages[0]])
    return LanePicture(image, tuple(lane.label for lane in lanes), tuple(peaks))


def lanes_of(table: SpanTable) -> tuple[Lane, ...]:
    """All lanes, without the optional ones of which nothing was recorded."""
    return tuple(lane for lane in LANES if not lane.optional or len(table.only(*lane.stages)))


def lanes_named(lanes: Iterable[Lane | str] | None) -> tuple[Lane, ...]:
    """Lanes given by a person, some of them by label.

    Raises:
        ConfigError: a label is unknown; the nearest is named.
    """
    if isinstance(lanes, str):
        lanes = (lanes,)
    known = {lane.label: lane for lane in LANES}
    for lane in lanes or ():
        if not isinstance(lane, Lane) and lane not in known:
            raise ConfigError(f"There is no lane {lane!r}.{nearest(str(lane), known)}")
    return tuple(lane if isinstance(lane, Lane) else known[lane] for lane in lanes or ())


def device_stages_of(table: SpanTable) -> tuple[Stage, ...]:
    """The device stages of which anything was recorded."""
    return tuple(stage for stage in DEVICE_STAGES if len(table.only(stage)))


def rgb(color: str) -> np.ndarray:
    """[3] uint8 of a colour."""
    return np.round(np.array(to_rgb(color)) * 255).astype(np.uint8)


def _fill_stacked(bar: np.ndarray, shares: list[tuple[Stage, np.ndarray]]) -> None:
    height = (np.arange(len(bar))[::-1, None] + 0.5) / len(bar)
    scale = 1 / np.maximum(sum(share for _, share in shares), 1)
    tops = np.cumsum([share * scale for _, share in shares], axis=0)
    stage = (height >= tops[:, None, :]).sum(axis=0)
    palette = np.array([*(rgb(STAGE_COLORS[stage]) for stage, _ in shares), np.full(3, _EMPTY)], np.uint8)
    bar[:] = palette[stage]


def _fill_shaded(bar: np.ndarray, count: np.ndarray, peak: float, color: str) -> None:
    strength = _FAINTEST + (1 - _FAINTEST) * count / max(peak, 1e-9)
    mixed = 255 + (rgb(color) - 255.0) * strength[:, None]
    bar[:] = np.where((count > 0)[:, None], mixed, _EMPTY).astype(np.uint8)[None]
