"""Plays a measured load again under other settings, to predict what they would change."""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentlab.viz.workload import Played, Workload

_MOST_EPISODES = 3000


@dataclass(frozen=True)
class Replayed:
    """What a replay took."""

    duration_s: float
    busy_s: float
    updates: int

    @property
    def utilisation(self) -> float:
        return min(1.0, self.busy_s / self.duration_s) if self.duration_s else 0.0

    @property
    def update_s(self) -> float:
        """Seconds per update, everything included."""
        return self.duration_s / self.updates


def replay(load: Workload) -> Replayed:
    """Run the load: the same episodes in the same order, over and over, until as many updates are done.

    The engine gives every running sequence the same speed, which depends on their number; prompts
    are computed one after the other, and nothing is decoded meanwhile. Groups are admitted as by
    `rollout.pacing.Gate`, dropped when stale, and consumed in the order in which they finish.
    """
    per_update = load.group_size * load.groups_per_step
    shortened = replace(load, updates=max(2, min(load.updates, _MOST_EPISODES // per_update)))
    found = _Replay(shortened).run()
    extra_s = load.extra_s * shortened.updates / load.updates
    return replace(found, duration_s=found.duration_s + extra_s)


class _Replay:
    """One replay; time only passes in `_until`."""

    def __init__(self, load: Workload):
        self._load = load
        self._now = self._busy = self._served = 0.0
        self._order = itertools.count()
        self._running: list[tuple[float, int, _Episode]] = []
        self._queued: deque[_Episode] = deque()
        self._stalled_s = 0.0
        """Seconds of prompts that are still to be computed."""
        self._waits: list[tuple[float, int, _Episode]] = []
        self._source: Iterator[Played] = itertools.cycle(load.episodes)
        self._groups = itertools.count()
        self._starting: deque[_Group] = deque()
        self._admitted = self._given_back = self._version = self._in_flight = 0
        self._ready: deque[_Group] = deque()
        self._batch: list[_Group] = []
        self._update_ends: float | None = None

    def run(self) -> Replayed:
        """Until all updates are done."""
        while self._version < self._load.updates:
            self._admit()
            self._learn()
            times = (self._next_token(), self._waits[0][0] if self._waits else None, self._update_ends)
            moment = min((t for t in times if t is not None), default=None)
            if moment is None:
                break
            self._until(moment)
            self._happen()
        return Replayed(self._now, self._busy, max(1, self._version))

    # -- the engine --------------------------------------------------------------------------------

    @property
    def _frozen(self) -> bool:
        return self._load.exclusive and self._update_ends is not None

    def _step_s(self) -> float:
        places = self._load.step_s
        return float(places[min(len(self._running), len(places) - 1)]) / self._load.sampling_busy

    def _next_token(self) -> float | None:
        if not self._running or self._frozen:
            return None
        return self._now + self._stalled_s + max(0.0, self._running[0][0] - self._served) * self._step_s()

    def _until(self, moment: float) -> None:
        passed = moment - self._now
        sampling = bool(self._running) and not self._frozen
        training = self._update_ends is not None and self._load.update_busy > 0
        if sampling:
            stalled = min(passed, self._stalled_s)
            self._stalled_s -= stalled
            self._served += (passed - stalled) / self._step_s()
        shares = [self._load.sampling_busy * sampling, self._load.update_busy * training]
        self._busy += passed * max(shares)
        self._now = moment

    def _ask(self, episode: "_Episode") -> None:
        """A model call begins."""
        if len(self._running) >= self._load.num_slots:
            self._queued.append(episode)
            return
        self._stalled_s += episode.played.prefilled[episode.turn] * self._load.prefill_s
        heapq.heappush(self._running, (self._served + episode.played.tokens[episode.turn], next(self._order), episode))

    def _answered(self, episode: "_Episode") -> None:
        episode.group.oldest = min(episode.group.oldest, self._version)
        episode.turn += 1
        self._wait(episode)
        if self._queued:
            self._ask(self._queued.popleft())

    # -- episodes and groups -----------------------------------------------------------------------

    def _wait(self, episode: "_Episode") -> None:
        entry = self._now + episode.played.waits_s[episode.turn], next(self._order), episode
        heapq.heappush(self._waits, entry)

    def _admit(self) -> None:
        load = self._load
        limit = load.updates * load.groups_per_step
        while True:
            if not self._starting:
                ahead = min((self._version + 1 + load.max_off_policy_steps) * load.groups_per_step, limit)
                if self._admitted - self._given_back >= ahead + load.extra_groups:
                    return
                self._admitted += 1
                self._starting.append(_Group(load.group_size))
            group = self._starting[0]
            if self._in_flight >= load.max_concurrency:
                return
            self._in_flight += 1
            self._wait(_Episode(next(self._source), group))
            group.to_start -= 1
            if not group.to_start:
                self._starting.popleft()

    def _ended(self, group: "_Group") -> None:
        self._in_flight -= 1
        group.to_end -= 1
        if not group.to_end:
            self._ready.append(group)

    def _learn(self) -> None:
        """Take groups as they are ready, and begin an update if the batch is whole."""
        if self._update_ends is not None:
            return
        while self._ready and len(self._batch) < self._load.groups_per_step:
            group = self._ready.popleft()
            if self._version - group.oldest > self._load.max_off_policy_steps:
                self._given_back += 1
            else:
                self._batch.append(group)
        if len(self._batch) == self._load.groups_per_step:
            self._batch.clear()
            self._update_ends = self._now + self._load.update_s

    def _happen(self) -> None:
        """Everything that is due now."""
        if self._update_ends is not None and self._update_ends <= self._now:
            self._update_ends = None
            self._version += 1
        while self._running and not self._frozen and self._running[0][0] <= self._served + 1e-9:
            self._answered(heapq.heappop(self._running)[2])
        while self._waits and self._waits[0][0] <= self._now + 1e-12:
            episode = heapq.heappop(self._waits)[2]
            if episode.turn < len(episode.played.tokens):
                self._ask(episode)
            else:
                self._ended(episode.group)


class _Episode:
    """Where a replayed episode is."""

    __slots__ = ("group", "played", "turn")

    def __init__(self, played: Played, group: "_Group"):
        self.played, self.group, self.turn = played, group, 0


class _Group:
    """How many of a group's episodes have not begun, and not ended."""

    __slots__ = ("oldest", "to_end", "to_start")

    def __init__(self, size: int):
        self.to_start = self.to_end = size
        self.oldest = 2**62
