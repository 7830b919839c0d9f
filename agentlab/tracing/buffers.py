"""Bounded memory of spans and counters: one buffer per thread, which only that thread appends to."""

import threading
from collections import deque
from typing import Any

MAX_RECORDS = 262_144
"""Records kept over all threads, roughly 100 MB at most."""
REBALANCE_EVERY = 4096


class Buffer:
    """The newest records of one thread; appended to and trimmed by that thread alone, read by any."""

    def __init__(self, limit: int):
        self.thread = threading.current_thread()
        self.name = self.thread.name
        self.records: deque[tuple[Any, ...]] = deque()
        self.limit = limit
        self.until_rebalance = REBALANCE_EVERY

    def copy(self) -> list[tuple[Any, ...]]:
        """All records, oldest first; safe while the owner appends."""
        while True:
            try:
                return list(self.records)
            except RuntimeError:  # the owner appended during the copy, possible only without a GIL
                continue


class Buffers:
    """The buffers of all threads. The lock guards their list only, never an append."""

    def __init__(self, max_records: int = MAX_RECORDS):
        self.max_records = max_records
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: list[Buffer] = []

    def append(self, record: tuple[Any, ...]) -> None:
        """Keep a record in the calling thread's buffer, and drop that thread's oldest beyond its limit."""
        try:
            buffer = self._local.buffer
        except AttributeError:
            buffer = self._register()
        records = buffer.records
        records.append(record)
        buffer.until_rebalance -= 1
        if not buffer.until_rebalance:
            buffer.until_rebalance = REBALANCE_EVERY
            self._rebalance()
        while len(records) > buffer.limit:
            records.popleft()

    def read(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """(thread name, its records oldest first), for every thread that has or had a buffer."""
        return [(buffer.name, records) for buffer, records in self.snapshot()]

    def follow(self) -> "Follower":
        """A reader that gets every record once, as long as it asks before buffers wrap around."""
        return Follower(self)

    def snapshot(self) -> list[tuple[Buffer, list[tuple[Any, ...]]]]:
        """Every buffer with a copy of its records, oldest first."""
        with self._lock:
            buffers = tuple(self._all)
        return [(buffer, buffer.copy()) for buffer in buffers]

    def _register(self) -> Buffer:
        buffer = self._local.buffer = Buffer(self.max_records)
        with self._lock:
            self._all.append(buffer)
        self._rebalance()
        return buffer

    def _rebalance(self) -> None:
        """Let short buffers keep all and long ones share the rest; forget the longest-ended threads first."""
        with self._lock:
            half = self.max_records // 2
            ended = [buffer for buffer in self._all if not buffer.thread.is_alive()]
            kept = 0
            for buffer in reversed(ended):
                kept += len(buffer.records)
                if kept > half or not buffer.records:
                    self._all.remove(buffer)
            live = sorted(len(buffer.records) for buffer in self._all if buffer.thread.is_alive())
            share = _fair_share(live, self.max_records - min(kept, half))
            for buffer in self._all:
                buffer.limit = share


class Follower:
    """Reads what is new since it was last asked; belongs to the thread that asks."""

    def __init__(self, buffers: Buffers):
        self._buffers = buffers
        self._last: dict[Buffer, tuple[Any, ...]] = {}

    def new(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """(thread name, its records since the last call, oldest first), for every thread with any."""
        found = []
        last, self._last = self._last, {}
        for buffer, records in self._buffers.snapshot():
            seen = last.get(buffer)
            fresh = len(records)
            while fresh and records[fresh - 1] is not seen:
                fresh -= 1
            if records:
                self._last[buffer] = records[-1]
            if fresh < len(records):
                found.append((buffer.name, records[fresh:]))
        return found


def _fair_share(lengths: list[int], total: int) -> int:
    """The largest limit with sum(min(length, limit)) <= total, given the lengths in rising order; at least 1."""
    for index, length in enumerate(lengths):
        share = total // (len(lengths) - index)
        if length > share:
            return max(1, share)
        total -= length
    return max(1, total + (lengths[-1] if lengths else 0))
