"""The watchdog's sentence: who waits for whom when nothing finishes any more."""

import collections
from collections.abc import Sequence

from agentlab.tracing import now_ns
from agentlab.types import EpisodeInFlight

MOST_NAMED = 3


def stall_report(
    episodes: Sequence[EpisodeInFlight], progress_ns: int, reading_since_ns: int | None, after_s: float
) -> str | None:
    """Who waits for whom, when nothing has moved for `after_s`; else None.

    Args:
        episodes: Those in flight.
        progress_ns: When one last finished.
        reading_since_ns: Since when the next task has been awaited; None while it is not.
        after_s: Seconds of silence after which it is told.
    """
    now = now_ns()
    waiting = sorted(episodes, key=lambda episode: episode.since_ns)
    if not waiting:
        awaited_s = 0.0 if reading_since_ns is None else (now - reading_since_ns) / 1e9
        if awaited_s < after_s:
            return None
        return f"No episode is in flight: the stream of tasks has not given the next one for {awaited_s:.0f} s."
    quiet_s = (now - max(progress_ns, waiting[-1].since_ns)) / 1e9
    if quiet_s < after_s:
        return None
    places = collections.Counter(map(place, waiting)).most_common()
    where = ", ".join(f"{count} in {name}" for name, count in places)
    longest = "; ".join(
        f"group {e.group_id}, episode {e.episode}, turn {e.turn}, in {place(e)} for {(now - e.since_ns) / 1e9:.0f} s"
        for e in waiting[:MOST_NAMED]
    )
    return (
        f"Nothing has finished for {quiet_s:.0f} s. {len(waiting)} episodes are in flight: {where}. "
        f"Longest wait: {longest}."
    )


def place(episode: EpisodeInFlight) -> str:
    """The stage of an episode, with the tool that it is in, or what it waits for to begin."""
    return f"{episode.stage} ({episode.detail})" if episode.detail else episode.stage
