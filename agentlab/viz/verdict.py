"""The verdict in words: how busy the device was, what it waited for, and what to change."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentlab.tracing import Account, Reading, Span, Stage, account, reasons
from agentlab.tracing.accounting import Cause
from agentlab.types import EngineStats, RunSnapshot
from agentlab.viz.chips import Chips
from agentlab.viz.prediction import Outlook, Prediction, outlook
from agentlab.viz.workload import workload_of

_WORTH_SAYING = 0.02
"""Smaller shares of the time are left out."""
_WELL_USED = 0.85
_WORTH_QUEUEING_S = 0.01
"""Shorter waits in the engine are left out."""

_WAITED_FOR: dict[Cause, str] = {
    "compile": "compilation",
    "load": "loading",
    "checkpoint": "checkpoints",
    "engine": "the engine's own work on the host between executions",
    "learner": "the learner's own work on the host (packing, publishing weights)",
    "tool": "tools",
    "environment": "environments",
    "reset": "environments to reset",
    "reward": "the reward function",
    "agent": "the agent's own code and the chat template",
    "queue": "the learner to take a waiting group",
    "data": "data",
    "nothing": "something to do: no episode and no update was in flight",
}

_BUSY_WITH: dict[Stage, str] = {
    "prefill": "reading prompts",
    "decode": "sampling",
    "forward_backward": "training",
    "optimizer": "optimizer",
    "weight_sync": "weight swaps",
}


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a run's time went into, and what to change; `str()` of it is for a person."""

    sentence: str
    utilisation: float
    """Share of the time in which the device executed, in [0, 1]."""
    causes: Mapping[Cause, float]
    """Share of the time by what the idle device waited for, largest first."""
    findings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    reasons: Mapping[str, float] = field(default_factory=dict)
    """Share of the time by what kept the device idle, largest first, told apart further: see `tracing.reasons`."""
    predictions: tuple[Prediction, ...] = ()
    """What changes of settings would bring, computed from the trace, best last."""
    ceiling: Prediction | None = None
    """The most that asynchrony can reach with this engine and learner; None if the trace does not tell."""

    def __str__(self) -> str:
        lines = [self.sentence, *(f"  - {text}" for text in self.findings)]
        lines += ["What to change:", *(f"  - {text}" for text in self.advice)] if self.advice else []
        return "\n".join(lines)

    __repr__ = __str__


def diagnose(
    snapshot: RunSnapshot,
    spans: Iterable[Span],
    *,
    found: Account | None = None,
    readings: Iterable[Reading] = (),
) -> Verdict:
    """Say where device time went, and what to change.

    Predictions replay the load that was measured under other settings; they are made where the run
    says how it is configured, enough episodes have ended, and a replay under the settings as they
    are agrees with what was measured.

    Args:
        snapshot: The run as it is.
        spans: What was traced, in any order.
        found: Their account, if it is known already.
        readings: Of counters, by time: what the chips' own runtime says is told beside what was traced.
    """
    spans, said = tuple(spans), tuple(filter(None, (Chips.of(readings).sentence,)))
    found = found or account(spans)
    shares = found.idle_shares if found.duration_s else {}
    if not found.busy_s:
        return Verdict(sentence(found), 0.0, shares, (*said, *_findings(snapshot, spans)), _unsaved(snapshot))
    why = reasons(spans, found.start_ns, found.stop_ns, max_concurrency=_places(snapshot))
    why = {reason: seconds / found.duration_s for reason, seconds in why.items()}
    load = workload_of(snapshot, spans, found)
    seen = load if isinstance(load, str) else outlook(load, found)
    told = () if isinstance(seen, str) else seen.changes
    return Verdict(
        sentence(found),
        found.utilisation,
        shares,
        (*_because(why, spans, snapshot), *said, *_findings(snapshot, spans), *_limits(seen)),
        (
            *_unsaved(snapshot),
            *(f"{change}." for change in told),
            *_advice(snapshot, found, shares, predicted=not isinstance(seen, str)),
        ),
        why,
        told,
        None if isinstance(seen, str) else seen.ceiling,
    )


def _places(snapshot: RunSnapshot) -> int:
    """Episodes that can be in flight at once: the tail of a batch is where fewer are."""
    names = ("group_size", "groups_per_step", "max_off_policy_steps")
    if any(name not in snapshot.settings for name in names):
        return 0
    size, groups, lead = (snapshot.settings[name] for name in names)
    return min(snapshot.max_concurrency, size * groups * (1 + lead))


