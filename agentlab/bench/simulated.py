"""An engine and a learner that take time but compute nothing, for simulating runs on a virtual clock."""

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from agentlab.agents import ModelAgent
from agentlab.concurrency import Bell, Reply
from agentlab.environments import Latency, TaskEnvironment
from agentlab.errors import ConfigError
from agentlab.inference.base import Engine
from agentlab.inference.scripted import ByteTokenizer
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Run
from agentlab.tasks import arithmetic
from agentlab.tracing import now_ns, record, span
from agentlab.types import Completion, EngineStats, GenerationRequest, Policy, TrajectoryGroup


class SimulatedDevice:
    """One accelerator: how long it was busy, and whether training holds it; owned by the loop.

    Engine and learner given the same device are colocated: decoding stands still during an update.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.training = False
        self.changed: Callable[[], None] = lambda: None
        """Told when training takes the device or leaves it."""


class SimulatedEngine(Engine):
    """Decodes at a token rate that saturates; owned by the loop, timed by its clock.

    Up to `saturation` sequences each get `token_rate` tokens per second; more of them share
    `saturation * token_rate`. Prompts cost nothing.

    Args:
        num_tokens: Tokens that a request samples, as `num_tokens(request)`.
        token_rate: Tokens per second of one sequence.
        saturation: Sequences from which on the device is full.
        answer: Text that every completion begins with; the rest is padding.
        device: Shared with a `SimulatedLearner` if they are colocated.
    """

    def __init__(
        self,
        num_tokens: Callable[[GenerationRequest], int],
        *,
        token_rate: float,
        saturation: int,
        answer: str = "",
        device: SimulatedDevice | None = None,
        max_context: int = 1_000_000,
    ):
        if not token_rate > 0 or saturation < 1:
            raise ConfigError(
                f"token_rate must be above 0 and saturation at least 1, got {token_rate} and {saturation}."
            )
        self.tokenizer: Any = ByteTokenizer()
        self.max_context = max_context
        self.device = device or SimulatedDevice()
        self.device.changed = self._touch
        self._num_tokens, self._rate, self._saturation = num_tokens, token_rate, saturation
        self._answer = tuple(self.tokenizer.encode(answer))
        self._waiting: list[tuple[float, int, int, GenerationRequest, Reply[Completion]]] = []
        self._live: set[int] = set()
        """The second entries of those that wait."""
        self._served = 0.0
        """Tokens that a sequence present since the beginning would have by now."""
        self._since_s = 0.0
        self._order = itertools.count()
        self._changed = Bell()
        self._stats = EngineStats(num_slots=saturation)

    async def serve(self) -> None:
        """See `Engine.serve`."""
        self._since_s = anyio.current_time()
        while True:
            self._advance()
            while self._waiting and self._waiting[0][0] <= self._served + 1e-9:
                self._finish()
            with anyio.move_on_after(self._next_finish_s()):
                await self._changed.wait()

    async def generate(self, request: GenerationRequest) -> Completion:
        """See `Engine.generate`."""
        count = max(1, min(self._num_tokens(request), request.sampling.max_tokens))
        reply: Reply[Completion] = Reply()
        self._touch()
        entry = (self._served + count, next(self._order), count, request, reply)
        heapq.heappush(self._waiting, entry)
        self._live.add(entry[1])
        try:
            return await reply.wait()
        finally:
            if entry[1] in self._live:
                self._touch()
                self._live.remove(entry[1])
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)

    def update_policy(self, policy: Policy) -> None:
        """See `Engine.update_policy`."""
        self._stats = replace(self._stats, policy_version=policy.version)

    def release(self, session: str) -> None:
        """See `Engine.release`. Nothing is cached."""
        del session

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return replace(self._stats, num_running=len(self._waiting), busy_s=self.device.busy_s)

    @property
    def _speed(self) -> float:
        """Tokens per second of each sequence now."""
        if not self._waiting or self.device.training:
            return 0.0
        return self._rate * min(1.0, self._saturation / len(self._waiting))

    def _advance(self) -> None:
        now_s = anyio.current_time()
        speed, passed_s, count = self._speed, now_s - self._since_s, len(self._waiting)
        self._served += speed * passed_s
        self.device.busy_s += passed_s if speed or self.device.training else 0.0
        self._since_s = now_s
        if speed and passed_s:
            end_ns = now_ns()
            start_ns = end_ns - round(passed_s * 1e9)
            record("decode", start_ns, end_ns, num_sequences=count, tokens=speed * passed_s * count)

    def _touch(self) -> None:
        self._advance()
        self._changed.ring()

    def _next_finish_s(self) -> float:
        speed = self._speed
        return (self._waiting[0][0] - self._served) / speed if speed else float("inf")

    def _finish(self) -> None:
        _, number, count, request, reply = heapq.heappop(self._waiting)
        self._live.remove(number)
        filler = [46] * max(0, count - len(self._answer) - 1)
        tokens = (*self._answer[: count - 1], *filler, self.tokenizer.eos_token_id)
        version = self._stats.policy_version
        self._stats = replace(self._stats, tokens_sampled=self._stats.tokens_sampled + len(tokens))
        reply.set(Completion(request.id, tokens, (-1.0,) * len(tokens), (version,) * len(tokens), "stop"))


@dataclass(frozen=True)
class SimulatedUpdate:
    """What a simulated update gives."""

    policy: Policy
    metrics: dict[str, float]
    notes: tuple[str, ...] = ()


class SimulatedLearner:
    """Takes a fixed time per update; owned by the loop.

    Args:
        step_s: Seconds per update.
        device: Held meanwhile; the engine's, if they are colocated.
    """

    def __init__(self, step_s: float, *, device: SimulatedDevice | None = None):
        self.step_s = step_s
        self.busy_s = 0.0
        self.version = 0
        self.consumed: list[str] = []
        """Groups trained on, in order."""
        self._device = device

    async def serve(self) -> None:
        """Nothing to run: updates take their time where they are awaited."""
        await anyio.sleep_forever()

    async def update(self, groups: Sequence[TrajectoryGroup]) -> SimulatedUpdate:
        """One update: waits `step_s`, and counts the version up."""
        self._hold(True)
        try:
            with self._traced(groups):
                await anyio.sleep(self.step_s)
        finally:
            self._hold(False)
        self.busy_s += self.step_s
        self.consumed += [group.id for group in groups]
        self.version += 1
        return SimulatedUpdate(Policy(self.version, None), {})

    @contextlib.contextmanager
    def _traced(self, groups: Sequence[TrajectoryGroup]) -> Iterator[None]:
        """The trace is that of the engine's device: training elsewhere is not its work."""
        if self._device is None:
            yield
            return
        with span("train", groups=tuple(group.id for group in groups)), span("forward_backward"):
            yield

    def _hold(self, training: bool) -> None:
        if self._device is not None:
            self._device.changed()
            self._device.training = training
            self._device.changed()


