"""What a trace says of a run's load: how episodes wait, what they sample, how fast engine and learner are."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentlab.tracing import Account, Span
from agentlab.tracing.table import SpanTable
from agentlab.types import RunSnapshot, mean

_FEWEST_EPISODES = 8
_ONE_OFF = ("compile", "load", "checkpoint")
"""Causes of idle time that another number of episodes would not change."""


@dataclass(frozen=True)
class Played:
    """One episode: what it waited for outside of the engine before each model call, and after the last."""

    waits_s: tuple[float, ...]
    """One more than there are calls."""
    tokens: tuple[float, ...]
    """Sampled by each call."""
    prefilled: tuple[float, ...]
    """Prompt tokens that each call computed."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a replay needs; all of it measured."""

    episodes: tuple[Played, ...]
    step_s: np.ndarray
    """[most sequences + 1] seconds of one decode step by the number of sequences."""
    prefill_s: float
    """Per prompt token; nothing is decoded meanwhile."""
    update_s: float
    exclusive: bool
    """Whether nothing is decoded during an update."""
    sampling_busy: float
    """Share of the time with a model call under way in which the device executes."""
    update_busy: float
    """Share of an update in which the device executes; 0 if it is another device's."""
    extra_s: float
    """Seconds of the run that waited for one-off things."""
    updates: int
    group_size: int
    groups_per_step: int
    extra_groups: int
    max_concurrency: int
    max_off_policy_steps: int
    num_slots: int


def workload_of(snapshot: RunSnapshot, spans: Sequence[Span], found: Account) -> Workload | str:
    """The load of a run, or why its trace does not tell it."""
    settings = snapshot.settings
    names = ("group_size", "groups_per_step", "max_off_policy_steps", "max_concurrency")
    if any(name not in settings for name in names):
        return "the run does not say how it is configured"
    mine = [span for span in spans if not span.tags.get("evaluation")]
    episodes = _episodes(mine)
    updates = [span.duration_s for span in mine if span.stage == "train"]
    updates = updates or [row["update_s"] for row in snapshot.metrics if "update_s" in row]
    if len(episodes) < _FEWEST_EPISODES or not updates:
        return f"only {len(episodes)} episodes and {len(updates)} updates have ended"
    decode = [span for span in mine if span.stage == "decode" and span.tags.get("tokens")]
    if not decode or not any(any(episode.tokens) for episode in episodes):
        return "the engine does not trace its decode steps"
    table = SpanTable.of(mine)
    train_s = sum(span.duration_s for span in mine if span.stage == "train")
    on_device = found.busy["forward_backward"] + found.busy["optimizer"]
    sampling_s = found.busy["decode"] + found.busy["prefill"]
    return Workload(
        episodes=episodes,
        step_s=_step_times(decode, max(snapshot.engine.num_slots, settings["max_concurrency"], 1)),
        prefill_s=_prefill_s(mine),
        update_s=mean(updates),
        exclusive=_exclusive(table),
        sampling_busy=sampling_s / (sampling_s + found.idle.get("engine", 0.0)),
        update_busy=min(1.0, on_device / train_s) if train_s else 0.0,
        extra_s=sum(found.idle.get(cause, 0.0) for cause in _ONE_OFF),
        updates=len(updates),
        extra_groups=settings.get("extra_groups", 0),
        num_slots=max(snapshot.engine.num_slots or settings["max_concurrency"], _most_at_once(decode)),
        **{name: settings[name] for name in names},
    )


def _episodes(spans: Sequence[Span]) -> tuple[Played, ...]:
    """Those that have ended, by start."""
    calls: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        if span.stage == "model_call" and "tokens" in span.tags:
            calls[span.tags.get("group"), span.tags.get("episode")].append(span)
    whole = [span for span in spans if span.stage == "rollout"]
    played = []
    for span in sorted(whole, key=_place):
        key = span.tags.get("group"), span.tags.get("episode")
        mine = [call for call in calls[key] if span.start_ns <= call.start_ns and call.end_ns <= span.end_ns]
        if mine:
            played.append(_played(span, sorted(mine, key=lambda call: call.start_ns)))
    return tuple(played)


def _place(span: Span) -> tuple[int, int, str, int]:
    """By start; of those that start together, in the order of admission, which group ids begin with."""
    group = str(span.tags.get("group", ""))
    number = group.partition(":")[0]
    return span.start_ns, int(number) if number.isdecimal() else 0, group, span.tags.get("episode", 0)


def _played(whole: Span, calls: Sequence[Span]) -> Played:
    begins = [*(call.start_ns for call in calls), whole.end_ns]
    ends = [whole.start_ns, *(call.end_ns for call in calls)]
    return Played(
        tuple(max(0, begin - end) / 1e9 for begin, end in zip(begins, ends, strict=True)),
        tuple(float(call.tags["tokens"]) for call in calls),
        tuple(float(call.tags.get("prefilled", 0)) for call in calls),
    )


def _step_times(decode: Sequence[Span], most: int) -> np.ndarray:
    """[most * 8 + 1] seconds per step: measured where it was, and on along the line of the upper half beyond."""
    spent: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for span in decode:
        count = max(1, int(span.tags.get("num_sequences", 1)))
        spent[count][0] += span.duration_s
        spent[count][1] += span.tags["tokens"] / count
    counts = sorted(count for count in spent if spent[count][1] > 0)
    times = [spent[count][0] / spent[count][1] for count in counts]
    places = np.arange(most * 8 + 1)
    found = np.interp(places, counts, times)
    upper = [index for index, count in enumerate(counts) if count >= counts[-1] / 2]
    slope = 0.0
    if len(upper) > 1:
        weights = [spent[counts[index]][0] for index in upper]
        slope = np.polyfit([counts[i] for i in upper], [times[i] for i in upper], 1, w=np.sqrt(weights))[0]
    slope = min(max(slope, 0.0), times[-1] / counts[-1])
    beyond = places > counts[-1]
    found[beyond] = times[-1] + slope * (places[beyond] - counts[-1])
    return found


def _most_at_once(decode: Sequence[Span]) -> int:
    return max(int(span.tags.get("num_sequences", 1)) for span in decode)


def _prefill_s(spans: Sequence[Span]) -> float:
    mine = [span for span in spans if span.stage == "prefill"]
    tokens = sum(span.tags.get("tokens", 0) for span in mine)
    return sum(span.duration_s for span in mine) / tokens if tokens else 0.0


def _exclusive(table: SpanTable) -> bool:
    """Whether decoding stands still during updates although sequences wait for it; so it is taken to be if none did."""
    train = table.only("forward_backward")
    if not len(train):
        return False
    asked = _overlap_s(train, table.only("model_call"))
    return not asked or _overlap_s(train, table.only("decode", "prefill")) < 0.3 * asked


def _overlap_s(first: SpanTable, second: SpanTable) -> float:
    """Seconds in which at least one span of each is under way."""
    return _union_s(first) + _union_s(second) - _union_s(SpanTable.join((first, second)))


def _union_s(table: SpanTable) -> float:
    order = np.argsort(table.start_ns)
    starts, ends = table.start_ns[order], np.maximum.accumulate(table.end_ns[order])
    if not len(starts):
        return 0.0
    gaps = np.maximum(starts[1:] - ends[:-1], 0)
    return float(ends[-1] - starts[0] - gaps.sum()) / 1e9
