"""Off-policy correction: which policy the ratio is measured from, and what weighs or masks tokens of another one.

Three policies: the sampler's (the log-probabilities that came with the tokens), the old one (from
which a loss measures its ratio), and the one that is trained. Where the old one is the sampler's,
the ratio corrects for everything. Else the old one is made of the trainer's own weights before the
update, and the weight old / sampler corrects for staleness and for differences between engine and
trainer (decoupled PPO: Hilton et al. 2021, arXiv:2110.00641; Fu et al. 2025, arXiv:2505.24298).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agentlab.errors import ConfigError
from agentlab.training.losses import log_ratio, row_mean


class Policies(NamedTuple):
    """Log-probabilities of the sampled tokens, [tokens] each and without gradient."""

    sampler: Array
    """Under the weights that sampled them."""
    current: Array
    """Under the weights that are trained, as they are now."""
    before: Array
    """Under the weights that the update began with."""
    age: Array
    """Updates between the sampler's weights and those the update began with."""


OldPolicy = Callable[[Policies], Array]
"""Log-probabilities under the old policy [tokens]."""


def sampler_policy(policies: Policies) -> Array:
    """The sampler's own log-probabilities: the ratio then corrects for everything."""
    return policies.sampler


def recomputed_policy(policies: Policies) -> Array:
    """Recomputed by the trainer with the weights that the update began with (decoupled PPO).

    With one epoch per batch these are the current weights, and nothing is computed twice.

    Source: Fu et al. 2025 (arXiv:2505.24298), decoupled objective.
    """
    return policies.before


def interpolated_policy(policies: Policies) -> Array:
    """Between the sampler's and the current policy, in place of recomputing: log-linear in the versions.

    log π_old = log π_sampler + α (log π - log π_sampler),  α = age / (age + 1): the update's first
    weights lie `age` updates after the sampler's and one before those that it makes.

    Source: Li et al. 2025 (arXiv:2512.06547, A-3PO), as in AReaL's "loglinear".
    """
    share = policies.age / (policies.age + 1.0)
    return policies.sampler + share * (policies.current - policies.sampler)


class Weights(NamedTuple):
    """What a correction gives; [tokens] each."""

    weight: Array
    """That the token's loss is multiplied with; 0 masks it out. The token still counts in the mean."""
    bounded: Array
    """True where the weight is less than old / sampler, but not 0."""


Correction = Callable[[Array, Array, Array], Weights]
"""(log old - log sampler, clamped [tokens]; row [tokens]; mask [tokens]) to weights."""


@dataclass(frozen=True)
class TruncatedImportanceSampling:
    """Each token is weighed with min(old / sampler, cap).

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", with
        cap 2; Ionides 2008, "Truncated importance sampling".
    """

    cap: float = 2.0

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise ConfigError(f"TruncatedImportanceSampling needs a cap above 0, got {self.cap}.")

    def __call__(self, log_weight: Array, row: Array, mask: Array) -> Weights:
        weight = jnp.exp(log_weight)
        return Weights(jnp.minimum(weight, self.cap), weight > self.cap)


@dataclass(frozen=True)
class IcePop:
    """Each token is weighed with old / sampler where that lies in [low, high], and masked elsewhere.

    Source: Ling team 2025 (arXiv:2510.18855), with bounds 0.5 and 5.
    """

    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        _check_bounds("IcePop", self.low, self.high)

    def __call__(self, log_weight: Array, row: Array, mask: Array) -> Weights:
        weight = jnp.exp(log_weight)
        kept = (weight >= self.low) & (weight <= self.high)
        return Weights(jnp.where(kept, weight, 0.0), jnp.zeros_like(mask))


@dataclass(frozen=True)
class GeometricMask:
    """Whole rows are masked whose geometric mean of old / sampler lies outside [low, high]; others weigh 1.

    Source: Liu et al. 2025, "When Speed Kills Stability: Demystifying RL Collapse from the
        Training-Inference Mismatch", geometric sequence masking, with bounds 0.999 and 1.001.
    """

    low: float = 0.999
    high: float = 1.001

    def __post_init__(self) -> None:
        _check_bounds("GeometricMask", self.low, self.high)

    def __call__(self, log_weight: Array, row: Array, mask: Array) -> Weights:
        mean = jnp.exp(row_mean(log_weight, row, mask))
        return Weights(((mean >= self.low) & (mean <= self.high)).astype(log_weight.dtype), jnp.zeros_like(mask))


def correct(corrections: tuple[Correction, ...], old: Array, sampler: Array, row: Array, mask: Array) -> Weights:
    """The product of all corrections, without gradient; 1 where there are none."""
    log_weight = jax.lax.stop_gradient(log_ratio(old, sampler, mask))
    weight, bounded = jnp.ones_like(log_weight), jnp.zeros_like(mask)
    for correction in corrections:
        found = correction(log_weight, row, mask)
        weight, bounded = weight * found.weight, bounded | found.bounded
    return Weights(weight, bounded & (weight > 0))


def _check_bounds(name: str, low: float, high: float) -> None:
    if not 0 <= low <= 1 <= high:
        raise ConfigError(f"{name} needs bounds with 0 ≤ low ≤ 1 ≤ high, got low={low} and high={high}.")
