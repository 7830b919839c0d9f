"""The tracer: spans and tags are recorded by whoever does the work, and read by anybody at any time."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, Token
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from agentlab.tracing.buffers import MAX_RECORDS, Buffers
from agentlab.tracing.spans import STAGES, Reading, Span, Stage, check_stage, flat, tags_of
from agentlab.tracing.spill import Spill, by_start
from agentlab.tracing.table import SpanTable

_NO_TAGS: tuple[Any, ...] = ()
_tags: ContextVar[tuple[Any, ...]] = ContextVar("agentlab_tags", default=_NO_TAGS)
_current_tags = _tags.get

# Swapped together by `separate`, read on every span.
_clock: Callable[[], int] = perf_counter_ns
_spans = Buffers()
_counters = Buffers(max_records=65_536)
_append = _spans.append
_open: "set[span]" = set()
_spilled: Spill | None = None
_annotate: Callable[[str], contextlib.AbstractContextManager[Any]] | None = None


def now_ns() -> int:
    """The moment, on the clock of the trace: `time.perf_counter_ns`, or the virtual one of a simulation."""
    return _clock()


class span:
    """`with span("step", turn=2): ...` records how long the body took, also when it raises.

    Raises:
        ConfigError: the stage is unknown; names the nearest.
    """

    __slots__ = ("_context", "_note", "_stage", "_tags", "end_ns", "start_ns")

    def __init__(self, stage: Stage, **tags: Any):
        if stage not in STAGES:
            check_stage(stage)
        self._stage = stage
        self._tags = tags
        self._note = None

    def __enter__(self) -> "span":
        self._context = _current_tags()
        if _annotate is not None:
            self._note = _annotate(self._stage)
            self._note.__enter__()
        self.start_ns = _clock()
        _open.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _open.discard(self)
        self.end_ns = _clock()
        tags = self._tags  # below they are `flat`, without the call
        _append((self._stage, self.start_ns, self.end_ns, self._context, *tags, *tags.values()))
        if self._note is not None:
            self._note.__exit__(kind, error, at)

    def tag(self, **tags: Any) -> None:
        """Add what became known inside the body."""
        self._tags = {**self._tags, **tags}

    def becomes(self, stage: Stage, **tags: Any) -> None:
        """It turned out to be of another stage; an unknown one is refused as by the constructor."""
        check_stage(stage)
        self._stage = stage
        self.tag(**tags)

    def so_far(self, now_ns: int) -> Span:
        """The span as if it ended now; it must have been entered."""
        return Span(self._stage, self.start_ns, now_ns, "", tags_of(self._context, flat(self._tags)))


class tagged:
    """`with tagged(group=3, episode=1): ...` puts these tags on every span of the body.

    The tags follow tasks and worker threads that are started inside, because contexts are copied there.
    """

    __slots__ = ("_tags", "_token")
    _token: Token[tuple[Any, ...]]

    def __init__(self, **tags: Any):
        self._tags = tags

    def __enter__(self) -> None:
        self._token = _tags.set(flat(tags_of(_tags.get(), flat(self._tags))))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _tags.reset(self._token)


def record(stage: Stage, start_ns: int, end_ns: int, **tags: Any) -> None:
    """Record a span whose times are known already, as `now_ns()` readings.

    Raises:
        ConfigError: the stage is unknown; names the nearest.
    """
    check_stage(stage)
    _append((stage, start_ns, end_ns, _current_tags(), *tags, *tags.values()))


def counter(name: str, value: float) -> None:
    """Record the value of a counter now, e.g. `counter("queue_depth", 3)`."""
    _counters.append((name, _clock(), value))


# -- reading ---------------------------------------------------------------------------------------


def spans(since_ns: int = 0) -> tuple[Span, ...]:
    """The spans in memory, which are the newest, that ended at or after `since_ns`, by start time."""
    return _as_spans(_spans.read(), since_ns)


def all_spans(since_ns: int = 0) -> Iterator[Span]:
    """Every span that ended at or after `since_ns`, by start time, those on disk too, one after the other."""
    for thread, (stage, start_ns, end_ns, context, *tags) in by_start(_spans, _spilled, since_ns):
        yield Span(stage, start_ns, end_ns, thread, tags_of(context, tags))


def open_spans() -> tuple[Span, ...]:
    """The spans that are under way, as if they ended now, by start time; their thread is not known."""
    while True:
        try:
            under_way = tuple(_open)
            break
        except RuntimeError:  # another thread entered or left one meanwhile, possible only without a GIL
            continue
    moment = _clock()
    return tuple(sorted((one.so_far(moment) for one in under_way), key=_start))


def follow_spans(since_ns: int) -> Callable[[], tuple[Span, ...]]:
    """A function that gives every span that ended at or after `since_ns` exactly once.

    Each call returns what is new since the call before. It belongs to the thread that calls it.
    """
    follower = _spans.follow()
    return lambda: _as_spans(follower.new(), since_ns)


def follow_table(since_ns: int) -> Callable[[], SpanTable]:
    """As `follow_spans`, but as columns and in no order, for those who redraw often."""
    follower = _spans.follow()

    def new() -> SpanTable:
        table = SpanTable.join(SpanTable.of_records(records) for _, records in follower.new())
        return table.where(table.end_ns >= since_ns)

    return new


def counters(since_ns: int = 0) -> tuple[Reading, ...]:
    """The kept counter readings taken at or after `since_ns`, by time."""
    found = [Reading(*row) for _, records in _counters.read() for row in records if row[1] >= since_ns]
    return tuple(sorted(found, key=_time))


def follow_counters(since_ns: int) -> Callable[[], tuple[Reading, ...]]:
    """As `follow_spans`, for counters: each call returns the readings since the call before, by time."""
    follower = _counters.follow()

    def new() -> tuple[Reading, ...]:
        found = [Reading(*row) for _, records in follower.new() for row in records if row[1] >= since_ns]
        return tuple(sorted(found, key=_time))

    return new


# -- where it goes ---------------------------------------------------------------------------------


def spill(folder: Path | None = None) -> None:
    """From now on keep on disk what no longer fits in memory. Does nothing if that is done already.

    Args:
        folder: Where the temporary file lies; None for the system's folder of temporary files. It
            goes with the process.
    """
    global _spilled
    if _spilled is None:
        _spilled = Spill(folder)
        _spans.spill = _spilled.put


def spilled() -> Spill | None:
    """What is kept on disk; None before `spill`."""
    return _spilled


@contextlib.contextmanager
def separate(clock: Callable[[], int] = perf_counter_ns, *, max_records: int = MAX_RECORDS) -> Iterator[None]:
    """Trace the body apart from everything else, on a clock of its own; its trace ends with it.

    For simulations and measurements: no other thread may trace meanwhile, or it traces into this.

    Args:
        clock: Gives the moment in nanoseconds.
        max_records: Spans kept in memory.
    """
    global _clock, _spans, _counters, _append, _open, _spilled
    before = _clock, _spans, _counters, _append, _open, _spilled
    mine = Buffers(max_records)
    _clock, _spans, _counters, _append, _open, _spilled = clock, mine, Buffers(65_536), mine.append, set(), None
    try:
        yield
    finally:
        _clock, _spans, _counters, _append, _open, _spilled = before


@contextlib.contextmanager
def annotated(annotate: Callable[[str], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """While the body runs, enter `annotate(stage)` around every span that begins, on its own thread."""
    global _annotate
    _annotate = annotate
    try:
        yield
    finally:
        _annotate = None


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Record nothing in the body, on all threads; only to measure what recording costs.

    Spans still read the clock, because the engine plans by it. One that ends in the body is lost.
    """
    global _append
    before = span.__enter__, span.__exit__, _append, _counters.append

    def enter(self: span) -> span:
        self._context = _NO_TAGS
        self.start_ns = _clock()
        return self

    def leave(self: span, *_: Any) -> None:
        _open.discard(self)
        self.end_ns = _clock()

    span.__enter__, span.__exit__ = enter, leave  # pyright: ignore[reportAttributeAccessIssue]
    _append = _counters.append = lambda record: None
    try:
        yield
    finally:
        span.__enter__, span.__exit__, _append, _counters.append = before  # pyright: ignore[reportAttributeAccessIssue]


def _as_spans(rows: Iterable[tuple[str, list[tuple[Any, ...]]]], since_ns: int) -> tuple[Span, ...]:
    found = [
        Span(stage, start_ns, end_ns, thread, tags_of(context, tags))
        for thread, records in rows
        for stage, start_ns, end_ns, context, *tags in records
        if end_ns >= since_ns
    ]
    return tuple(sorted(found, key=_start))


def _start(item: Span) -> int:
    return item.start_ns


def _time(item: Reading) -> int:
    return item.time_ns
