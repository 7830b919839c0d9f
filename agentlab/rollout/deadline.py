"""The deadlines of an episode and its stages, with shorter ones for the parts of a step."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from agentlab.concurrency import post
from agentlab.environments.parts import StepPart
from agentlab.tracing import now_ns
from agentlab.types import EpisodeStage

ROUNDING_S = 1e-6
"""Time that is left and can only be rounding: a clock that jumps might never get over it."""


@dataclass(frozen=True)
class Part:
    """A tool call or a reward that is under way."""

    kind: StepPart
    name: str
    since_ns: int
    end_s: float
    """When its own deadline passes, on the loop's clock."""


class TimeLimit:
    """Cancels its `scope` when a time has passed, not counting what a clock of preparations says; owned by the loop.

    Args:
        limit_s: The time that counts.
        prepared_s: Seconds so far that do not count, now under way ones included.
    """

    def __init__(self, limit_s: float, prepared_s: Callable[[], float]):
        self.scope = anyio.CancelScope()
        self._limit_s, self._prepared_s = limit_s, prepared_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on the time counts."""
        self._free_s = self._loop.time() - self._prepared_s()
        self._look()

    def end(self) -> None:
        """It counts no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        left_s = self._free_s + self._prepared_s() + self._limit_s - self._loop.time()
        if left_s < ROUNDING_S:
            self.scope.cancel()
        else:
            self._timer = self._loop.call_later(left_s, self._look)


class Deadline:
    """Cancels its `scope` when a stage, or a part of it, takes too long; owned by the loop.

    Nothing counts before `begin`: a step may have to wait for a free worker first. A part that
    hangs ends the whole stage, since the environment is still inside it.

    Args:
        stage: What it is the deadline of.
        timeout_s: For the stage, from `begin` on.
        part_timeouts_s: For its parts, by kind.
        prepared_s: Seconds so far that do not count, see `TimeLimit`; None where all do.
    """

    def __init__(
        self,
        stage: EpisodeStage,
        timeout_s: float,
        part_timeouts_s: Mapping[StepPart, float],
        prepared_s: Callable[[], float] | None = None,
    ):
        self.stage: EpisodeStage = stage
        self.since_ns = now_ns()
        self.begun = False
        self._timeout_s, self._part_timeouts_s = timeout_s, part_timeouts_s
        self._limit = None if prepared_s is None else TimeLimit(timeout_s, prepared_s)
        self.scope = anyio.CancelScope() if self._limit is None else self._limit.scope
        self._loop = asyncio.get_running_loop()
        self._end_s = float("inf")
        self._parts: dict[object, Part] = {}

    def begin(self) -> None:
        """From now on the time counts."""
        self.begun = True
        if self._limit is None:
            self._end_s = self.scope.deadline = self._loop.time() + self._timeout_s
        else:
            self._limit.begin()

    def end(self) -> None:
        """It counts no more."""
        if self._limit is not None:
            self._limit.end()

    def watch(self, kind: StepPart, name: str) -> Callable[[], Any]:
        """A part begins; call what this gives at its end. For whichever thread does the part."""
        key, since_ns = object(), now_ns()
        post(self._loop, self._enter, key, kind, name, since_ns)
        return partial(post, self._loop, self._leave, key)

    @property
    def part(self) -> Part | None:
        """The part that has been under way the longest."""
        return next(iter(self._parts.values()), None)

    def late(self) -> tuple[EpisodeStage, str]:
        """Which deadline has passed, and the sentence that says so."""
        for part in self._parts.values():
            if part.end_s <= self._end_s:
                limit_s = self._part_timeouts_s[part.kind]
                return part.kind, f"{part.kind} {part.name!r} took longer than {limit_s} s, its {part.kind}_timeout_s"
        inside = f"; it was in {self.part.kind} {self.part.name!r}" if self.part is not None else ""
        return self.stage, f"{self.stage} took longer than {self._timeout_s} s{inside}"

    def _enter(self, key: object, kind: StepPart, name: str, since_ns: int) -> None:
        # Not anyio's clock: where sniffio is installed, anyio knows of no loop in what another thread has posted.
        self._parts[key] = Part(kind, name, since_ns, self._loop.time() + self._part_timeouts_s[kind])
        self._move()

    def _leave(self, key: object) -> None:
        del self._parts[key]
        self._move()

    def _move(self) -> None:
        if self.begun:
            self.scope.deadline = min([self._end_s, *(part.end_s for part in self._parts.values())])
