"""Where the time of each episode went: waiting for a slot, prefill, decode, tool, environment, reward."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from agentlab.errors import ConfigError
from agentlab.tracing import Span
from agentlab.viz.colors import EPISODE_COLORS
from agentlab.viz.sources import SpanSource, spans_of

_MOST_BARS = 60
PARTS = tuple(EPISODE_COLORS)


@dataclass(frozen=True)
class EpisodeTime:
    """The seconds of one episode by what they went into; `sum(parts.values())` is its duration."""

    group: Any
    episode: Any
    start_ns: int
    duration_s: float
    parts: dict[str, float]


def episode_times(spans: Iterable[Span]) -> tuple[EpisodeTime, ...]:
    """The time of every episode that has ended, by start.

    "slot", "prefill" and "decode" are what the engine said of its model calls, "engine" the rest of
    them; "environment" is its steps, resets and closing without the tools and rewards inside; "other"
    is what no stage covers.
    """
    mine: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        if "episode" in span.tags:
            mine[span.tags.get("group"), span.tags["episode"]].append(span)
    found = []
    for (group, episode), some in mine.items():
        for whole in (span for span in some if span.stage == "rollout"):
            inside = [s for s in some if whole.start_ns <= s.start_ns and s.end_ns <= whole.end_ns and s is not whole]
            parts = _parts(inside, whole.duration_s)
            found.append(EpisodeTime(group, episode, whole.start_ns, whole.duration_s, parts))
    return tuple(sorted(found, key=lambda one: one.start_ns))


def _parts(spans: Sequence[Span], duration_s: float) -> dict[str, float]:
    calls = [span for span in spans if span.stage == "model_call"]
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.stage] += span.duration_s
    parts: dict[str, float] = {
        name: sum(call.tags.get(f"{tag}_s", 0.0) for call in calls) for name, tag in _OF_CALLS.items()
    }
    parts["engine"] = max(0.0, seconds["model_call"] - sum(parts.values()))
    parts["tool"], parts["reward"] = seconds["tool"], seconds["reward"]
    around = seconds["step"] + seconds["reset"] + seconds["close"]
    parts["environment"] = max(0.0, around - parts["tool"] - parts["reward"])
    parts["agent"] = seconds["agent"]
    parts["other"] = max(0.0, duration_s - sum(parts.values()))
    return {name: parts[name] for name in PARTS}


_OF_CALLS = {"slot": "queued", "prefill": "prefill", "decode": "decode"}


def episodes(source: SpanSource, *, ax: Axes | None = None, newest: int = _MOST_BARS) -> Axes:
    """Draw the newest episodes as bars, coloured by what their time went into.

    Args:
        source: A run, or spans in any order.
        ax: Where to draw; by default a new figure.
        newest: Most episodes to draw.

    Raises:
        ConfigError: `newest` is below 1.
    """
    if newest < 1:
        raise ConfigError(f"newest must be at least 1, got {newest}.")
    found = episode_times(spans_of(source))[-newest:]
    ax = ax or _new_axes(len(found))
    if not found:
        ax.set_title("No episode has ended yet")
        return ax
    rows = np.arange(len(found))
    left = np.zeros(len(found))
    total = sum(one.duration_s for one in found) or 1.0
    for name, color in EPISODE_COLORS.items():
        widths = np.array([one.parts[name] for one in found])
        if (share := widths.sum() / total) >= 0.0005:
            ax.barh(rows, widths, left=left, height=0.85, color=color, label=f"{name} {share:.0%}")
        left += widths
    longest = max(one.duration_s for one in found)
    ax.set(xlabel="time (s)", ylabel="episode, oldest on top", ylim=(len(found) - 0.5, -0.5), xlim=(0, longest or 1))
    ax.set_yticks([])
    ax.legend(fontsize=10, frameon=False, ncol=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def _new_axes(count: int) -> Axes:
    from matplotlib import pyplot

    height = 1.8 + 0.11 * min(count, _MOST_BARS)
    return pyplot.subplots(figsize=(6, height), layout="constrained")[1]
