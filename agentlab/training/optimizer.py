"""The optimizer step: AdamW on a clipped gradient, skipped where the gradient is not finite."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from agentlab.training.weights import Stacked


@dataclass(frozen=True)
class UpdateRule:
    """An optimizer and the learning rate that it follows."""

    optimizer: optax.GradientTransformation
    learning_rate: Callable[[Any], Any]
    """Optimizer steps taken before to the rate of the next one."""


@functools.cache
def update_rule(learning_rate: float, warmup_steps: int, weight_decay: float, max_grad_norm: float) -> UpdateRule:
    """The same options give the same object, so that its program is compiled once.

    Source: Loshchilov and Hutter 2017 (arXiv:1711.05101), algorithm 2.
    """

    def rate(step: Any) -> Any:
        return learning_rate * jnp.minimum(1.0, (step + 1.0) / (warmup_steps + 1.0))

    optimizer = optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adamw(rate, weight_decay=weight_decay))
    return UpdateRule(optimizer, rate)


@functools.partial(jax.jit, static_argnames="rule", donate_argnames=("state", "gradients"))
def step(rule: UpdateRule, trained: Stacked, state: Any, gradients: Stacked) -> tuple[Stacked, Any, dict[str, Array]]:
    """(new weights, new state, metrics); both unchanged where the gradient is not finite.

    `trained` is not donated: it may be published.
    """
    norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(gradients)))
    finite = jnp.isfinite(norm)
    changes, stepped = rule.optimizer.update(gradients, state, trained)
    moved = optax.apply_updates(trained, changes)
    new, kept = jax.tree.map(lambda ours, old: jnp.where(finite, ours, old), (moved, stepped), (trained, state))
    return new, kept, {"grad_norm": norm, "nonfinite": 1.0 - finite}
