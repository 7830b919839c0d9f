"""The policy-gradient algorithms, as small frozen values made of functions.

Change one part with `dataclasses.replace(grpo, advantages=my_advantages)`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from agentlab.errors import ConfigError
from agentlab.training.advantages import (
    Advantages,
    BatchNormalized,
    Credit,
    OverlongPenalty,
    ProcessRewards,
    ReturnsToGo,
    Shaping,
    batch_scaled,
    group_advantages,
    leave_one_out,
    mean_difference,
    outcome,
    plain_rewards,
    token_returns,
)
from agentlab.training.corrections import (
    Correction,
    GeometricMask,
    IcePop,
    OldPolicy,
    TruncatedImportanceSampling,
    interpolated_policy,
    recomputed_policy,
    sampler_policy,
)
from agentlab.training.losses import (
    Divergence,
    Loss,
    LossOptions,
    TokenLosses,
    TokenTerms,
    bounded_weight_loss,
    clipped_ratio_loss,
    k1,
    k2,
    k3,
    score_function_loss,
    sequence_ratio_loss,
)

__all__ = [
    "cispo", "dapo", "dr_grpo", "grpo", "grpo_batch_scaled", "grpo_token_mean", "gspo", "gspo_token", "reinforce_pp",
    "reinforce_pp_baseline", "rloo",
    "Algorithm", "BatchNormalized", "FixedLength", "GeometricMask", "IcePop", "OverlongPenalty", "ProcessRewards",
    "ReturnsToGo", "TruncatedImportanceSampling",
    "batch_scaled", "group_advantages", "leave_one_out", "mean_difference", "outcome", "plain_rewards", "token_returns",
    "sequence_mean", "sequence_sum", "token_mean",
    "bounded_weight_loss", "clipped_ratio_loss", "score_function_loss", "sequence_ratio_loss",
    "k1", "k2", "k3", "interpolated_policy", "recomputed_policy", "sampler_policy",
    "Advantages", "Aggregate", "Correction", "Credit", "Divergence", "Loss", "LossOptions", "OldPolicy", "Shaping",
    "TokenLosses", "TokenTerms",
]  # fmt: skip

Aggregate = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, repr=False)
class Algorithm:
    """How rewards become a scalar loss.

    The scalar is the sum over all sampled tokens of an update of `weight * loss`, so an
    algorithm does not see how tokens were packed or split into micro-batches.

    Functions that are traced by JAX (loss, divergence, old_policy, corrections) must be module-level
    functions or frozen values, so that equal algorithms share their compiled programs.

    Raises:
        ConfigError: there are corrections, but the old policy is the sampler's: nothing to correct.
    """

    name: str
    advantages: Advantages
    """Rewards of one group [group_size], NaN where missing, to advantages [group_size]. On the host."""
    loss: Loss
    """The loss of each sampled token. Traced by JAX."""
    aggregate: Aggregate
    """Sampled tokens of each trajectory of the update [trajectories] to the weight of one of its
    tokens [trajectories]. On the host."""
    credit: Credit = outcome
    """Which rewards are compared, and which tokens have them. On the host."""
    shaping: Shaping | None = None
    """What is added to a trajectory's reward, e.g. an `OverlongPenalty`. On the host."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low, unless the configuration says otherwise."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high, unless the configuration says otherwise."""
    divergence: Divergence = k3
    """Estimates the divergence from the reference where beta is above 0. Traced by JAX."""
    divergence_in: Literal["loss", "reward"] = "loss"
    """Whether beta times the divergence is added to the loss or taken off the reward, token by token."""
    old_policy: OldPolicy = sampler_policy
    """What the ratio is measured from. Traced by JAX."""
    corrections: tuple[Correction, ...] = ()
    """Weigh or mask tokens by old / sampler; their product counts. Traced by JAX."""

    def __post_init__(self) -> None:
        if self.corrections and self.old_policy is sampler_policy:
            raise ConfigError(
                f"{self.name}: corrections weigh the old policy against the sampler's, and old_policy is the "
                "sampler's own, so there is nothing to correct. Set old_policy=recomputed_policy or "
                "interpolated_policy, or leave the corrections out."
            )
        if self.divergence_in not in ("loss", "reward"):
            raise ConfigError(f'divergence_in must be "loss" or "reward", got {self.divergence_in!r}.')

    def __repr__(self) -> str:
        """The same in every process: functions by name."""
        parts = ", ".join(f"{field.name}={_named(getattr(self, field.name))}" for field in fields(self))
        return f"Algorithm({parts})"


def _named(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_named, value))})"
    return getattr(value, "__qualname__", None) or repr(value)


def token_mean(lengths: np.ndarray) -> np.ndarray:
    """Every sampled token of the update weighs the same: 1 / Σ lengths.

    Source: Yu et al. 2025 (arXiv:2503.14476), equation 8.
    """
    return np.full(len(lengths), 1.0 / (float(lengths.sum()) or 1.0))


