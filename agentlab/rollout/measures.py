"""What a batch of groups says about its episodes: rewards, lengths, how they ended. Listed in `training.metrics`."""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from agentlab.types import Trajectory, TrajectoryGroup, Truncation, mean

OF_REWARDS = frozenset(
    {
        *("reward_mean", "reward_std", "solve_rate", "group_std_mean", "equal_groups_share", "turns_mean", "turns_max"),
        *("truncated_share", *(f"truncated_{why}_share" for why in get_args(Truncation)), "failed_share"),
        *("staleness_mean", "staleness_max", "kl", "ratio_mean", "ratio_min", "ratio_max", "clip_share"),
        *("logprob_gap_mean", "logprob_gap_max", "logprob_gap_alarm", "skipped_groups", "unscored", "unsampled"),
        *("correction_mean", "bounded_share", "masked_share", "compiled_late"),
        *("wait_policy_s", "filtered_share", "stale_share"),
        *("call_queued_s", "call_prefill_s", "call_decode_s", "prompt_cached_share", "cache_used"),
    }
)
"""Metrics that mean nothing where the groups are demonstrations and nothing was sampled."""


def episode_measures(batch: Sequence[TrajectoryGroup], staleness: Sequence[int]) -> dict[str, float]:
    """Over all trajectories of a batch, or over the scored ones where it says something of rewards."""
    members = [t for group in batch for t in group.trajectories]
    scored = [t.reward for t in members if t.scored]
    spreads = [spread(rewards) for group in batch if len(rewards := scored_rewards(group)) > 1]
    return {
        "reward_mean": mean(scored),
        "reward_std": spread(scored),
        "solve_rate": mean([float(reward >= 1.0) for reward in scored]),
        "group_std_mean": mean(spreads),
        "equal_groups_share": mean([float(found == 0) for found in spreads]),
        "turns_mean": mean([len(t.turns) for t in members]),
        "turns_max": max(len(t.turns) for t in members),
        "sampled_mean": mean([t.num_sampled for t in members]),
        "sampled_max": max(t.num_sampled for t in members),
        "truncated_share": mean([float(t.truncation is not None) for t in members]),
        **{f"truncated_{why}_share": truncated(members, why) for why in get_args(Truncation)},
        "failed_share": mean([float(not t.scored) for t in members]),
        "staleness_mean": mean(staleness),
        "staleness_max": max(staleness),
        **reward_parts([t for t in members if t.scored]),
    }


def reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of each part of the rewards, under "reward/<part>", over the trajectories that have it."""
    names = dict.fromkeys(name for t in trajectories for name in t.reward_parts)
    return {
        f"reward/{name}": mean([t.reward_parts[name] for t in trajectories if name in t.reward_parts]) for name in names
    }


def truncated(members: Sequence[Trajectory], why: Truncation) -> float:
    """Share of the trajectories that were cut for this reason."""
    return mean([float(t.truncation == why) for t in members])


def scored_rewards(group: TrajectoryGroup) -> list[float]:
    """The rewards that exist."""
    return [t.reward for t in group.trajectories if t.scored]


def spread(values: Sequence[float]) -> float:
    """The population's standard deviation: exactly 0 for equal values, NaN of nothing."""
    if not values or min(values) == max(values):
        return 0.0 if values else math.nan
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


def batch_warnings(batch: Sequence[TrajectoryGroup], row: Mapping[str, float]) -> tuple[str, ...]:
    """What a person should know about a batch that taught nothing, or taught something wrong."""
    step = row["step"]
    if not row["sampled_max"]:
        return (f"Update {step}: no token was sampled; the prompts fill the context. Raise tokens_per_slot.",)
    if all(len({t.reward for t in group.trajectories if t.scored}) < 2 for group in batch):
        return (f"Update {step}: all rewards within each group were equal, so nothing could be learned from them.",)
    if row.get("logprob_gap_alarm"):
        return (
            f"Update {step}: engine and trainer disagree on the same weights, by {row['logprob_gap_mean']:.3f} nats "
            "per token: what is learned is biased. Use the same dtype and attention for both.",
        )
    return ()
