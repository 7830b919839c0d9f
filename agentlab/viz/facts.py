"""The dashboard's words and numbers as HTML and as plain text; everything from outside is escaped."""

import math
from collections.abc import Mapping, Sequence

from agentlab.files import escaped
from agentlab.tracing import Account
from agentlab.types import EngineStats, RunSnapshot
from agentlab.viz.escaping import escape
from agentlab.viz.pictures import gauge_parts, readable_on

_STATUS_COLORS = {
    "starting": "#777777",
    "running": "#00734f",
    "paused": "#8a5a00",
    "finished": "#0072B2",
    "stopped": "#777777",
    "failed": "#b03a00",
}
ENDED = ("finished", "stopped", "failed")


def numbers(snapshot: RunSnapshot, tokens_per_s: float, checkpoint_age_s: float = math.nan) -> list[tuple[str, str]]:
    """(name, value) of what a person wants to know at a glance."""
    engine, last = snapshot.engine, snapshot.metrics[-1] if snapshot.metrics else {}
    episodes = f"{len(snapshot.episodes)}" + (f" of {snapshot.max_concurrency}" if snapshot.max_concurrency else "")
    rows = [
        ("tokens/s", f"{tokens_per_s:,.0f}"),
        ("slots in use", f"{engine.num_running} of {engine.num_slots}"),
        ("requests waiting", str(engine.num_waiting)),
        *_cache(engine),
        ("episodes in flight", episodes),
        ("groups ready", str(snapshot.queue_depth)),
        ("staleness", _staleness(last)),
        ("failed episodes", str(sum(snapshot.failures.values()))),
    ]
    for name, key in (("reward", "reward_mean"), ("loss", "loss")):
        if math.isfinite(value := last.get(key, math.nan)):
            rows.insert(0, (name, f"{value:.3f}"))
            break
    if engine.num_compiled < engine.num_programs:
        rows.insert(0, ("warming up, programs compiled", f"{engine.num_compiled} of {engine.num_programs}"))
    if snapshot.counts.stale:
        rows.append(("stale groups", str(snapshot.counts.stale)))
    if math.isfinite(checkpoint_age_s):
        rows.append(("last checkpoint", f"{duration(checkpoint_age_s)} ago"))
    return rows


def eta_s(snapshot: RunSnapshot) -> float:
    """Seconds until the last update at the pace of the last ten; NaN while that is unknown."""
    times = [row["time_s"] for row in snapshot.metrics[-11:] if "time_s" in row]
    left = snapshot.steps - snapshot.step
    if len(times) >= 2:
        return left * (times[-1] - times[0]) / (len(times) - 1)
    return left * (snapshot.now_ns - snapshot.start_ns) / 1e9 / snapshot.step if snapshot.step else math.nan


def duration(seconds: float) -> str:
    """A duration as a person says it: 42 s, 3 min 05 s, 2 h 10 min."""
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def headline(snapshot: RunSnapshot) -> str:
    """Step, time and what is left, in one line."""
    age = duration((snapshot.now_ns - snapshot.start_ns) / 1e9)
    text = f"step {snapshot.step} of {snapshot.steps} · {age}"
    return text if snapshot.status in ENDED else f"{text} · {duration(eta_s(snapshot))} left"


def head_html(
    snapshot: RunSnapshot,
    tokens_per_s: float,
    checkpoint_age_s: float = math.nan,
    extra: Sequence[tuple[str, str]] = (),
) -> str:
    """Name, status, progress and numbers, those of `extra` too."""
    color = _STATUS_COLORS[snapshot.status]
    done = 100 * snapshot.step / snapshot.steps if snapshot.steps else 0
    chip = f'<span style="background:{color};color:#fff;border-radius:3px;padding:1px 7px">{snapshot.status}</span>'
    cells = "".join(
        f'<span style="margin:0 14px 2px 0;white-space:nowrap;display:inline-block">{escape(name)} '
        f"<b>{escape(value)}</b></span>"
        for name, value in (*numbers(snapshot, tokens_per_s, checkpoint_age_s), *extra)
    )
    return (
        f'<div style="line-height:1.6;overflow-wrap:anywhere"><b>{escape(snapshot.name)}</b> {chip} '
        f"{escape(headline(snapshot))}"
        f'<div style="height:4px;background:#e0e0e0;margin:3px 0"><div style="height:4px;width:{done:.1f}%;'
        f'background:{color}"></div></div>{cells}</div>'
    )


def foot_html(snapshot: RunSnapshot, found: Account, verdict: str, extra: Sequence[str] = ()) -> str:
    """Shares of the device's time, the verdict, notes and errors."""
    chips = "".join(
        f'<span style="background:{color};color:{readable_on(color)};padding:0 6px;margin:0 4px 3px 0;'
        f'border-radius:3px;display:inline-block">{escape(name)} {share:.0%}</span>'
        for name, share, color in gauge_parts(found)
        if share >= 0.005
    )
    notes = "".join(f'<div style="color:#a35200">{escape(note)}</div>' for note in (*snapshot.notes, *extra))
    if snapshot.failures:
        stages = ", ".join(f"{stage} {count}" for stage, count in snapshot.failures.items())
        notes += f'<div style="color:#a35200">failed episodes by stage: {escape(stages)}</div>'
    if snapshot.error:
        notes += f'<div style="color:#b03a00;white-space:pre-wrap">{escape(snapshot.error)}</div>'
    return f'<div style="line-height:1.5;overflow-wrap:anywhere">{chips}<div>{escape(verdict)}</div>{notes}</div>'


def as_text(
    snapshot: RunSnapshot,
    tokens_per_s: float,
    verdict: str,
    extra: Sequence[str] = (),
    checkpoint_age_s: float = math.nan,
) -> str:
    """The dashboard where no widget and no picture can be shown."""
    facts = ", ".join(f"{name} {value}" for name, value in numbers(snapshot, tokens_per_s, checkpoint_age_s))
    lines = [f"{snapshot.name}: {snapshot.status}, {headline(snapshot)}", facts, verdict, *snapshot.notes, *extra]
    return escaped("\n".join([*lines, snapshot.error] if snapshot.error else lines))


def _cache(engine: EngineStats) -> list[tuple[str, str]]:
    """What the engine tells of its cache."""
    prompt = engine.tokens_cached + engine.tokens_prefilled
    rows = [("prompts from cache", f"{engine.tokens_cached / prompt:.0%}")] if prompt else []
    return rows if engine.cache_used is None else [*rows, ("cache in use", f"{engine.cache_used:.0%}")]


def _staleness(row: Mapping[str, float]) -> str:
    mean, most = row.get("staleness_mean", math.nan), row.get("staleness_max", math.nan)
    return f"{mean:.1f} (max {most:.0f})" if math.isfinite(mean) and math.isfinite(most) else "none yet"
