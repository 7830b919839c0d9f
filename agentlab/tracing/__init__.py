"""Continuous tracing: spans of typed stages with tags, counters, kept per thread in bounded memory.

A span of device work ends at a host read that the code needs anyway (sampled tokens, the loss).
Reading is safe from any thread at any time.
"""

from agentlab.tracing.accounting import DEVICE_STAGES, Account, account
from agentlab.tracing.perfetto import save_trace
from agentlab.tracing.reasons import reasons
from agentlab.tracing.spans import STAGES, Reading, Span, Stage
from agentlab.tracing.table import SpanTable
from agentlab.tracing.tracer import (
    all_spans,
    annotated,
    counter,
    counters,
    disabled,
    follow_counters,
    follow_spans,
    follow_table,
    now_ns,
    open_spans,
    record,
    separate,
    span,
    spans,
    spill,
    spilled,
    tagged,
)
from agentlab.tracing.window import Window

__all__ = [
    "DEVICE_STAGES",
    "STAGES",
    "Account",
    "Reading",
    "Span",
    "SpanTable",
    "Stage",
    "Window",
    "account",
    "all_spans",
    "annotated",
    "counter",
    "counters",
    "disabled",
    "follow_counters",
    "follow_spans",
    "follow_table",
    "now_ns",
    "open_spans",
    "reasons",
    "record",
    "save_trace",
    "separate",
    "span",
    "spans",
    "spill",
    "spilled",
    "tagged",
]
