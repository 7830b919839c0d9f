"""What is measured in one update; `training.glossary` says metric by metric what it is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentlab.training.packing import MicroBatch, Packed
from agentlab.types import TrajectoryGroup

GAP_ALARM = 0.05
"""Mean gap of the log-probabilities, in nats, above which engine and trainer disagree: weights in
bfloat16 on both sides differ by a few thousandths."""
OF_CORRECTION = ("correction_mean", "bounded_share", "masked_share")
OF_LOSS = ("loss", "kl", "entropy", "ratio_mean", "ratio_min", "ratio_max", "clip_share", *OF_CORRECTION)
OF_STEP = ("grad_norm", "learning_rate", "nonfinite")
OF_EPOCH = (*OF_LOSS, "logprob_gap_mean", "logprob_gap_max", *OF_STEP)


def reward_metrics(groups: Sequence[TrajectoryGroup], solved_reward: float) -> dict[str, float]:
    """Over every scored trajectory, whether it is trained on or not."""
    rewards = np.asarray([reward for group in groups for reward in group.rewards if math.isfinite(reward)])
    if not rewards.size:
        return dict.fromkeys(("reward_mean", "reward_std", "solve_rate"), math.nan)
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "solve_rate": float((rewards >= solved_reward).mean()),
    }


def loss_metrics(sums: Sequence[Mapping[str, Any]], count: int) -> dict[str, float]:
    """From the sums of the micro-batches (see `forward.Sums`) over `count` sampled tokens."""
    total = {name: math.fsum(float(one[name]) for one in sums) for name in sums[0] if name.endswith("_sum")}
    return {
        "loss": total["loss_sum"],
        "kl": total["kl_sum"] / count,
        "entropy": total["entropy_sum"] / count,
        "ratio_mean": total["ratio_sum"] / count,
        "ratio_min": min(float(one["ratio_min"]) for one in sums),
        "ratio_max": max(float(one["ratio_max"]) for one in sums),
        "clip_share": total["clipped_sum"] / count,
        "correction_mean": total["weight_sum"] / count,
        "bounded_share": total["bounded_sum"] / count,
        "masked_share": total["masked_sum"] / count,
        "logprob_gap_mean": total["gap_sum"] / count,
        "logprob_gap_max": max(float(one["gap_max"]) for one in sums),
    }


def mean_of_epochs(epochs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means of OF_EPOCH; without an epoch nothing was learned, and loss and gradient are 0."""
    if not epochs:
        return {**dict.fromkeys(OF_EPOCH, math.nan), "loss": 0.0, "grad_norm": 0.0, "nonfinite": 0.0}
    return {name: math.fsum(epoch[name] for epoch in epochs) / len(epochs) for name in OF_EPOCH}


def gap_alarm(metrics: Mapping[str, float]) -> float:
    """1 where engine and trainer disagree on tokens that these very weights sampled, else 0."""
    return float(metrics["staleness_max"] == 0 and metrics["logprob_gap_mean"] > GAP_ALARM)


def staleness_metrics(batches: Sequence[MicroBatch], version: int) -> dict[str, float]:
    """Age of the trained tokens when weights of `version` are trained on them."""
    versions = [batch.targets.version[batch.targets.sequence >= 0] for batch in batches]
    if not versions:
        return {"staleness_mean": math.nan, "staleness_max": math.nan}
    age = version - np.concatenate(versions)
    return {"staleness_mean": float(age.mean()), "staleness_max": float(age.max())}


def pack_metrics(packed: Packed) -> dict[str, float]:
    """Sizes, and what was left out."""
    counts = packed.counts
    saved = 1.0 - counts.tokens / counts.unpacked_tokens if counts.unpacked_tokens else 0.0
    return {
        "tokens": float(counts.tokens),
        "sampled_tokens": float(counts.sampled_tokens),
        "weighted_tokens": counts.weighted_tokens,
        "padding_share": counts.padding_share,
        "shared_prefix_saving": saved,
        "groups": float(counts.groups),
        "skipped_groups": float(counts.skipped_groups),
        "trajectories": float(counts.trajectories),
        "unscored": float(counts.unscored),
        "unsampled": float(counts.unsampled),
        "micro_batches": float(len(packed.batches)),
    }
