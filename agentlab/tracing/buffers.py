"""Bounded memory of spans and counters: one buffer per thread, which only that thread appends to."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")
MAX_RECORDS = 262_144
"""Records kept over all threads, roughly 100 MB at most."""
REBALANCE_EVERY = 4096
MAX_CHUNK = 4096
"""Records that leave a buffer together when it spills."""

Record = tuple[Any, ...]
"""Of a span: stage, start, end, flat tags of its context, then its own (see `spans.flat`); of a counter: a reading."""


class Buffer:
    """The newest records of one thread; appended to and trimmed by that thread alone, read by any."""

    def __init__(self, limit: int):
        self.thread = threading.current_thread()
        self.name = self.thread.name
        self.records: deque[Record] = deque()
        self.limit = limit
        self.until_rebalance = REBALANCE_EVERY
        self.num_gone = 0
        """Records that are no longer here, all of them older than those that are."""
        self._trims = 0
        self._trimming = False
        """Whether the owner is removing: then nobody can read."""

    def copy(self) -> tuple[int, list[Record]]:
        """(how many are gone, all that are here, oldest first); safe while the owner appends."""
        return self._read(lambda gone: (gone, list(self.records)))

    def newer(self, count: int) -> tuple[int, list[Record]]:
        """(how many there were ever, those after the first `count` that are still here, oldest first)."""

        def read(gone: int) -> tuple[int, list[Record]]:
            ever = gone + len(self.records)
            return ever, list(islice(reversed(self.records), max(0, ever - count)))[::-1]

        return self._read(read)

    def oldest(self, count: int) -> list[Record]:
        """The oldest ones; only for the owner, or when the owner has ended."""
        return list(islice(self.records, count))

    def drop(self, count: int) -> None:
        """Remove the oldest ones; only for the owner, or when the owner has ended."""
        pop, ever = self.records.popleft, self.num_gone + len(self.records)
        self._trimming = True
        try:
            for _ in range(count):
                pop()
        finally:  # an interrupt of the main thread may come at any pop
            self.num_gone = ever - len(self.records)
            self._trims += 1
            self._trimming = False

    def _read(self, read: Callable[[int], T]) -> T:
        """`read(num_gone)` of a moment in which the owner removes nothing."""
        while True:
            before = self._trims
            try:
                found = read(self.num_gone)
            except RuntimeError:  # the owner appended or removed meanwhile
                continue
            if before == self._trims and not self._trimming:
                return found
            time.sleep(0)  # lets the owner end its removal


@dataclass(frozen=True)
class Overflow:
    """Oldest records of a thread that have left its buffer; `first` counts those that left before."""

    buffer: Buffer
    first: int
    records: list[Record]


class Buffers:
    """The buffers of all threads. The lock guards their list only, never an append.

    Args:
        max_records: Kept over all threads.
        spill: Told, on the thread that appends, of records that leave; must return at once. None
            forgets them.
    """

    def __init__(self, max_records: int = MAX_RECORDS, spill: Callable[[Overflow], Any] | None = None):
        self.max_records = max_records
        self.spill = spill
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: list[Buffer] = []

    def append(self, record: Record) -> None:
        """Keep a record in the calling thread's buffer; beyond its limit the oldest leave."""
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
        if len(records) > buffer.limit:
            self._overflow(buffer)

    def read(self) -> list[tuple[str, list[Record]]]:
        """(thread name, its records oldest first), for every thread that has or had a buffer."""
        return [(buffer.name, records) for buffer, _, records in self.snapshot()]

    def follow(self) -> "Follower":
        """A reader that gets every record once, as long as it asks before buffers wrap around."""
        return Follower(self)

    def all(self) -> tuple[Buffer, ...]:
        """Every buffer."""
        with self._lock:
            return tuple(self._all)

    def snapshot(self) -> list[tuple[Buffer, int, list[Record]]]:
        """Every buffer with how many of its records are gone and a copy of the others, oldest first."""
        return [(buffer, *buffer.copy()) for buffer in self.all()]

    def _overflow(self, buffer: Buffer) -> None:
        excess = len(buffer.records) - buffer.limit
        if self.spill is None:
            buffer.drop(excess)
        else:
            self._give_away(buffer, excess + min(MAX_CHUNK, buffer.limit // 2))

    def _give_away(self, buffer: Buffer, count: int) -> None:
        first = buffer.num_gone
        for start in range(0, count, MAX_CHUNK):
            leaving = buffer.oldest(min(MAX_CHUNK, count - start))
            # Given away before it is gone from here, so that a reader finds it in one of the two places.
            if leaving and self.spill is not None:
                self.spill(Overflow(buffer, first + start, leaving))
            buffer.drop(len(leaving))

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
                    self._give_away(buffer, len(buffer.records))
            live = sorted(len(buffer.records) for buffer in self._all if buffer.thread.is_alive())
            share = _fair_share(live, self.max_records - min(kept, half))
            for buffer in self._all:
                buffer.limit = share


class Follower:
    """Reads what is new since it was last asked; belongs to the thread that asks."""

    def __init__(self, buffers: Buffers):
        self._buffers = buffers
        self._read: dict[Buffer, int] = {}

    def new(self) -> list[tuple[str, list[Record]]]:
        """(thread name, its records since the last call, oldest first), for every thread with any."""
        return [(buffer.name, records) for buffer, records in self._fresh()]

    def _fresh(self) -> Iterator[tuple[Buffer, list[Record]]]:
        read, self._read = self._read, {}
        for buffer in self._buffers.all():
            self._read[buffer], fresh = buffer.newer(read.get(buffer, 0))
            if fresh:
                yield buffer, fresh


def _fair_share(lengths: list[int], total: int) -> int:
    """The largest limit with sum(min(length, limit)) <= total, given the lengths in rising order; at least 1."""
    for index, length in enumerate(lengths):
        share = total // (len(lengths) - index)
        if length > share:
            return max(1, share)
        total -= length
    return max(1, total + (lengths[-1] if lengths else 0))
