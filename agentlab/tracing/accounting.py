"""Where device time went: busy time from merged intervals of real execution, idle time by its cause."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from agentlab.tracing.spans import Span, Stage
from agentlab.tracing.table import STAGE_CODES, SpanTable

DEVICE_STAGES: tuple[Stage, ...] = ("prefill", "decode", "forward_backward", "optimizer", "weight_sync")
"""Stages during which the device executes; what overlaps counts once."""

Cause = Literal[
    "compile",
    "load",
    "checkpoint",
    "engine",
    "learner",
    "tool",
    "environment",
    "reset",
    "reward",
    "agent",
    "queue",
    "data",
    "nothing",
]
"""What went on while the device was idle. engine: a model call was in flight, and the host prepared it.
learner: an update was under way on the host. nothing: no episode and no update was in flight."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

_RANKS: tuple[tuple[Cause, tuple[str, ...]], ...] = (
    ("compile", ("compile",)),
    ("load", ("load",)),
    ("checkpoint", ("checkpoint",)),
    ("engine", ("model_call", "queueing")),
    ("learner", ("advantage", "pack", "train")),
)
"""The first of these that is under way takes the whole gap."""

_LAST: tuple[tuple[Cause, tuple[str, ...]], ...] = (
    ("agent", ("rollout",)),
    ("queue", ("queue",)),
    ("data", ("data",)),
)
"""Taken only when no episode waits for anything; an episode between its stages is in its agent."""


@dataclass(frozen=True)
class Account:
    """Device time between two moments; `busy_s` plus the sum of `idle` is the duration."""

    start_ns: int
    stop_ns: int
    busy_s: float
    busy: Mapping[Stage, float]
    """Seconds by device stage; where stages overlap the time is split evenly. Sums to `busy_s`."""
    idle: Mapping[Cause, float]
    """Seconds by cause, longest first; causes that took no time are left out."""

    @property
    def duration_s(self) -> float:
        return (self.stop_ns - self.start_ns) / 1e9

    @property
    def utilisation(self) -> float:
        """Share of the time in which the device executed, in [0, 1]; 0 of no time."""
        return min(1.0, self.busy_s / self.duration_s) if self.stop_ns > self.start_ns else 0.0

    @property
    def idle_shares(self) -> dict[Cause, float]:
        """Share of the whole time by cause, largest first; with `utilisation` they sum to 1."""
        return {cause: seconds / self.duration_s for cause, seconds in self.idle.items()}


def account(spans: Iterable[Span] | SpanTable, start_ns: int | None = None, stop_ns: int | None = None) -> Account:
    """Split the time from `start_ns` to `stop_ns` into busy and idle, and idle by cause.

    Within a gap, episodes that wait for different things share it in proportion to their number.
    A tool or reward that runs inside an environment's step counts as itself, not as the step.

    Args:
        spans: Any spans, in any order; those outside the window count nothing.
        start_ns: A `now_ns()` reading; by default the first span's start.
        stop_ns: Likewise; by default the last span's end.
    """
    table = SpanTable.of(spans)
    table = table.where(table.end_ns > table.start_ns)
    start, stop = _window(table, start_ns, stop_ns)
    sweep = Sweep(table.within(start, stop), start, stop)
    together = device_pieces(sweep)
    busy: dict[Stage, float] = {
        stage: sweep.seconds(sweep.active(stage) / np.maximum(together, 1)) for stage in DEVICE_STAGES
    }
    idle: dict[Cause, float] = {cause: sweep.seconds(share) for cause, share in causes_of(sweep, together == 0).items()}
    return Account(start, stop, sweep.seconds(together > 0), busy, longest_first(idle))


def longest_first(idle: Mapping[Cause, float]) -> dict[Cause, float]:
    """The causes that took any time, the longest first."""
    order: list[Cause] = sorted(idle, key=lambda cause: -idle[cause])
    return {cause: idle[cause] for cause in order if idle[cause] > 0}


def device_pieces(sweep: "Sweep") -> np.ndarray:
    """[pieces] how many executions are under way."""
    return sum((sweep.active(stage) for stage in DEVICE_STAGES), sweep.nowhere)


