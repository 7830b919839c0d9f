"""What is measured in one update, metric by metric.

Means are over the sampled tokens that were trained on, unless they say otherwise; NaN where there
was nothing to measure. With several epochs per batch, values of the loss are means over epochs.

    loss                  the scalar that was minimised
    reward_mean           of all scored trajectories
    reward_std            of all scored trajectories (population)
    solve_rate            share of scored trajectories with a reward of at least `solved_reward`
    grad_norm             global norm of the gradient, before it was clipped
    learning_rate         of this update
    kl                    estimated divergence from the reference, nats per token (k3; 0 where beta is 0)
    entropy               of the policy at its sampled tokens, nats per token, at the sampling temperature
    ratio_mean            trained over sampling probability of a token; 1 when trained on-policy
    ratio_min, ratio_max  its extremes
    clip_share            share of tokens whose gradient the clip took away
    logprob_gap_mean      |trainer's - sampler's log-probability| of a token; about 1e-4 at equal weights
    logprob_gap_max       its maximum
    staleness_mean        updates between the weights that sampled a token and these
    staleness_max         its maximum
    tokens                tokens that were computed (a shared prompt once per row)
    sampled_tokens        of them trained on
    padding_share         share of the computed places that held no token
    shared_prefix_saving  share of the tokens that need not be computed because prompts are shared
    seconds               of the whole update
    tokens_per_s          tokens / seconds
    groups                groups given
    skipped_groups        of them with nothing to learn: every advantage is 0
    trajectories          trajectories that count in the loss
    unscored              left out: the reward is missing
    unsampled             left out: the policy sampled no token
    micro_batches         micro-batches computed
    nonfinite             1 where the gradient was not finite and the weights were left as they were
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentlab.training.packing import MicroBatch, Packed
from agentlab.types import TrajectoryGroup

OF_LOSS = ("loss", "kl", "entropy", "ratio_mean", "ratio_min", "ratio_max", "clip_share")
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
        "logprob_gap_mean": total["gap_sum"] / count,
        "logprob_gap_max": max(float(one["gap_max"]) for one in sums),
    }


def mean_of_epochs(epochs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means of OF_EPOCH; without an epoch nothing was learned, and loss and gradient are 0."""
    if not epochs:
        return {**dict.fromkeys(OF_EPOCH, math.nan), "loss": 0.0, "grad_norm": 0.0, "nonfinite": 0.0}
    return {name: math.fsum(epoch[name] for epoch in epochs) / len(epochs) for name in OF_EPOCH}


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
        "padding_share": counts.padding_share,
        "shared_prefix_saving": saved,
        "groups": float(counts.groups),
        "skipped_groups": float(counts.skipped_groups),
        "trajectories": float(counts.trajectories),
        "unscored": float(counts.unscored),
        "unsampled": float(counts.unsampled),
        "micro_batches": float(len(packed.batches)),
    }