def _because(why: Mapping[str, float], spans: Sequence[Span], snapshot: RunSnapshot) -> tuple[str, ...]:
    """The reasons for idle time with their numbers, largest first."""
    slow = {name.lower(): (p95, calls) for name, _, p95, calls in _slowest(spans)}
    places, lines = _places(snapshot), []
    for reason, share in why.items():
        if share < _WORTH_SAYING or not places:
            continue
        p95, calls = slow.get(reason.lower(), (0.0, 0))
        timed = f" (p95 {p95:.1f} s over {calls} calls)" if calls else ""
        few = f" with all {places} episodes in flight: too few episodes" if _is_wait(reason) else ""
        lines.append(f"Idle {share:.0%}: {_REASONS.get(reason, reason)}{timed}{few}.")
    waits = [row["wait_batch_s"] for row in snapshot.metrics if "wait_batch_s" in row]
    whole = [row["wait_batch_s"] + row["update_s"] for row in snapshot.metrics if "wait_batch_s" in row]
    if waits and sum(whole):
        lines.append(f"The learner waits for groups {sum(waits) / sum(whole):.0%} of its time.")
    return tuple(lines)


def _is_wait(reason: str) -> bool:
    return reason.startswith("tool") or reason in ("environment", "reset", "reward", "agent")


_REASONS = {
    "long tail": "long tail, the last episodes of a batch are waited for and no other may start",
    "policy": "the engine waits for the policy, no episode may start before the update ends",
    "learner": "the learner's own work on the host",
    "engine": "the engine's own work on the host",
    "nothing": "nothing to do, no episode and no update in flight",
}


def _limits(seen: Outlook | str) -> tuple[str, ...]:
    if isinstance(seen, str):
        return (f"No prediction: {seen}.",) if "configured" not in seen else ()
    top = seen.ceiling
    return (
        f"The most that asynchrony can reach here: device busy {1 - top.idle:.0%}, {top.speedup:.1f} times as fast.",
    )


def sentence(found: Account) -> str:
    """How busy the device was, with what, and what it waited for."""
    if not found.busy_s:
        return "Nothing has executed on the device yet."
    shares = found.idle_shares
    work = [(name, found.busy[stage] / found.duration_s) for stage, name in _BUSY_WITH.items()]
    work = [f"{name} {share:.0%}" for name, share in sorted(work, key=lambda item: -item[1]) if share >= 0.005]
    waits = [f"{_WAITED_FOR[cause]} ({share:.0%})" for cause, share in shares.items() if share >= _WORTH_SAYING]
    text = f"The device was busy {found.utilisation:.0%} of {found.duration_s:.1f} s"
    text += f" ({', '.join(work)})" if work else ""
    return f"{text}; the rest it waited for {_listed(waits)}." if waits else f"{text}."


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _findings(snapshot: RunSnapshot, spans: Sequence[Span]) -> tuple[str, ...]:
    lines = [f"{name}: median {mid:.2f} s, p95 {p95:.2f} s over {n} calls." for name, mid, p95, n in _slowest(spans)]
    engine, counts = snapshot.engine, snapshot.counts
    if engine.num_slots:
        line = f"Slots in use: {engine.num_running} of {engine.num_slots}"
        lines.append(f"{line}, {engine.num_waiting} requests waiting for one." if engine.num_waiting else f"{line}.")
    lines += _calls(engine, spans)
    if counts.stale:
        lines.append(f"{counts.stale} of {counts.admitted} groups were dropped as stale.")
    if snapshot.failures:
        failed = ", ".join(f"{stage} {n}" for stage, n in snapshot.failures.items())
        lines.append(f"Failed episodes by stage: {failed}.")
    if engine.compilations:
        lines.append(f"{engine.compilations} programs were compiled after warm-up; there should be none.")
    return (*lines, *merged(snapshot.notes))


def _unsaved(snapshot: RunSnapshot) -> tuple[str, ...]:
    """What to change where checkpoints cannot be written."""
    if snapshot.unsaved is None:
        return ()
    return (
        "Mend the folder of the checkpoints while the run lives: what was learned since the last one would be lost "
        "with this process, and the run ends with an error unless its last checkpoint is written.",
    )