def joined(accounts: Iterable[Account]) -> Account:
    """The account of several stretches of time, one after the other; at least one."""
    accounts = tuple(accounts)
    busy: dict[Stage, float] = {stage: math.fsum(one.busy[stage] for one in accounts) for stage in DEVICE_STAGES}
    idle: dict[Cause, float] = {}
    for one in accounts:
        for cause, seconds in one.idle.items():
            idle[cause] = idle.get(cause, 0.0) + seconds
    whole: dict[Cause, float] = dict(sorted(idle.items(), key=lambda item: -item[1]))
    return Account(accounts[0].start_ns, accounts[-1].stop_ns, math.fsum(one.busy_s for one in accounts), busy, whole)


def _window(table: SpanTable, start_ns: int | None, stop_ns: int | None) -> tuple[int, int]:
    if start_ns is None:
        start_ns = int(table.start_ns.min()) if len(table) else min(0, stop_ns or 0)
    if stop_ns is None:
        stop_ns = int(table.end_ns.max()) if len(table) else start_ns
    return start_ns, max(start_ns, stop_ns)


class Sweep:
    """Time cut at every start and end, so that nothing changes within a piece."""

    def __init__(self, table: SpanTable, start_ns: int, stop_ns: int):
        moments = np.concatenate([table.start_ns, table.end_ns, np.array([start_ns, stop_ns], np.int64)])
        cuts, places = np.unique(moments, return_inverse=True)
        self._lengths_ns = np.diff(cuts).astype(np.float64)
        self.nowhere = np.zeros(len(self._lengths_ns), np.int64)
        order = self._order = np.argsort(table.stages, kind="stable")
        self._bounds = np.searchsorted(table.stages[order], np.arange(len(STAGE_CODES) + 1))
        self._starts, self._ends = places[: len(table)][order], places[len(table) : 2 * len(table)][order]
        self._counted: dict[str, np.ndarray] = {}

    def active(self, *stages: str) -> np.ndarray:
        """[pieces] how many spans of these stages are under way in each piece."""
        counts = [self._active(stage) for stage in stages]
        return counts[0] if len(counts) == 1 else sum(counts, self.nowhere)

    def active_rows(self, rows: np.ndarray) -> np.ndarray:
        """[pieces] how many of these rows of the table, [n] bool, are under way in each piece."""
        mine = rows[self._order]
        return self._count(self._starts[mine], self._ends[mine])

    def _active(self, stage: str) -> np.ndarray:
        if stage not in self._counted:
            mine = slice(self._bounds[STAGE_CODES[stage]], self._bounds[STAGE_CODES[stage] + 1])
            empty = mine.start == mine.stop
            self._counted[stage] = self.nowhere if empty else self._count(self._starts[mine], self._ends[mine])
        return self._counted[stage]

    def _count(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        pieces = len(self._lengths_ns)
        changes = np.bincount(starts, minlength=pieces + 1) - np.bincount(ends, minlength=pieces + 1)
        return np.cumsum(changes)[:pieces]

    def seconds(self, share: np.ndarray) -> float:
        """Seconds of the pieces, each weighted by its share in [0, 1]."""
        return float((self._lengths_ns * share).sum()) / 1e9 if share.any() else 0.0


def causes_of(sweep: Sweep, gap: np.ndarray) -> dict[Cause, np.ndarray]:
    """By cause, [pieces] the share that it takes of each piece of a gap, [pieces] bool; they sum to the gap."""
    found: dict[Cause, np.ndarray] = {}
    for cause, stages in _RANKS:
        found[cause] = gap & (sweep.active(*stages) > 0)
        gap = gap & ~found[cause]
    waits = waits_of(sweep)
    total = sum(waits.values(), sweep.nowhere)
    for cause, count in waits.items():
        found[cause] = np.where(gap, count / np.maximum(total, 1), 0.0)
    gap = gap & (total == 0)
    for cause, stages in _LAST:
        here = gap & (sweep.active(*stages) > 0)
        found[cause] = np.where(here, 1.0, found[cause]) if cause in found else here
        gap = gap & ~here
    found["nothing"] = gap
    return found


def waits_of(sweep: Sweep) -> dict[Cause, np.ndarray]:
    """[pieces] episodes that wait outside the model, by what they wait for."""
    tools, rewards = sweep.active("tool"), sweep.active("reward")
    return {
        "tool": tools,
        "reward": rewards,
        "environment": np.maximum(sweep.active("step") - tools - rewards, 0) + sweep.active("close"),
        "reset": sweep.active("reset"),
        "agent": sweep.active("agent"),
    }