def sequence_mean(lengths: np.ndarray) -> np.ndarray:
    """Every trajectory weighs the same, and its tokens share that: 1 / (trajectories * length).

    Source: Shao et al. 2024 (arXiv:2402.03300), equation 3.
    """
    return 1.0 / (max(len(lengths), 1) * np.where(lengths > 0, lengths, 1))


def sequence_sum(lengths: np.ndarray) -> np.ndarray:
    """Every token weighs 1 / trajectories: the log-probability of a trajectory is the sum of its tokens'.

    Source: Ahmadian et al. 2024 (arXiv:2402.14740), section 2.2.
    """
    return np.full(len(lengths), 1.0 / max(len(lengths), 1))


@dataclass(frozen=True)
class FixedLength:
    """Every token weighs 1 / (trajectories * max_tokens), however long its trajectory became.

    Source: Liu et al. 2025 (arXiv:2503.20783), section 3.2 and listing 1.
    """

    max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"FixedLength needs max_tokens of at least 1, got {self.max_tokens}.")

    def __call__(self, lengths: np.ndarray) -> np.ndarray:
        return np.full(len(lengths), 1.0 / (max(len(lengths), 1) * self.max_tokens))


grpo = Algorithm("grpo", advantages=group_advantages, loss=clipped_ratio_loss, aggregate=sequence_mean)
"""Group relative policy optimisation. Source: Shao et al. 2024 (arXiv:2402.03300)."""

grpo_token_mean = replace(grpo, name="grpo_token_mean", aggregate=token_mean)
"""GRPO with the token-mean of DAPO. Source: Yu et al. 2025 (arXiv:2503.14476), section 3.3."""

grpo_batch_scaled = replace(grpo, name="grpo_batch_scaled", advantages=mean_difference, credit=batch_scaled)
"""GRPO with the group's mean and the update's standard deviation. Source: Liu et al. 2025 (arXiv:2508.08221)."""

dr_grpo = Algorithm("dr_grpo", advantages=mean_difference, loss=clipped_ratio_loss, aggregate=FixedLength(256))
"""GRPO without its two biases (division by std and by length). Source: Liu et al. 2025 (arXiv:2503.20783).

`replace(dr_grpo, aggregate=FixedLength(n))` where episodes may sample n tokens.
"""

dapo = replace(grpo_token_mean, name="dapo", clip_high=0.28)
"""Clip-higher and token-mean. Source: Yu et al. 2025 (arXiv:2503.14476), section 3 and 4.1 (0.2 and 0.28).

Its other two parts are options of yours: dynamic sampling is `filter_equal_rewards=True` of the
configuration; overlong shaping is `replace(dapo, shaping=OverlongPenalty(max_tokens, buffer_tokens))`.
"""

gspo = replace(grpo, name="gspo", loss=sequence_ratio_loss, clip_low=3e-4, clip_high=4e-4)
"""Ratio and clip of whole sequences. Source: Zheng et al. 2025 (arXiv:2507.18071), section 5.1 for the bounds."""

gspo_token = replace(gspo, name="gspo_token", credit=ReturnsToGo())
"""GSPO with advantages that differ by turn. Source: Zheng et al. 2025 (arXiv:2507.18071), section 4.3."""

rloo = Algorithm("rloo", advantages=leave_one_out, loss=score_function_loss, aggregate=sequence_sum)
"""REINFORCE with the mean of the others as baseline. Source: Ahmadian et al. 2024 (arXiv:2402.14740).

Exact where it is trained on-policy; else `replace(rloo, old_policy=recomputed_policy,
corrections=(TruncatedImportanceSampling(),))`. The paper takes the divergence off the reward:
`replace(rloo, divergence=k1, divergence_in="reward")`.
"""

cispo = replace(grpo_token_mean, name="cispo", loss=bounded_weight_loss, clip_low=1.0, clip_high=4.0)
"""Bounded ratios as weights: no token loses its gradient. Source: MiniMax 2025 (arXiv:2506.13585).

There the lower bound is off and the upper one is not given; 1 + 4 is that of Khatri et al. 2025
(arXiv:2510.13786).
"""

reinforce_pp = Algorithm(
    "reinforce_pp",
    advantages=plain_rewards,
    loss=clipped_ratio_loss,
    aggregate=token_mean,
    credit=BatchNormalized(token_returns),
    divergence=k1,
    divergence_in="reward",
)
"""REINFORCE++: no groups; advantages normalised over the whole update. Source: Hu et al. 2025 (arXiv:2501.03262)."""

reinforce_pp_baseline = Algorithm(
    "reinforce_pp_baseline",
    advantages=mean_difference,
    loss=clipped_ratio_loss,
    aggregate=token_mean,
    credit=BatchNormalized(outcome),
    divergence=k2,
)
"""REINFORCE++ with the group's mean as baseline. Source: Hu et al. 2025 (arXiv:2501.03262)."""
