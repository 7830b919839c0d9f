"""The part of the trace that belongs to one run."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from agentlab.tracing import tracer
from agentlab.tracing.spans import Reading, Span


@dataclass(frozen=True)
class Window:
    """What was traced between two moments."""

    start_ns: int
    stop_ns: int
    live: bool
    """Whether spans that are under way belong to it, as if they ended now."""

    def newest(self) -> tuple[Span, ...]:
        """By start, as far as it is in memory."""
        found = [span for span in tracer.spans(self.start_ns) if span.start_ns <= self.stop_ns]
        return (*found, *self._under_way())

    def everything(self) -> Iterator[Span]:
        """By start, also what is kept on disk, one after the other: memory stays bounded."""
        found = (span for span in tracer.all_spans(self.start_ns) if span.start_ns <= self.stop_ns)
        return heapq.merge(found, self._under_way(), key=attrgetter("start_ns"))

    def counters(self) -> tuple[Reading, ...]:
        """By time."""
        return tuple(reading for reading in tracer.counters(self.start_ns) if reading.time_ns <= self.stop_ns)

    def _under_way(self) -> tuple[Span, ...]:
        return tuple(span for span in tracer.open_spans() if span.start_ns >= self.start_ns) if self.live else ()
