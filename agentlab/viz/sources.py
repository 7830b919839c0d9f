"""What pictures are drawn from: spans, or anything that has them, such as a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from agentlab.tracing import Span
from agentlab.tracing.table import SpanTable


@runtime_checkable
class HasSpans(Protocol):
    """A run, or anything else that gives its spans."""

    def spans(self) -> Iterable[Span]: ...


@runtime_checkable
class HasAllSpans(Protocol):
    """One that also gives those that no longer fit in memory."""

    def all_spans(self) -> Iterator[Span]: ...


@runtime_checkable
class HasMetrics(Protocol):
    """A run, or anything else that gives its updates and evaluations."""

    @property
    def metrics(self) -> Sequence[Mapping[str, float]]: ...
    @property
    def evaluations(self) -> Sequence[Mapping[str, float]]: ...


SpanSource = Iterable[Span] | SpanTable | HasSpans


def spans_of(source: Any) -> Any:
    """The spans of a source, all there are, as an iterable or a table."""
    if isinstance(source, HasAllSpans):
        return source.all_spans()
    return source.spans() if isinstance(source, HasSpans) else source