def simulated_run(*, steps: int = 24, tokens: int = 40, world_s: float = 0.6, update_s: float = 0.3) -> Run:
    """A live run for looking at displays: its threads, episodes and seconds are real, nothing is learned.

    Engine and learner share one simulated device, and compute nothing. An update takes 16 episodes of one
    turn, and about a second; whether an episode earns 1 or 0 is drawn by lot.

    Args:
        steps: Updates.
        tokens: Length of a turn.
        world_s: Mean seconds that the environment takes to answer.
        update_s: Seconds of an update.

    Raises:
        RunActiveError: another run lives in this process.
    """
    lot = random.Random(0)

    def build() -> Parts:
        device = SimulatedDevice()
        engine = SimulatedEngine(lambda request: tokens, token_rate=100.0, saturation=16, device=device)
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=ModelAgent,
            env_class=Latency(TaskEnvironment, world_s, jitter=world_s / 2),
            env_kwargs={"reward_fn": lambda task, answer: float(lot.random() < 0.5)},
            config=RolloutConfig(group_size=4, groups_per_step=4, max_concurrency=32, max_tokens=tokens),
        )
        orchestrator.gate.limit = 4 * steps
        return Parts(engine, orchestrator, SimulatedLearner(update_s, device=device), lambda policy: None)

    return Run("simulated", build, arithmetic(seed=0), steps)
