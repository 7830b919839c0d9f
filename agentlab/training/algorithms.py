"""The policy-gradient algorithms, as small frozen values made of functions.

Change one part with `dataclasses.replace(grpo, advantages=my_advantages)`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from agentlab.errors import ConfigError

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before `exp`; beyond it a token has no gradient."""

EQUAL_REWARDS = 1e-9
"""Rewards of a group that differ by less than this share of the largest count as equal."""


class TokenTerms(NamedTuple):
    """What a loss sees of the sampled tokens of one micro-batch; every array is [tokens]."""

    logprob: Array
    """Under the weights that are trained, at the temperature that was sampled at; differentiable."""
    sampler_logprob: Array
    """Under the weights that sampled it."""
    reference_logprob: Array
    """Under the frozen base; equal to the sampler's where beta is 0."""
    advantage: Array
    sequence: Array
    """Number of the trajectory in its update; -1 where there is no token."""
    mask: Array
    """True where there is a token."""


class TokenLosses(NamedTuple):
    """What a loss returns; every array is [tokens] and 0 where there is no token."""

    loss: Array
    kl: Array
    """Estimated divergence from the reference, in nats; 0 where beta is 0."""
    clipped: Array
    """1 where the clip took the gradient of the ratio away."""


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """The constants of a loss."""

    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    beta: float = 0.0
    """Weight of the divergence from the reference policy."""


Advantages = Callable[[np.ndarray], np.ndarray]
Loss = Callable[[TokenTerms, LossOptions], TokenLosses]
Aggregate = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Algorithm:
    """How rewards become a scalar loss.

    The scalar is the sum over all sampled tokens of an update of `weight * loss`, so an
    algorithm does not see how tokens were packed or split into micro-batches.
    """

    name: str
    advantages: Advantages
    """Rewards of one group [group_size], NaN where missing, to advantages [group_size]. On the host."""
    loss: Loss
    """The loss of each sampled token. Traced by JAX; must be a module-level function to be compiled once."""
    aggregate: Aggregate
    """Sampled tokens of each trajectory of the update [trajectories] to the weight of one of its
    tokens [trajectories]. On the host."""


def group_advantages(rewards: Any, normalize: bool = True) -> np.ndarray:
    """How much better each trajectory did than its own group: (r - mean) / std.

    A group whose rewards are all equal teaches nothing: its advantages are exactly 0. Missing
    rewards (not finite) are left out of mean and std and get the advantage 0.

    Args:
        rewards: [..., group_size]; any scale. Statistics are over the last axis, in float64.
        normalize: Divide by the group's standard deviation (GRPO). False keeps the plain
            difference, in reward units (Dr. GRPO).

    Returns:
        Advantages, float64, shaped as `rewards`; each group sums to 0 up to rounding.

    Differs from the paper where std is 0 or all difference is rounding (see EQUAL_REWARDS): 0
    there, and so no epsilon is added to std, which is that of the population.

    Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2;
        Liu et al. 2025 (arXiv:2503.20783) for normalize=False.
    """
    rewards = np.asarray(rewards, np.float64)
    scored = np.isfinite(rewards)
    values = np.where(scored, rewards, 0.0)
    count = np.maximum(scored.sum(-1, keepdims=True), 1)
    centred = np.where(scored, values - values.sum(-1, keepdims=True) / count, 0.0)
    highest = np.max(values, axis=-1, keepdims=True, where=scored, initial=-np.inf)
    lowest = np.min(values, axis=-1, keepdims=True, where=scored, initial=np.inf)
    differs = highest - lowest > EQUAL_REWARDS * np.maximum(np.abs(highest), np.abs(lowest))
    if not normalize:
        return np.where(differs, centred, 0.0)
    largest = np.max(np.abs(centred), axis=-1, keepdims=True, initial=0.0)
    scaled = centred / np.where(differs, largest, 1.0)  # or the square of a tiny reward would be 0
    spread = np.sqrt((scaled**2).sum(-1, keepdims=True) / count)
    return np.where(differs, scaled / np.where(differs, spread, 1.0), 0.0)


def mean_difference(rewards: Any) -> np.ndarray:
    """r - mean of the group: `group_advantages(rewards, normalize=False)`."""
    return group_advantages(rewards, normalize=False)


def clipped_ratio_loss(terms: TokenTerms, options: LossOptions) -> TokenLosses:
    """PPO's clipped objective per token, with a KL penalty to the reference when beta > 0.

    loss = -min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A) + beta * k3
    ρ = exp(clamp(logprob - sampler_logprob)),  k3 = exp(d) - d - 1,  d = clamp(reference_logprob - logprob)

    The sampler's log-probabilities stand for the old policy. Both differences are clamped to
    ± MAX_LOG_RATIO, which the papers do not do.

    Source: Schulman et al. 2017 (arXiv:1707.06347), equation 7; Shao et al. 2024
        (arXiv:2402.03300), equations 3 and 4; Yu et al. 2025 (arXiv:2503.14476), equation 10,
        for the two clip bounds.
    """
    ratio = jnp.exp(log_ratio(terms.logprob, terms.sampler_logprob, terms.mask))
    free = ratio * terms.advantage
    held = jnp.clip(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high) * terms.advantage
    loss = -jnp.minimum(free, held)
    kl = jnp.zeros_like(loss)
    if options.beta > 0:
        difference = log_ratio(terms.reference_logprob, terms.logprob, terms.mask)
        kl = jnp.exp(difference) - difference - 1.0
        loss = loss + options.beta * kl
    return TokenLosses(
        loss=jnp.where(terms.mask, loss, 0.0),
        kl=jnp.where(terms.mask, kl, 0.0),
        clipped=jnp.where(terms.mask, held < free, False).astype(jnp.float32),
    )


def log_ratio(logprob: Array, other: Array, mask: Array) -> Array:
    """logprob - other [tokens], clamped to ± MAX_LOG_RATIO, 0 outside the mask (whatever stands there)."""
    difference = jnp.where(mask, logprob, 0.0) - jnp.where(mask, other, 0.0)
    return jnp.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def token_mean(lengths: np.ndarray) -> np.ndarray:
    """Every sampled token of the update weighs the same: 1 / Σ lengths.

    Source: Yu et al. 2025 (arXiv:2503.14476), equation 8.
    """
    return np.full(len(lengths), 1.0 / max(int(lengths.sum()), 1))


def sequence_mean(lengths: np.ndarray) -> np.ndarray:
    """Every trajectory weighs the same, and its tokens share that: 1 / (trajectories * length).

    Source: Shao et al. 2024 (arXiv:2402.03300), equation 3.
    """
    return 1.0 / (max(len(lengths), 1) * np.maximum(lengths, 1))


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

dr_grpo = Algorithm("dr_grpo", advantages=mean_difference, loss=clipped_ratio_loss, aggregate=FixedLength(256))
"""GRPO without its two biases (division by std and by length). Source: Liu et al. 2025 (arXiv:2503.20783).

`replace(dr_grpo, aggregate=FixedLength(n))` where episodes may sample n tokens.
"""
