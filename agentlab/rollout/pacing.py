"""How far episodes may run ahead of the learner, and where every admitted group ended."""

import asyncio

from agentlab.rollout.ledger import Progress
from agentlab.tracing import now_ns
from agentlab.types import Counts, Outcome


class Gate:
    """Admits groups so that what is produced is still fresh when it is consumed; owned by the loop.

    At version v at most `(v + 1 + max_off_policy_steps) * groups_per_step` groups may have been
    admitted and not given back, and never more than `limit` in all, each plus `extra_groups`: a
    mean-age bound. The age of each group is checked again when it is consumed.
    """

    def __init__(
        self, *, groups_per_step: int, max_off_policy_steps: int, extra_groups: int = 0, limit: int | None = None
    ):
        self.groups_per_step, self.max_off_policy_steps = groups_per_step, max_off_policy_steps
        self.extra_groups, self.limit = extra_groups, limit
        self.version = 0
        self.paused = False
        self.closed_s = 0.0
        """Seconds that groups ready to begin have waited for newer weights, up to the last that began."""
        self._outcomes: dict[Outcome, int] = dict.fromkeys(("trained", "stale", "filtered", "failed", "cancelled"), 0)
        self._told = dict(self._outcomes)
        self._admitted = 0
        self._changed = asyncio.Event()

    @property
    def counts(self) -> Counts:
        ended = sum(self._outcomes.values())
        return Counts(admitted=self._admitted, in_flight=self._admitted - ended, **self._outcomes)

    async def opened(self) -> bool:
        """Wait until one more group may begin; then True."""
        began_ns = now_ns()
        while not self._open:
            self._changed.clear()
            await self._changed.wait()
        self.closed_s += (now_ns() - began_ns) / 1e9
        return True

    def admit(self) -> None:
        """Count a group that begins."""
        self._admitted += 1

    def settle(self, outcome: Outcome, count: int = 1) -> None:
        """Where a group ended. Only a trained one keeps its place; the others give it back."""
        self._outcomes[outcome] += count
        self._changed.set()

    def restore(self, progress: Progress) -> None:
        """Go on where a run that is resumed had come to."""
        ended: dict[Outcome, int] = {outcome: getattr(progress.counts, outcome) for outcome in self._outcomes}
        self._outcomes, self._told, self._admitted = ended, dict(ended), sum(ended.values())
        self.version = progress.steps

    def shares(self) -> dict[str, float]:
        """Of the groups that ended since the last call, the shares filtered and dropped for their age."""
        before, self._told = self._told, dict(self._outcomes)
        ended = {outcome: count - before[outcome] for outcome, count in self._told.items()}
        total = max(1, sum(ended.values()))
        return {"filtered_share": ended["filtered"] / total, "stale_share": ended["stale"] / total}

    def advance(self, version: int) -> None:
        """The learner has done `version` updates since the run began."""
        self.version = version
        self._changed.set()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._changed.set()

    @property
    def _holding(self) -> int:
        return self._admitted - sum(n for outcome, n in self._outcomes.items() if outcome != "trained")

    @property
    def _open(self) -> bool:
        ahead = (self.version + 1 + self.max_off_policy_steps) * self.groups_per_step
        allowed = (ahead if self.limit is None else min(ahead, self.limit)) + self.extra_groups
        return not self.paused and self._holding < allowed
