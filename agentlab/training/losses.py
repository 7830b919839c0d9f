"""The loss of each sampled token, as functions of the log-probabilities of several policies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before `exp`; beyond it a token has no gradient."""


class TokenTerms(NamedTuple):
    """What a loss sees of the sampled tokens of one micro-batch; every array is [tokens]."""

    logprob: Array
    """Under the weights that are trained, at the temperature that was sampled at; differentiable."""
    old_logprob: Array
    """Under the old policy, from which the ratio is measured: the sampler's, or see `corrections`."""
    reference_logprob: Array
    """Under the frozen base; equal to the sampler's where beta is 0."""
    advantage: Array
    row: Array
    """Number of the token row in its micro-batch: one per trajectory, more where history was rewritten."""
    mask: Array
    """True where there is a token."""
    correction: Array | float = 1.0
    """What the policy's part of the loss is multiplied with: see `corrections`. No gradient."""
    entropy: Array | float = 0.0
    """Of the policy at this token, in nats; differentiable where an entropy bonus is asked for."""


class TokenLosses(NamedTuple):
    """What a loss returns; every array is [tokens] and 0 where there is no token."""

    loss: Array
    kl: Array
    """Estimated divergence from the reference, in nats; 0 where beta is 0."""
    clipped: Array
    """1 where the clip took the gradient of the ratio away (in CISPO: bounded the ratio)."""


Divergence = Callable[[Array, Array, Array], Array]
"""(logprob, reference_logprob, mask), [tokens] each, to an estimate of KL(policy, reference) [tokens]."""


def k1(logprob: Array, reference: Array, mask: Array) -> Array:
    """log π - log π_ref: unbiased, of high variance, may be negative; for the reward.

    In the loss its gradient is 0 on average, so that it restrains nothing there.

    Source: Schulman 2020, "Approximating KL Divergence", k1.
    """
    return log_ratio(logprob, reference, mask)


def k2(logprob: Array, reference: Array, mask: Array) -> Array:
    """(log π - log π_ref)² / 2: biased, of low variance; in the loss its gradient is that of the KL.

    Source: Schulman 2020, "Approximating KL Divergence", k2; Hu et al. 2025 (arXiv:2501.03262).
    """
    return 0.5 * log_ratio(logprob, reference, mask) ** 2


def k3(logprob: Array, reference: Array, mask: Array) -> Array:
    """exp(d) - d - 1 with d = log π_ref - log π: unbiased, of low variance, never negative.

    Source: Schulman 2020, "Approximating KL Divergence", k3; Shao et al. 2024 (arXiv:2402.03300), equation 4.
    """
    difference = log_ratio(reference, logprob, mask)
    return jnp.exp(difference) - difference - 1.0


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """The constants of a loss."""

    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = None
    """Where the advantage is negative, the loss is at most this times -advantage; None for no such bound."""
    beta: float = 0.0
    """Weight of the divergence from the reference policy."""
    divergence: Divergence = k3
    divergence_in: Literal["loss", "reward"] = "loss"
    """Whether beta times the divergence is added to the loss, or was taken off the reward before."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy, which is taken off the loss."""


Loss = Callable[[TokenTerms, LossOptions], TokenLosses]


def clipped_ratio_loss(terms: TokenTerms, options: LossOptions) -> TokenLosses:
    """PPO's clipped objective per token, with a KL penalty to the reference when beta > 0.

    loss = -min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A) + beta * divergence - entropy_bonus * H
    ρ = exp(clamp(logprob - old_logprob))

    With `dual_clip` c, the first part is at most -c A where A < 0. Differences are clamped to
    ± MAX_LOG_RATIO, which the papers do not do.

    Source: Schulman et al. 2017 (arXiv:1707.06347), equation 7; Shao et al. 2024
        (arXiv:2402.03300), equations 3 and 4; Yu et al. 2025 (arXiv:2503.14476), equation 10,
        for the two clip bounds; Ye et al. 2020 (arXiv:1912.09729) for dual_clip (c = 3 there).
    """
    return _clipped(log_ratio(terms.logprob, terms.old_logprob, terms.mask), terms, options)


