"""Forward and backward passes with nothing around them, and what arrays hold: for those who time and weigh them."""

import functools
import gc
from typing import Any

import jax
import jax.numpy as jnp

from agentlab.models import Model, add_lora
from agentlab.training.algorithms import LossOptions, clipped_ratio_loss
from agentlab.training.forward import Program, accumulate, token_logprobs
from agentlab.training.packing import MicroBatch, Packed
from agentlab.training.trainer import TrainConfig
from agentlab.training.weights import Stacked, split_trained


class Probe:
    """A model with adapters as the trainer makes them by default. Belongs to the thread that made it.

    Args:
        model: Without adapters.
    """

    def __init__(self, model: Model):
        options = TrainConfig()
        adapted = add_lora(model, options.lora_rank)
        self._trained, self._frozen = split_trained(adapted.params, adapters_only=True)
        self._program = Program(
            config=adapted.config,
            dtype="float32",
            loss=clipped_ratio_loss,
            options=LossOptions(),
            temperature=1.0,
            logit_chunk_tokens=options.logit_chunk_tokens,
            remat=options.remat,
        )

    def gradient(self, packed: Packed) -> None:
        """The trainer's own loss and gradient of every micro-batch; returns when it is computed."""
        gradients: Any = jax.tree.map(jnp.zeros_like, self._trained)
        for batch in packed.batches:
            reference = jnp.asarray(batch.targets.logprob)
            gradients, _ = accumulate(self._program, self._trained, self._frozen, batch, reference, gradients)
        jax.block_until_ready(gradients)

    def bare_gradient(self, packed: Packed) -> None:
        """The gradient of the summed log-probabilities alone; returns when it is computed."""
        for batch in packed.batches:
            jax.block_until_ready(_gradient(self._program, self._trained, self._frozen, batch))


def size_bytes(tree: Any) -> int:
    """Bytes of all arrays in a tree."""
    return sum(array.nbytes for array in jax.tree.leaves(tree))


def live_bytes() -> int:
    """Bytes of all arrays of this process that somebody still holds."""
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@functools.partial(jax.jit, static_argnames="program")
def _gradient(program: Program, trained: Stacked, frozen: Stacked, batch: MicroBatch) -> tuple[jax.Array, Stacked]:
    return jax.value_and_grad(lambda weights: token_logprobs(program, weights, frozen, batch)[0].sum())(trained)
