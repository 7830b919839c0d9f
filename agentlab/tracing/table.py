"""Spans as columns, so that a hundred thousand of them are counted and drawn by numpy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, get_args

import numpy as np

from agentlab.tracing.spans import Span, Stage, check_stage

_AT_ONCE = 65_536
"""Spans that are turned into columns at once: an iterator of many millions needs no more memory than its table."""
STAGE_CODES: dict[str, int] = {stage: code for code, stage in enumerate(get_args(Stage))}


@dataclass(frozen=True)
class SpanTable:
    """One row per span: `stages` [n] int8 codes, `start_ns` and `end_ns` [n] int64."""

    stages: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray

    @classmethod
    def of(cls, spans: "Iterable[Span] | SpanTable") -> "SpanTable":
        """A table of these spans, in their order.

        Raises:
            ConfigError: a stage is unknown; names the nearest.
        """
        if isinstance(spans, SpanTable):
            return spans
        tables = []
        spans = iter(spans)
        while some := tuple(islice(spans, _AT_ONCE)):
            try:
                tables.append(cls.of_records(some))
            except KeyError as error:
                check_stage(error.args[0])
                raise
        return cls.join(tables)

    @classmethod
    def of_records(cls, records: Sequence[tuple[Any, ...]]) -> "SpanTable":
        """A table of records as the tracer keeps them, whose stages are known to be valid."""
        codes, starts, ends = (list(map(itemgetter(column), records)) for column in range(3))
        codes = np.array(list(map(STAGE_CODES.__getitem__, codes)), np.int8)
        return cls(codes, np.array(starts, np.int64), np.array(ends, np.int64))

    @classmethod
    def join(cls, tables: "Iterable[SpanTable]") -> "SpanTable":
        """The rows of all these tables."""
        rows = [(t.stages, t.start_ns, t.end_ns) for t in (cls.of_records(()), *tables)]
        return cls(*(np.concatenate(column) for column in zip(*rows, strict=True)))

    def __len__(self) -> int:
        return len(self.stages)

    def where(self, keep: np.ndarray) -> "SpanTable":
        """The rows for which `keep` [n] bool is true."""
        return SpanTable(self.stages[keep], self.start_ns[keep], self.end_ns[keep])

    def only(self, *stages: str) -> "SpanTable":
        """The rows of these stages."""
        return self.where(np.isin(self.stages, [STAGE_CODES[stage] for stage in stages]))

    def within(self, start_ns: int, stop_ns: int) -> "SpanTable":
        """The rows that overlap the window, cut to it; empty spans are left out."""
        starts, ends = np.maximum(self.start_ns, start_ns), np.minimum(self.end_ns, stop_ns)
        return SpanTable(self.stages, starts, ends).where(ends > starts)
