"""Why the device was idle, told apart by what could be changed: by tool, by places taken, by the tail of a batch."""

from collections.abc import Mapping, Sequence

import numpy as np

from agentlab.tracing.accounting import Cause, Sweep, causes_of, device_pieces, waits_of
from agentlab.tracing.spans import Span
from agentlab.tracing.table import SpanTable

TAIL = "long tail"
POLICY = "policy"


def reasons(
    spans: Sequence[Span], start_ns: int | None = None, stop_ns: int | None = None, *, max_concurrency: int = 0
) -> Mapping[str, float]:
    """Seconds of idle device time by reason, longest first; they sum to the idle time of `account`.

    The causes of `account`, of which these are told apart further:

    - "tool" becomes "tool NAME", by the tools that ran;
    - what episodes wait for becomes "long tail" while fewer of them are in flight than
      `max_concurrency`: no other could start, and the last ones keep the device waiting;
    - "learner" becomes "policy" while no episode is in flight: the engine waits for new weights.

    Args:
        spans: In any order.
        start_ns, stop_ns: As in `account`.
        max_concurrency: Episodes that may be in flight; 0 if that is not known: nothing is tail.
    """
    table = SpanTable.of(spans)
    start, stop = _window(table, start_ns, stop_ns)
    kept = [span for span in spans if span.end_ns > start and span.start_ns < stop and span.end_ns > span.start_ns]
    cut = SpanTable.of(kept)
    cut = SpanTable(cut.stages, np.maximum(cut.start_ns, start), np.minimum(cut.end_ns, stop))
    sweep = Sweep(cut, start, stop)
    shares = causes_of(sweep, device_pieces(sweep) == 0)
    episodes = sweep.active("rollout")
    tail = (episodes > 0) & (episodes < max_concurrency)
    found: dict[str, float] = {}
    for cause, share in shares.items():
        for name, part in _told_apart(cause, share, sweep, tail, episodes, kept).items():
            found[name] = found.get(name, 0.0) + sweep.seconds(part)
    return dict(sorted(((name, s) for name, s in found.items() if s > 0), key=lambda item: -item[1]))


def _window(table: SpanTable, start_ns: int | None, stop_ns: int | None) -> tuple[int, int]:
    whole = table.where(table.end_ns > table.start_ns)
    start = start_ns if start_ns is not None else int(whole.start_ns.min(initial=2**62)) if len(whole) else 0
    stop = stop_ns if stop_ns is not None else int(whole.end_ns.max(initial=start)) if len(whole) else start
    return start, max(start, stop)


def _told_apart(
    cause: Cause,
    share: np.ndarray,
    sweep: Sweep,
    tail: np.ndarray,
    episodes: np.ndarray,
    spans: Sequence[Span],
) -> dict[str, np.ndarray]:
    if cause == "learner" and sweep.active("rollout").any():
        return {POLICY: np.where(episodes == 0, share, 0.0), cause: np.where(episodes > 0, share, 0.0)}
    if cause not in waits_of(sweep):
        return {cause: share}
    parts = {TAIL: np.where(tail, share, 0.0)}
    rest = np.where(tail, 0.0, share)
    if cause != "tool":
        return parts | {cause: rest}
    names = np.array([span.tags.get("tool", "") if span.stage == "tool" else None for span in spans], object)
    total = np.maximum(sweep.active("tool"), 1)
    for name in dict.fromkeys(name for name in names if name is not None):
        parts[f"tool {name}".rstrip()] = rest * sweep.active_rows(names == name) / total
    return parts
