"""The last minute of a run, kept up to date at a cost that does not depend on how much was traced in it."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from agentlab.tracing import Account, account
from agentlab.tracing.accounting import DEVICE_STAGES, joined
from agentlab.tracing.table import STAGE_CODES, SpanTable
from agentlab.viz.lanes import flight_of

WINDOW_S = 60.0
_SETTLE_S = 2.0
"""Time older than this is counted once and not looked at again."""
_NS = 1_000_000_000
_REOPEN = [STAGE_CODES[stage] for stage in (*DEVICE_STAGES, "compile")]
"""Stages of which a late record changes what was busy."""


@dataclass(frozen=True)
class View:
    """What a picture of the last minute shows."""

    flight: np.ndarray
    """[stages, columns] mean number of spans in flight, by stage code; the last column is now."""
    found: Account
    """Of the window, from the run's start at the earliest."""


class Minute:
    """Occupancy per column of pixels, and the account of the device's time; owned by one thread.

    Old time is settled: its columns and its accounts are kept, its spans not counted again. A span
    that is recorded only after its time was settled, and was not seen under way, is added to the
    columns; if it is the device's, everything is counted again.

    Args:
        columns: Of the picture.
        start_ns: When the run began: before it nothing counts.
    """

    def __init__(self, columns: int, start_ns: int):
        self._columns, self._start_ns = columns, start_ns
        self._column_ns = round(WINDOW_S * _NS / columns)
        self._flight = np.zeros((len(STAGE_CODES), columns))
        self._last = 0
        """Absolute number of the last column."""
        self._settled_ns: int | None = None
        self._recent = SpanTable.of(())
        self._kept: deque[SpanTable] = deque()
        self._pieces: deque[Account] = deque()

    def take(self, new: SpanTable, under_way: SpanTable, now_ns: int) -> View:
        """The minute before `now_ns`, with spans that have ended since the last call and those under way."""
        from_ns = max(self._start_ns, now_ns - round(WINDOW_S * _NS))
        self._scroll(now_ns)
        self._kept.append(new)
        while self._kept and (not len(self._kept[0]) or self._kept[0].end_ns.max() < from_ns):
            self._kept.popleft()
        if self._settled_ns is None or self._settled_ns < from_ns - self._column_ns or self._add_late(new):
            self._begin_again(from_ns)
            new = SpanTable.join(self._kept)
        assert self._settled_ns is not None
        table = SpanTable.join((self._recent, new))
        self._recent = table = table.where(table.end_ns > self._settled_ns)
        whole = SpanTable.join((table, under_way))
        self._count(whole, now_ns)
        self._settle(whole, self._edge(now_ns - round(_SETTLE_S * _NS)))
        while self._pieces and self._pieces[0].stop_ns <= from_ns:
            self._pieces.popleft()
        newest = account(whole, self._settled_ns, max(now_ns, self._settled_ns))
        return View(self._flight, joined((*self._pieces, newest)))

    def _settle(self, table: SpanTable, until_ns: int) -> None:
        """Keep the accounts up to a moment, in pieces that leave the window one by one."""
        assert self._settled_ns is not None
        while self._settled_ns < until_ns:
            stop_ns = min(until_ns, self._settled_ns + 2 * _NS)
            self._pieces.append(account(table, self._settled_ns, stop_ns))
            self._settled_ns = stop_ns

    def _edge(self, moment_ns: int) -> int:
        return moment_ns // self._column_ns * self._column_ns

    def _scroll(self, now_ns: int) -> None:
        last = now_ns // self._column_ns
        steps = min(self._columns, last - self._last)
        if steps > 0:
            self._flight = np.concatenate([self._flight[:, steps:], np.zeros((len(STAGE_CODES), steps))], axis=1)
        self._last = last

    def _begin_again(self, from_ns: int) -> None:
        self._settled_ns = self._edge(from_ns) if from_ns > self._start_ns else self._start_ns
        self._pieces.clear()
        self._recent = SpanTable.of(())

    def _count(self, table: SpanTable, now_ns: int) -> None:
        """Count the columns that are not settled."""
        assert self._settled_ns is not None
        first = max(0, self._columns - 1 - (self._last - self._settled_ns // self._column_ns))
        edges = (self._last - self._columns + 1 + np.arange(first, self._columns + 1)) * self._column_ns
        self._flight[:, first:] = flight_of(table.within(self._start_ns, now_ns), edges)

    def _add_late(self, new: SpanTable) -> bool:
        """Add to settled columns what was not seen under way; whether everything must be counted again."""
        assert self._settled_ns is not None
        late = new.where((new.start_ns < self._settled_ns) & np.isin(new.stages, _UNSEEN))
        if not len(late):
            return False
        if np.isin(late.stages, _REOPEN).any():
            return True
        shown = self._columns - 1 - (self._last - self._settled_ns // self._column_ns)
        if shown > 0:
            edges = (self._last - self._columns + 1 + np.arange(shown + 1)) * self._column_ns
            self._flight[:, :shown] += flight_of(late.within(self._start_ns, self._settled_ns), edges)
        return False


_UNSEEN = [*_REOPEN, STAGE_CODES["queue"], STAGE_CODES["queueing"]]
"""Stages that are recorded when they have ended: nobody sees them under way."""
