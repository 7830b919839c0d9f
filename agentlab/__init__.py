"""Trains tool-using language-model agents with reinforcement learning, and shows where every second goes.

Names are loaded when they are first used, so that `import agentlab` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentlab import agents, environments, errors, notebook, rewards, tasks, tools, tracing, viz
    from agentlab.agents import ConversationAgentBase, FrozenLakeAgent, ModelAgent, ToolAgent
    from agentlab.environments import BaseTaskEnv, FrozenLake, TaskEnvironment, ToolEnvironment
    from agentlab.inference import JaxEngine, ScriptedEngine, VLLMEngine, VLLMServerEngine
    from agentlab.learner import AgenticRLLearner, GRPOConfig, GRPOLearner, SFTTrainer, save_adapters
    from agentlab.models import load_adapters, load_model, save_model, tiny_model
    from agentlab.rollout import RolloutConfig, RolloutOrchestrator, evaluate, run_episode, sinks
    from agentlab.run import Run, current_run
    from agentlab.training import SFTConfig, algorithms, glossary
    from agentlab.types import Action, EnvStepResult, SamplingParams, Task, Trajectory, TrajectoryGroup

__version__ = "0.1.0"

__all__ = [
    "Task", "Trajectory", "TrajectoryGroup", "Action", "EnvStepResult", "SamplingParams",
    "load_model", "save_model", "load_adapters", "save_adapters", "tiny_model",
    "GRPOLearner", "GRPOConfig", "AgenticRLLearner", "SFTTrainer", "SFTConfig", "Run", "current_run",
    "RolloutOrchestrator", "RolloutConfig", "run_episode", "evaluate",
    "ConversationAgentBase", "ModelAgent", "ToolAgent", "FrozenLakeAgent",
    "BaseTaskEnv", "TaskEnvironment", "ToolEnvironment", "FrozenLake",
    "JaxEngine", "ScriptedEngine", "VLLMEngine", "VLLMServerEngine",
    "agents", "algorithms", "environments", "errors", "glossary", "notebook", "rewards", "sinks", "tasks", "tools",
    "tracing", "viz",
]  # fmt: skip

_HOMES = {
    "agentlab.types": ("Task", "Trajectory", "TrajectoryGroup", "Action", "EnvStepResult", "SamplingParams"),
    "agentlab.models": ("load_adapters", "load_model", "save_model", "tiny_model"),
    "agentlab.learner": ("GRPOLearner", "GRPOConfig", "AgenticRLLearner", "SFTTrainer", "save_adapters"),
    "agentlab.training": ("SFTConfig",),
    "agentlab.run": ("Run", "current_run"),
    "agentlab.rollout": ("RolloutOrchestrator", "RolloutConfig", "run_episode", "evaluate"),
    "agentlab.agents": ("ConversationAgentBase", "ModelAgent", "ToolAgent", "FrozenLakeAgent"),
    "agentlab.environments": ("BaseTaskEnv", "TaskEnvironment", "ToolEnvironment", "FrozenLake"),
    "agentlab.inference": ("JaxEngine", "ScriptedEngine", "VLLMEngine", "VLLMServerEngine"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_ROOMS = {
    name: f"agentlab.{name}"
    for name in ("agents", "environments", "errors", "notebook", "rewards", "tasks", "tools", "tracing", "viz")
} | {
    "algorithms": "agentlab.training.algorithms",
    "glossary": "agentlab.training.glossary",
    "sinks": "agentlab.rollout.sinks",
}


def __getattr__(name: str) -> Any:
    """A public name, imported on first use.

    Raises:
        AttributeError: naming the nearest public name.
    """
    if name in _ROOMS:
        value = importlib.import_module(_ROOMS[name])
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    else:
        from agentlab.errors import nearest

        raise AttributeError(f"agentlab has no {name!r}.{nearest(name, __all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