def sequence_ratio_loss(terms: TokenTerms, options: LossOptions) -> TokenLosses:
    """As `clipped_ratio_loss`, with the ratio of the whole token row in place of each token's (GSPO).

    s = exp(clamp(mean over the row's sampled tokens of logprob - old_logprob))
    s_t = stop(s) exp(logprob - stop(logprob)),  loss = -min(s_t A, clip(s_t, ...) A) + ...

    That is GSPO-token. Where all tokens of a row have the same advantage and weight, its value and
    gradient are those of GSPO, in which s itself is differentiated.

    Where history was rewritten, each of a trajectory's token rows is a sequence of its own.

    Source: Zheng et al. 2025 (arXiv:2507.18071), equations 5 and 7, 13 and 14.
    """
    return _clipped(_sequence_log_ratio(terms), terms, options)


def bounded_weight_loss(terms: TokenTerms, options: LossOptions) -> TokenLosses:
    """CISPO: the ratio is a bounded weight without gradient, so that no token loses its gradient.

    loss = -stop(clip(ρ, 1 - clip_low, 1 + clip_high)) A logprob + ...

    Source: MiniMax 2025 (arXiv:2506.13585), CISPO.
    """
    ratio = jnp.exp(log_ratio(terms.logprob, terms.old_logprob, terms.mask))
    bounded = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high))
    policy = -bounded * terms.advantage * jnp.where(terms.mask, terms.logprob, 0.0)
    return _whole(policy, bounded != ratio, terms, options)


def score_function_loss(terms: TokenTerms, options: LossOptions) -> TokenLosses:
    """REINFORCE: -A logprob + ..., with no ratio; old_logprob is not looked at.

    Source: Williams 1992; Ahmadian et al. 2024 (arXiv:2402.14740), section 2.2.
    """
    policy = -terms.advantage * jnp.where(terms.mask, terms.logprob, 0.0)
    return _whole(policy, jnp.zeros_like(terms.mask), terms, options)


def log_ratio(logprob: Array, other: Array, mask: Array) -> Array:
    """logprob - other [tokens], clamped to ± MAX_LOG_RATIO, 0 outside the mask (whatever stands there)."""
    difference = jnp.where(mask, logprob, 0.0) - jnp.where(mask, other, 0.0)
    return jnp.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def row_mean(values: Array, row: Array, mask: Array) -> Array:
    """[tokens] -> [tokens]: the mean of each token's row; 0 outside the mask."""
    size = values.shape[0]
    where = jnp.where(mask, row, size)
    total = jax.ops.segment_sum(jnp.where(mask, values, 0.0), where, size + 1)
    count = jax.ops.segment_sum(mask.astype(values.dtype), where, size + 1)
    return jnp.where(mask, (total / jnp.maximum(count, 1.0))[where], 0.0)


def _sequence_log_ratio(terms: TokenTerms) -> Array:
    """The clamped mean log-ratio of each token's row, with the gradient of the token's own logprob."""
    difference = jnp.where(terms.mask, terms.logprob, 0.0) - jnp.where(terms.mask, terms.old_logprob, 0.0)
    mean = row_mean(jax.lax.stop_gradient(difference), terms.row, terms.mask)
    held = jnp.clip(mean, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    own = jnp.where(held == mean, difference, jax.lax.stop_gradient(difference))
    return held + own - jax.lax.stop_gradient(own)


def _clipped(log_ratios: Array, terms: TokenTerms, options: LossOptions) -> TokenLosses:
    ratio = jnp.exp(log_ratios)
    free = ratio * terms.advantage
    held = jnp.clip(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high) * terms.advantage
    gain, clipped = jnp.minimum(free, held), held < free
    if options.dual_clip is not None:
        bound = options.dual_clip * terms.advantage
        bounded = (terms.advantage < 0) & (gain < bound)
        gain, clipped = jnp.where(bounded, bound, gain), clipped | bounded
    return _whole(-gain, clipped, terms, options)


def _whole(policy: Array, clipped: Array, terms: TokenTerms, options: LossOptions) -> TokenLosses:
    """The policy's part, corrected, with the divergence and the entropy bonus added."""
    loss = terms.correction * policy
    kl = jnp.zeros_like(loss)
    if options.beta > 0:
        kl = options.divergence(terms.logprob, terms.reference_logprob, terms.mask)
        loss = loss + options.beta * kl if options.divergence_in == "loss" else loss
    if options.entropy_bonus:
        loss = loss - options.entropy_bonus * terms.entropy
    return TokenLosses(
        loss=jnp.where(terms.mask, loss, 0.0),
        kl=jnp.where(terms.mask, kl, 0.0),
        clipped=jnp.where(terms.mask, clipped, False).astype(jnp.float32),
    )