def _calls(engine: EngineStats, spans: Sequence[Span]) -> list[str]:
    """How long model calls queued in the engine, and what its cache saved."""
    queued = [span.duration_s for span in spans if span.stage == "queueing"]
    prompt = engine.tokens_cached + engine.tokens_prefilled
    lines = []
    if queued and (late := _quantile(queued, 0.95)) >= _WORTH_QUEUEING_S:
        lines.append(f"Model calls queued in the engine: median {_quantile(queued, 0.5):.2f} s, p95 {late:.2f} s.")
    if engine.tokens_cached:
        lines.append(f"Prompts: {engine.tokens_cached / prompt:.0%} of {prompt:,} tokens came from the engine's cache.")
    if engine.cache_used:
        lines.append(f"The engine's cache is {engine.cache_used:.0%} in use.")
    return lines


def merged(notes: Sequence[str]) -> tuple[str, ...]:
    """Notes that say the same of several updates made one, at the place of the first."""
    updates: dict[str, list[str]] = {}
    for note in notes:
        found = re.fullmatch(r"Update (\d+): (.*)", note, flags=re.DOTALL)
        updates.setdefault(found[2] if found else note, []).extend(found.groups()[:1] if found else ())
    return tuple(
        f"Update{'s' if len(steps) > 1 else ''} {_listed(steps)}: {text}" if steps else text
        for text, steps in updates.items()
    )


def _slowest(spans: Sequence[Span]) -> list[tuple[str, float, float, int]]:
    """(name, median s, 95th percentile s, calls) of the three tools or stages that took most time in all."""
    groups: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        if span.stage == "tool":
            groups[f"Tool {span.tags.get('tool', span.tags.get('name', ''))}".rstrip()].append(span.duration_s)
        elif span.stage in ("step", "reset", "reward"):
            groups[span.stage.capitalize()].append(span.duration_s)
    longest = sorted(groups.items(), key=lambda item: -sum(item[1]))[:3]
    return [(name, _quantile(times, 0.5), _quantile(times, 0.95), len(times)) for name, times in longest]


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def _advice(
    snapshot: RunSnapshot, found: Account, shares: Mapping[Cause, float], *, predicted: bool
) -> tuple[str, ...]:
    """By cause; without what predictions with numbers say already."""
    if found.utilisation >= _WELL_USED:
        return ("Nothing: the device is the bottleneck. A faster device, or fewer tokens per episode, would help.",)
    told = ("tool", "environment", "reset", "reward", "nothing", "learner") if predicted else ()
    large: list[Cause] = [cause for cause, share in shares.items() if share >= 0.05 and cause not in told]
    advice = {cause: _change(cause, snapshot, found) for cause in large}
    return tuple(dict.fromkeys(text for text in advice.values() if text))


def _change(cause: Cause, snapshot: RunSnapshot, found: Account) -> str:
    if cause in ("tool", "environment", "reset", "reward", "agent"):
        return _more_episodes(snapshot, found, cause)
    if cause == "nothing":
        return "Keep more groups in flight: raise max_concurrency or groups_per_step, or give more tasks."
    return {
        "engine": "The engine prepares steps on the host: more sequences per step (num_slots) spread that cost.",
        "learner": "Raise max_off_policy_steps to 1 or more, so that episodes go on while the learner works.",
        "queue": "The learner is behind: lower groups_per_step, or shorten episodes.",
        "compile": "Warm up before the run, with the sizes it will use.",
        "checkpoint": "Write checkpoints less often.",
        "load": "",
        "data": "Read tasks ahead of their use.",
    }.get(cause, "")


def _more_episodes(snapshot: RunSnapshot, found: Account, cause: Cause) -> str:
    now, slots = snapshot.max_concurrency, snapshot.engine.num_slots
    if snapshot.engine.num_waiting and slots:
        return f"Requests wait for one of {slots} slots although the device idles: raise num_slots."
    if cause == "agent":
        return "Agent code runs on the event loop: make it shorter, or move slow parts into a tool."
    if not now:
        return "Raise max_concurrency: other episodes can sample while these wait."
    wanted = max(now + 1, round(now / max(found.utilisation, 0.1)))
    return f"Raise max_concurrency from {now} to about {wanted}: other episodes can sample while these wait."
