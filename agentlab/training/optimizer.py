"""The optimizer step: AdamW or any of optax on a clipped gradient, skipped where the gradient is not finite."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from agentlab.errors import ConfigError
from agentlab.training.weights import Stacked

Schedule = Callable[[Any], Any]
"""Optimizer steps taken before to the learning rate of the next one, as optax has it."""


@dataclass(frozen=True)
class UpdateRule:
    """An optimizer and the learning rate that it follows."""

    optimizer: optax.GradientTransformation
    learning_rate: Schedule


@functools.cache
def update_rule(
    learning_rate: float | Schedule,
    warmup_steps: int,
    weight_decay: float,
    max_grad_norm: float,
    make_optimizer: Callable[[Schedule], Any] | None = None,
) -> UpdateRule:
    """The same options give the same object, so that its program is compiled once.

    Args:
        learning_rate: A number or a schedule.
        warmup_steps: Steps over which the rate rises linearly to that.
        weight_decay: Of AdamW.
        max_grad_norm: The gradient is scaled down to this global norm.
        make_optimizer: A function of the learning rate; None makes AdamW.

    Raises:
        ConfigError: make_optimizer gives no optax.GradientTransformation.

    Source: Loshchilov and Hutter 2017 (arXiv:1711.05101), algorithm 2, for AdamW.
    """

    def rate(step: Any) -> Any:
        full = learning_rate(step) if callable(learning_rate) else learning_rate
        return full * jnp.minimum(1.0, (step + 1.0) / (warmup_steps + 1.0))

    made = optax.adamw(rate, weight_decay=weight_decay) if make_optimizer is None else make_optimizer(rate)
    if not isinstance(made, optax.GradientTransformation):
        raise ConfigError(
            "optimizer must be a function that makes an optax.GradientTransformation of a learning rate, e.g. "
            f"optax.lion or functools.partial(optax.adamw, b2=0.95); it made {type(made).__name__}."
        )
    return UpdateRule(optax.chain(optax.clip_by_global_norm(max_grad_norm), made), rate)


@functools.partial(jax.jit, static_argnames="rule", donate_argnames=("state", "gradients"))
def step(
    rule: UpdateRule, trained: Stacked, state: Any, gradients: Stacked, trainable: Mapping[str, Array]
) -> tuple[Stacked, Any, dict[str, Array]]:
    """(new weights, new state, metrics); both unchanged where the gradient is not finite.

    `trained` is not donated: it may be published.

    Args:
        trainable: Of weights that are frozen in some layers: 1 where a layer is trained, 0 where not.
    """
    gradients = _only(gradients, trainable)
    norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(gradients)))
    finite = jnp.isfinite(norm)
    changes, stepped = rule.optimizer.update(gradients, state, trained)
    moved = optax.apply_updates(trained, _only(changes, trainable))
    new, kept = jax.tree.map(lambda ours, old: jnp.where(finite, ours, old), (moved, stepped), (trained, state))
    return new, kept, {"grad_norm": norm, "nonfinite": 1.0 - finite}


def _only(values: Any, trainable: Mapping[str, Array]) -> Any:
    return {name: jnp.where(trainable[name] > 0, x, 0) if name in trainable else x for name, x in values.items()}
