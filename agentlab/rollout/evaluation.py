"""How often a policy solves tasks, with an honest interval, through the same path as training."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentlab.chat import ChatFormat
from agentlab.errors import ConfigError
from agentlab.files import write_atomically
from agentlab.inference.base import Engine
from agentlab.platform.progress import bar
from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.orchestrator import RolloutOrchestrator, Tasks, check_tasks
from agentlab.rollout.serving import run_served
from agentlab.tracing import span, tagged
from agentlab.types import Trajectory, TrajectoryGroup, checked_option, interval, mean


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
    success_reward: float = 1.0
    pass_at_k_low: float = math.nan
    pass_at_k_high: float = math.nan
    """95 % Wilson interval of `pass_at_k`, over tasks."""
    trajectories: tuple[Trajectory, ...] = field(repr=False, default=())

    @property
    def solved(self) -> tuple[bool, ...]:
        """Per episode in `trajectories`, whether its reward reached `success_reward`."""
        return tuple(t.scored and t.reward >= self.success_reward for t in self.trajectories)

    def save(self, path: str | Path) -> Path:
        """Write the figures and `solved`, without the trajectories, as JSON."""
        figures = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "trajectories"}
        return write_atomically(path, json.dumps(figures | {"solved": self.solved}) + "\n")

    def __str__(self) -> str:
        text = f"success {self.success:.1%} (95 % interval {self.low:.1%} to {self.high:.1%}, {self.count} episodes)"
        at_k = f"{self.pass_at_k:.1%} ({self.pass_at_k_low:.1%} to {self.pass_at_k_high:.1%})"
        more = f", pass@{self.k} {at_k}" if self.k > 1 else ""
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
    chat: ChatFormat | None = None,
    on_group: Callable[[int], Any] = lambda count: None,
) -> Evaluation:
    """Play every task `k` times against an engine that somebody serves, and count.

    Args:
        engine: Must be served meanwhile (`engine.serve()`).
        tasks: A finite stream.
        k: Episodes per task.
        success_reward: The reward from which on an episode counts as solved.
        config: Sampling and deadlines; its group and pacing options do not apply.
        chat: How messages become tokens; None reads it off the engine's tokenizer, as it is now.
        on_group: Told after each task how many are done.

    Raises:
        ConfigError: there is no task, or keyword arguments do not fit the class they are for.
    """
    checked_option("success_reward", success_reward, float)
    if checked_option("k", k, int) < 1:
        raise ConfigError(f"k must be at least 1, got {k}.")
    check_tasks(tasks)
    config = RolloutConfig() if config is None else config
    whole = dataclasses.replace(
        config,
        group_size=k,
        groups_per_step=config.max_concurrency,
        max_off_policy_steps=0,
        extra_groups=0,
        filter_equal_rewards=False,
    )
    orchestrator = RolloutOrchestrator(
        engine,
        agent_class=agent_class,
        env_class=env_class,
        agent_kwargs=agent_kwargs,
        env_kwargs=env_kwargs,
        config=whole,
        min_scored=0,
        chat=chat,
    )
    groups = []
    with span("evaluation"), tagged(evaluation=True):
        async for group in orchestrator.stream(tasks):
            groups.append(group)
            on_group(len(groups))
    return _counted(groups, k, success_reward, engine.stats().policy_version)


def _counted(groups: Sequence[TrajectoryGroup], k: int, success_reward: float, version: int) -> Evaluation:
    def solved(trajectory: Trajectory) -> bool:
        return trajectory.scored and trajectory.reward >= success_reward

    played = [t for group in groups for t in group.trajectories]
    count, num_solved = len(played), sum(map(solved, played))
    low, high = interval(num_solved, count)
    tasks_solved = sum(any(map(solved, group.trajectories)) for group in groups)
    low_at_k, high_at_k = interval(tasks_solved, len(groups))
    return Evaluation(
        success=num_solved / count,
        low=low,
        high=high,
        count=count,
        pass_at_k=tasks_solved / len(groups),
        pass_at_k_low=low_at_k,
        pass_at_k_high=high_at_k,
        k=k,
        mean_reward=mean([t.reward for t in played if t.scored]),
        num_failed=sum(not t.scored for t in played),
        policy_version=version,
        success_reward=success_reward,
        trajectories=tuple(sorted(played, key=lambda t: (int(t.group_id.split(":", 1)[0]), t.episode))),
    )


def evaluate(engine: Engine, tasks: Tasks, *, progress: bool = True, **options: Any) -> Evaluation:
    """`evaluate_async` for a cell or a script: serves the engine on a loop of its own and waits.

    An interrupt acts within a second and ends the evaluation. `progress` shows a bar, where there is
    a terminal or a notebook to show it.
    """
    told = options.pop("on_group", lambda count: None)
    total = len(tasks) if isinstance(tasks, Sized) else None
    with bar(total, "Evaluating", enabled=progress, unit=" tasks") as shown:

        def on_group(count: int) -> None:
            shown.update()
            told(count)

        return run_served(engine, partial(evaluate_async, engine, tasks, on_group=on_group, **options))
