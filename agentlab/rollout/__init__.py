"""Asynchronous episodes over one engine: from tasks to finished groups, with no barrier."""

from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.episode import Episode, World
from agentlab.rollout.evaluation import Evaluation, evaluate, evaluate_async
from agentlab.rollout.log import load_trajectories, save_trajectories
from agentlab.rollout.orchestrator import RolloutOrchestrator
from agentlab.rollout.pacing import Gate
from agentlab.rollout.serving import run_served
from agentlab.rollout.single import run_episode
from agentlab.rollout.transcript import Transcript

__all__ = [
    "Episode",
    "Evaluation",
    "Gate",
    "RolloutConfig",
    "RolloutOrchestrator",
    "Transcript",
    "World",
    "evaluate",
    "evaluate_async",
    "load_trajectories",
    "run_episode",
    "run_served",
    "save_trajectories",
]
