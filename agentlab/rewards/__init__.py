"""Reward functions: `reward_fn(task, answer) -> float | Reward`, sync or async, never silently 0."""

from agentlab.rewards.algebra import math_equal
from agentlab.rewards.answers import exact, numeric, same_number
from agentlab.rewards.code import code_tests
from agentlab.rewards.judge import endpoint, judge, judged_by
from agentlab.rewards.score import LARGEST_REWARD, LoopReward, Reward, RewardFn, as_parts, as_reward, combine, finite
from agentlab.rewards.shape import in_format, in_json, inside, regex

__all__ = [
    "LARGEST_REWARD",
    "LoopReward",
    "Reward",
    "RewardFn",
    "as_parts",
    "as_reward",
    "code_tests",
    "combine",
    "endpoint",
    "exact",
    "finite",
    "in_format",
    "in_json",
    "inside",
    "judge",
    "judged_by",
    "math_equal",
    "numeric",
    "regex",
    "same_number",
]
