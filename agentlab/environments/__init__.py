"""Environments: one episode of one task each; `reset`, `step`, `close`, sync or async."""

from agentlab.environments.base import BaseTaskEnv
from agentlab.environments.check import check_environment
from agentlab.environments.lake import FrozenLake
from agentlab.environments.latency import Latency
from agentlab.environments.parts import part
from agentlab.environments.task import TaskEnvironment, ToolEnvironment

__all__ = [
    "BaseTaskEnv",
    "FrozenLake",
    "Latency",
    "TaskEnvironment",
    "ToolEnvironment",
    "check_environment",
    "part",
]
