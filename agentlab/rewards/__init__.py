"""Reward functions: `reward_fn(task, answer) -> float | Reward`, sync or async, never silently 0."""

from agentlab.rewards.answers import exact, same_number
from agentlab.rewards.code import code_tests
from agentlab.rewards.score import Reward, RewardFn, as_reward, combine

__all__ = ["Reward", "RewardFn", "as_reward", "code_tests", "combine", "exact", "same_number"]
