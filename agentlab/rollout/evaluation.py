"""How often a policy solves tasks, with an honest interval, through the same path as training."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from agentlab.concurrency import LoopThread
from agentlab.inference.base import Engine
from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.orchestrator import RolloutOrchestrator, Tasks
from agentlab.tracing import span
from agentlab.types import Trajectory, interval, mean


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. An episode that failed counts as not solved."""

    success: float
    """pass@1: the share of episodes whose reward reached `success_reward`."""
    low: float
    high: float
    """95 % Wilson interval of `success`."""
    count: int
    """Episodes played."""
    pass_at_k: float
    """Share of tasks that at least one of their k episodes solved."""
    k: int
    mean_reward: float
    num_failed: int
    policy_version: int
    trajectories: tuple[Trajectory, ...] = field(repr=False, default=())

    def __str__(self) -> str:
        text = f"success {self.success:.1%} (95 % interval {self.low:.1%} to {self.high:.1%}, {self.count} episodes)"
        more = f", pass@{self.k} {self.pass_at_k:.1%}" if self.k > 1 else ""
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        return f"{text}{more}, mean reward {self.mean_reward:.3f}{failed}"


async def evaluate_async(
    engine: Engine,
    tasks: Tasks,
    *,
    agent_class: Callable[..., Any],
    env_class: Callable[..., Any],
    agent_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    k: int = 1,
    success_reward: float = 1.0,
    config: RolloutConfig | None = None,
    on_group: Callable[[int], Any] = lambda count: None,
) -> Evaluation:
    """Play every task `k` times against an engine that somebody serves, and count.

    Args:
        engine: Must be served meanwhile (`engine.serve()`).
        tasks: A finite stream.
        k: Episodes per task.
        success_reward: The reward from which on an episode counts as solved.
        config: Sampling and deadlines; its group and pacing options do not apply.
        on_group: Told after each task how many are done.

    Raises:
        RunError: more than `max_failed_groups` tasks failed entirely.
    """
    config = config or RolloutConfig()
    whole = dataclasses.replace(config, group_size=k, groups_per_step=config.max_concurrency, max_off_policy_steps=0)
    orchestrator = RolloutOrchestrator(
        engine,
        agent_class=agent_class,
        env_class=env_class,
        agent_kwargs=agent_kwargs,
        env_kwargs=env_kwargs,
        config=whole,
    )
    version = engine.stats().policy_version
    groups = []
    with span("evaluation", policy_version=version):
        async for group in orchestrator.stream(tasks):
            groups.append(group)
            on_group(len(groups))
    lost = orchestrator.gate.counts.failed
    played = [t for group in groups for t in group.trajectories]
    solved = [t.scored and t.reward >= success_reward for t in played]
    count = len(played) + lost * k
    any_solved = [any(t.scored and t.reward >= success_reward for t in g.trajectories) for g in groups]
    low, high = interval(sum(solved), count)
    return Evaluation(
        success=sum(solved) / count if count else math.nan,
        low=low,
        high=high,
        count=count,
        pass_at_k=sum(any_solved) / (len(groups) + lost) if count else math.nan,
        k=k,
        mean_reward=mean([t.reward for t in played if t.scored]),
        num_failed=sum(not t.scored for t in played) + lost * k,
        policy_version=version,
        trajectories=tuple(sorted(played, key=lambda t: (int(t.group_id.split(":", 1)[0]), t.episode))),
    )


def evaluate(engine: Engine, tasks: Tasks, **options: Any) -> Evaluation:
    """`evaluate_async` for a cell or a script: serves the engine on a loop of its own and waits.

    An interrupt acts within a second and ends the evaluation.
    """

    async def main() -> Evaluation:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            result = await evaluate_async(engine, tasks, **options)
            group.cancel_scope.cancel()
        return result

    thread = LoopThread(lambda: first_error(main))
    try:
        return thread.result()
    finally:
        thread.cancel()


async def first_error(main: Callable[[], Any]) -> Any:
    """Await `main()`; of several errors that end a task group together, raise the first alone."""
    try:
        return await main()
    except BaseExceptionGroup as group:
        raise _leaf(group) from None


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
