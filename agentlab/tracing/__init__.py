"""Continuous tracing: spans of typed stages with tags, counters, kept per thread in bounded memory.

A span of device work ends at a host read that the code needs anyway (sampled tokens, the loss).
Reading is safe from any thread at any time.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from time import perf_counter_ns as now_ns
from types import TracebackType
from typing import Any

from agentlab.tracing.accounting import DEVICE_STAGES, Account, account
from agentlab.tracing.buffers import Buffers
from agentlab.tracing.perfetto import save_trace
from agentlab.tracing.spans import STAGES, Reading, Span, Stage, check_stage

__all__ = [
    "DEVICE_STAGES",
    "STAGES",
    "Account",
    "Reading",
    "Span",
    "Stage",
    "account",
    "counter",
    "counters",
    "follow_spans",
    "now_ns",
    "open_spans",
    "record",
    "save_trace",
    "span",
    "spans",
    "tagged",
]

_NO_TAGS: Mapping[str, Any] = {}
_tags: ContextVar[Mapping[str, Any]] = ContextVar("agentlab_tags", default=_NO_TAGS)
_spans = Buffers()
_counters = Buffers(max_records=65_536)
_append = _spans.append
_current_tags = _tags.get


class span:
    """`with span("step", turn=2): ...` records how long the body took, also when it raises.

    Raises:
        ConfigError: the stage is unknown; names the nearest.
    """

    __slots__ = ("_context", "_stage", "_start_ns", "_tags")

    def __init__(self, stage: Stage, **tags: Any):
        if stage not in STAGES:
            check_stage(stage)
        self._stage = stage
        self._tags = tags or None

    def __enter__(self) -> None:
        self._context = _current_tags()
        self._start_ns = now_ns()
        _open.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _open.discard(self)
        _append((self._stage, self._start_ns, now_ns(), self._context, self._tags))

    def so_far(self, now_ns: int) -> Span:
        """The span as if it ended now; it must have been entered."""
        return Span(self._stage, self._start_ns, now_ns, "", {**self._context, **(self._tags or {})})


_open: set[span] = set()


class tagged:
    """`with tagged(group=3, episode=1): ...` puts these tags on every span of the body.

    The tags follow tasks and worker threads that are started inside, because contexts are copied there.
    """

    __slots__ = ("_tags", "_token")
    _token: Token[Mapping[str, Any]]

    def __init__(self, **tags: Any):
        self._tags = tags

    def __enter__(self) -> None:
        self._token = _tags.set({**_tags.get(), **self._tags})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _tags.reset(self._token)


def record(stage: Stage, start_ns: int, end_ns: int, **tags: Any) -> None:
    """Record a span whose times are known already, as `now_ns()` readings.

    Raises:
        ConfigError: the stage is unknown; names the nearest.
    """
    check_stage(stage)
    _append((stage, start_ns, end_ns, _current_tags(), tags or None))


def counter(name: str, value: float) -> None:
    """Record the value of a counter now, e.g. `counter("queue_depth", 3)`."""
    _counters.append((name, now_ns(), value))


def spans(since_ns: int = 0) -> tuple[Span, ...]:
    """The kept spans that ended at or after `since_ns`, by start time."""
    return _as_spans(_spans.read(), since_ns)


def open_spans() -> tuple[Span, ...]:
    """The spans that are under way, as if they ended now, by start time; their thread is not known."""
    while True:
        try:
            under_way = tuple(_open)
            break
        except RuntimeError:  # another thread entered or left one meanwhile, possible only without a GIL
            continue
    moment = now_ns()
    return tuple(sorted((one.so_far(moment) for one in under_way), key=_start))


def follow_spans(since_ns: int) -> Callable[[], tuple[Span, ...]]:
    """A function that gives every span that ended at or after `since_ns` exactly once.

    Each call returns what is new since the call before. It belongs to the thread that calls it.
    """
    follower = _spans.follow()
    return lambda: _as_spans(follower.new(), since_ns)


def counters(since_ns: int = 0) -> tuple[Reading, ...]:
    """The kept counter readings taken at or after `since_ns`, by time."""
    found = [Reading(*row) for _, records in _counters.read() for row in records if row[1] >= since_ns]
    return tuple(sorted(found, key=_time))


def _as_spans(rows: Iterable[tuple[str, list[tuple[Any, ...]]]], since_ns: int) -> tuple[Span, ...]:
    found = [
        Span(stage, start_ns, end_ns, thread, {**context, **tags} if tags else context)
        for thread, records in rows
        for stage, start_ns, end_ns, context, tags in records
        if end_ns >= since_ns
    ]
    return tuple(sorted(found, key=_start))


def _start(item: Span) -> int:
    return item.start_ns


def _time(item: Reading) -> int:
    return item.time_ns
