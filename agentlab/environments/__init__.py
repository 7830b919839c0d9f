"""Environments: one episode of one task each; `reset`, `step`, `close`, sync or async."""

from agentlab.environments.base import BaseTaskEnv, check_environment_options
from agentlab.environments.check import check_environment
from agentlab.environments.games import Countdown, GuessNumber
from agentlab.environments.gym import GymEnvironment
from agentlab.environments.lake import FrozenLake
from agentlab.environments.latency import Latency
from agentlab.environments.parts import part
from agentlab.environments.reasoning import Reasoning
from agentlab.environments.selfplay import Move, Nim, SelfPlay, TwoPlayerGame
from agentlab.environments.task import TaskEnvironment, ToolEnvironment
from agentlab.environments.terminal import Terminal

__all__ = [
    "BaseTaskEnv",
    "Countdown",
    "FrozenLake",
    "GuessNumber",
    "GymEnvironment",
    "Latency",
    "Move",
    "Nim",
    "Reasoning",
    "SelfPlay",
    "TaskEnvironment",
    "Terminal",
    "ToolEnvironment",
    "TwoPlayerGame",
    "check_environment",
    "check_environment_options",
    "part",
]
