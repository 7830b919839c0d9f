"""One episode by itself, for looking at."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agentlab.inference.base import Engine
from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.orchestrator import RolloutOrchestrator
from agentlab.rollout.serving import run_served
from agentlab.types import Trajectory


def run_episode(
    engine: Engine,
    task: Any,
    *,
    agent_class: Callable[..., Any],
    env_class: Callable[..., Any],
    agent_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    config: RolloutConfig | None = None,
) -> Trajectory:
    """Play one task once and return its record; for a cell or a script.

    A failed episode is returned like any other: see its `failure`.

    Raises:
        EngineError: the engine died.
        ConfigError: keyword arguments do not fit the class they are for.
    """
    orchestrator = RolloutOrchestrator(
        engine,
        agent_class=agent_class,
        env_class=env_class,
        agent_kwargs=agent_kwargs,
        env_kwargs=env_kwargs,
        config=config,
    )

    return run_served(engine, partial(orchestrator.run_one, task))
