"""Code that blocks, on the real clock: many steps at once, and a learner; rows for the bench `rollout`."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio

from agentlab.agents import ModelAgent
from agentlab.bench.contract import Row
from agentlab.bench.simulated import SimulatedUpdate
from agentlab.concurrency import WorkerPool, first_error
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Session
from agentlab.types import Action, EnvStepResult, Policy, Task, TrajectoryGroup

STEPS = 64
STEP_S = 0.2
TIMER_S = 0.005


class BlockingEnvironment:
    """One step that blocks its thread; notes when it began and ended. Owned by the worker that steps it."""

    def __init__(self, task: Task, *, step_s: float, times: list[tuple[float, float]]):
        self._prompt, self._step_s, self._times = task.prompt, step_s, times

    def reset(self) -> tuple[str, dict[str, Any]]:
        return self._prompt, {}

    def step(self, action: Action) -> EnvStepResult:
        del action
        began_s = time.perf_counter()
        time.sleep(self._step_s)
        self._times.append((began_s, time.perf_counter()))
        return EnvStepResult("", 1.0, True)

    def close(self) -> None:
        """Nothing is open."""


class BlockingLearner:
    """Blocks a worker thread for the time of an update; owned by the loop."""

    def __init__(self, update_s: float):
        self._update_s, self._pool, self._version = update_s, WorkerPool(1), 0

    async def serve(self) -> None:
        """Until cancelled; then its thread ends."""
        try:
            await anyio.sleep_forever()
        finally:
            self._pool.close()

    async def update(self, groups: Sequence[TrajectoryGroup]) -> SimulatedUpdate:
        """One update, during which a thread sleeps."""
        del groups
        await self._pool.run(time.sleep, self._update_s)
        self._version += 1
        return SimulatedUpdate(Policy(self._version, None), {})


def blocking_rows(repeats: int, update_s: float = 5.0, steps: int = STEPS) -> list[Row]:
    """Rows of both parts."""
    took_s = [steps_side_by_side_s(steps) for _ in range(repeats)]
    lags_s = [asyncio.run(first_error(lambda: beside_a_learner(update_s))) for _ in range(repeats)]
    return [
        Row.at_most(f"{steps} steps that block {STEP_S:g} s, at once", statistics.median(took_s), 0.3, "s"),
        Row.at_most(f"learner blocks {update_s:g} s: largest loop lag", 1e3 * statistics.median(lags_s), 100.0, "ms"),
    ]


def steps_side_by_side_s(steps: int) -> float:
    """Seconds from the beginning of the first step to the end of the last, all of them in flight together."""
    times: list[tuple[float, float]] = []
    _, orchestrator = _rollouts(STEP_S, times, group_size=1, groups_per_step=steps, max_concurrency=steps)
    for _ in orchestrator.iterate([{"prompt": f"task {number}"} for number in range(steps)]):
        pass
    return max(ended_s for _, ended_s in times) - min(began_s for began_s, _ in times)


async def beside_a_learner(update_s: float) -> float:
    """How late a short timer was at most while a learner blocked with the next batch ready."""
    engine, orchestrator = _rollouts(0.0, [], group_size=2, groups_per_step=2, max_concurrency=8)
    parts = Parts(engine, orchestrator, BlockingLearner(update_s), lambda policy: None)
    session = Session("blocked", parts, _tasks(), 1)
    lags_s: list[float] = []
    async with anyio.create_task_group() as group:
        group.start_soon(keep_time, lags_s)
        await session.main()
        group.cancel_scope.cancel()
    return max(lags_s)


async def keep_time(lags_s: list[float]) -> None:
    """Note how late a short timer is, for ever."""
    while True:
        due_s = anyio.current_time() + TIMER_S
        await anyio.sleep(TIMER_S)
        lags_s.append(anyio.current_time() - due_s)


async def _tasks() -> AsyncIterator[dict[str, str]]:
    for number in itertools.count():
        yield {"id": str(number), "prompt": f"task {number}"}


def _rollouts(
    step_s: float, times: list[tuple[float, float]], **config: Any
) -> tuple[ScriptedEngine, RolloutOrchestrator]:
    engine = ScriptedEngine("yes")
    orchestrator = RolloutOrchestrator(
        engine,
        agent_class=ModelAgent,
        env_class=BlockingEnvironment,
        env_kwargs={"step_s": step_s, "times": times},
        config=RolloutConfig(**config),
    )
    return engine, orchestrator
