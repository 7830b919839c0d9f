"""Keeps on disk what no longer fits in memory, and gives everything back in the order of its start."""

import contextlib
import heapq
import pickle
import queue
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from agentlab.tracing.buffers import Buffer, Buffers, Overflow, Record
from agentlab.tracing.spans import plain_tag

MAX_BYTES = 2 * 2**30
MAX_WAITING = 16
"""Handed over and not yet written. Whoever records beyond that waits for the disk, also on a loop: else memory would
grow without bound, or spans be lost. It takes more than some hundred thousand spans a second."""
_start = itemgetter(1)


def _plain(records: list[Record]) -> list[Record]:
    """The records with plain tags; a context that many share is shared still."""
    contexts: dict[int, Any] = {}
    for _, _, _, context, *_ in records:
        if id(context) not in contexts:
            contexts[id(context)] = tuple(map(plain_tag, context))
    return [
        (stage, start_ns, end_ns, contexts[id(context)], *map(plain_tag, tags))
        for stage, start_ns, end_ns, context, *tags in records
    ]


@dataclass(frozen=True)
class Chunk:
    """Where some records of one thread lie in the file."""

    buffer: Buffer
    first: int
    """Records of its buffer that left before these."""
    start_ns: int
    """The earliest start."""
    end_ns: int
    """The latest end."""
    offset: int
    size_bytes: int
    count: int


class Spill:
    """A temporary file of records that have left their buffers.

    `put` is called by any thread and only hands over, unless too much waits already. A thread
    "agentlab-trace" writes, which lives while there is something to write. The list of chunks is
    appended to by that thread and read by any. The file goes with this object.

    Args:
        folder: Where; None for the folder of temporary files.
        max_bytes: The largest the file may grow; what comes after that is counted in `num_lost`.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES):
        self.num_lost = 0
        self.error: Exception | None = None
        """Why nothing more is written; what comes is counted as lost."""
        self._max_bytes = max_bytes
        self._chunks: list[Chunk] = []
        self._inbox: queue.SimpleQueue[Overflow | threading.Event] = queue.SimpleQueue()
        self._folder = folder
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        """Of the file's position."""
        self._begin = threading.Lock()
        """Of the thread's beginning and end; never held while something is written."""
        self._writing = False

    def put(self, overflow: Overflow | threading.Event) -> None:
        """Take these records; returns at once unless `MAX_WAITING` others wait, so that memory stays bounded."""
        while self._inbox.qsize() >= MAX_WAITING:
            time.sleep(0.001)
        self._inbox.put(overflow)
        with self._begin:
            if not self._writing:
                self._writing = True
                threading.Thread(target=self._main, name="agentlab-trace", daemon=True).start()

    def flush(self) -> None:
        """Wait until all that was put so far is written."""
        done = threading.Event()
        self.put(done)
        done.wait()

    @property
    def num_records(self) -> int:
        """Records on disk."""
        return sum(chunk.count for chunk in self._chunks)

    def chunks(self) -> tuple[Chunk, ...]:
        """What is written, in the order in which it was."""
        return tuple(self._chunks)

    def read(self, chunk: Chunk) -> list[Record]:
        """The records of a chunk, by start."""
        assert self._file is not None, "a chunk lies in a file"
        with self._lock:
            self._file.seek(chunk.offset)
            data = self._file.read(chunk.size_bytes)
        return pickle.loads(zlib.decompress(data))

    def _main(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                written = self._write(item)
            except Exception as error:  # mostly a full disk: the run must go on, and can say what it lost
                self.error, written = error, False
            if not written:
                self.num_lost += len(item.records)

    def _next(self) -> Overflow | threading.Event | None:
        """What to do next; None ends the thread."""
        with self._begin:
            try:
                return self._inbox.get_nowait()
            except queue.Empty:
                self._writing = False
                return None

    def _write(self, overflow: Overflow) -> bool:
        records = sorted(overflow.records, key=_start)
        data = zlib.compress(pickle.dumps(_plain(records), protocol=5), 1)
        if (offset := self._append(data)) is None:
            return False
        last_ns = max(record[2] for record in records)
        place = offset, len(data), len(records)
        self._chunks.append(Chunk(overflow.buffer, overflow.first, records[0][1], last_ns, *place))
        return True

    def _append(self, data: bytes) -> int | None:
        """Where in the file the data lie now; None if they do not fit."""
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, prefix="agentlab-trace-")  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            offset = self._file.seek(0, 2)
            if self.error is not None or offset + len(data) > self._max_bytes:
                return None
            self._file.write(data)
            self._file.flush()
            return offset


def by_start(buffers: Buffers, spill: Spill | None, since_ns: int = 0) -> Iterator[tuple[str, Record]]:
    """(thread name, record) of everything that ended at or after `since_ns`, by start.

    A chunk is in memory only from its first record to its last, so that memory is bounded by what
    overlaps in time.
    """
    kept = buffers.snapshot()
    if spill is not None:
        spill.flush()  # after the snapshot: what left before it is then written, what left later is not counted twice
    gone = {buffer: count for buffer, count, _ in kept}
    streams: list[tuple[int, Any]] = []
    for read, chunk in [(spill.read, chunk) for chunk in spill.chunks()] if spill is not None else ():
        if chunk.end_ns >= since_ns and chunk.first < gone.get(chunk.buffer, float("inf")):
            streams.append((chunk.start_ns, (chunk.buffer.name, lambda read=read, chunk=chunk: read(chunk))))
    for buffer, _, records in kept:
        mine = sorted((r for r in records if r[2] >= since_ns), key=_start)
        if mine:
            streams.append((mine[0][1], (buffer.name, lambda mine=mine: mine)))
    streams.sort(key=itemgetter(0))
    yield from _merged(streams, since_ns)


def _merged(streams: list[tuple[int, Any]], since_ns: int) -> Iterator[tuple[str, Record]]:
    heap: list[tuple[int, int, str, Iterator[Record], Record]] = []
    opened = 0

    def advance(order: int, name: str, rest: Iterator[Record]) -> None:
        with contextlib.suppress(StopIteration):
            record = next(rest)
            while record[2] < since_ns:
                record = next(rest)
            heapq.heappush(heap, (record[1], order, name, rest, record))

    while heap or opened < len(streams):
        while opened < len(streams) and (not heap or streams[opened][0] <= heap[0][0]):
            name, load = streams[opened][1]
            advance(opened, name, iter(load()))
            opened += 1
        if heap:
            _, order, name, rest, record = heapq.heappop(heap)
            yield name, record
            advance(order, name, rest)
