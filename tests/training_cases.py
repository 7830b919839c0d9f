"""Trajectories for the training tests, and a plain forward pass to compare with: one row each, nothing packed."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from agentlab.models import add_lora
from agentlab.models.decoder import decoder_structure
from agentlab.training.algorithms import LossOptions, grpo
from agentlab.training.forward import Program, accumulate
from agentlab.training.weights import split_trained
from agentlab.types import Task, TokenRow, Trajectory, TrajectoryGroup


def trajectory(tokens, mask, logprobs=None, *, reward=1.0, group="g", episode=0, version=0):
    """A trajectory of one row."""
    logprobs = [-1.0] * len(tokens) if logprobs is None else logprobs
    row = TokenRow(
        tuple(int(token) for token in tokens),
        tuple(mask),
        tuple(float(p) * m for p, m in zip(logprobs, mask, strict=True)),
        tuple(version if m else -1 for m in mask),
    )
    return Trajectory(task=Task(group, "?"), group_id=group, episode=episode, rows=(row,), reward=reward)


def group_of(trajectories, name="g"):
    return TrajectoryGroup(name, Task(name, "?"), tuple(trajectories))


def random_group(model, seed, *, size=4, prompt=9, longest=12, name=None, temperature=1.0, noise=0.0, multi_turn=False):
    """A group of random texts after one prompt, with the log-probabilities that the model gives them.

    Args:
        noise: Standard deviation of what is added to the log-probabilities.
        multi_turn: Whether some later tokens were not sampled, as tool results are.
    """
    rng = np.random.default_rng(seed)
    name = name or f"g{seed}"
    shared = rng.integers(3, 200, prompt).tolist()
    made = []
    for episode in range(size):
        length = int(rng.integers(1, longest + 1))
        tokens = shared + rng.integers(3, 200, length).tolist()
        mask = [0] * prompt + [1] * length
        if multi_turn:
            mask[prompt + 1 :] = rng.integers(0, 2, length - 1).tolist()
        logprobs = plain_logprobs(model, tokens, temperature) + noise * rng.standard_normal(len(tokens))
        made.append(trajectory(tokens, mask, logprobs, reward=float(rng.normal()), group=name, episode=episode))
    return group_of(made, name)


def causal(config, size):
    """Attention written the plain way: a causal softmax per head, with the family's scale, soft cap and windows."""

    def attention(layer, q, k, v):
        groups = config.num_heads // config.num_kv_heads
        k, v = jnp.repeat(k, groups, axis=2), jnp.repeat(v, groups, axis=2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(config.query_pre_attn_scalar or config.head_dim)
        if (cap := config.attention_soft_cap) is not None:
            scores = cap * jnp.tanh(scores / cap)
        distance = jnp.arange(size)[:, None] - jnp.arange(size)
        seen = (distance >= 0) & (distance < (config.window(layer) or size))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1), v)

    return attention


@functools.partial(jax.jit, static_argnames=("config", "temperature"))
def all_logprobs(config, params, tokens, temperature):
    """[T] -> [T]: of every token, given those before it; 0 for the first."""
    decoder = nnx.merge(decoder_structure(config), params)
    hidden = decoder(tokens[None], jnp.arange(len(tokens))[None], causal(config, len(tokens)))
    logprobs = jax.nn.log_softmax(decoder.logits(hidden)[0] / temperature)
    return jnp.concatenate([jnp.zeros(1), jnp.take_along_axis(logprobs[:-1], tokens[1:, None], axis=-1)[:, 0]])


def plain_logprobs(model, tokens, temperature=1.0, params=None):
    """As `all_logprobs`, padded at the end so that little is compiled."""
    padded = jnp.asarray([*tokens, *[0] * (-len(tokens) % 64)], jnp.int32)
    params = model.params if params is None else params
    return np.asarray(all_logprobs(model.config, params, padded, temperature))[: len(tokens)]


def packed_loss_and_gradient(
    model, packed, *, lora_rank=0, temperature=1.0, chunk=16, remat=False, algorithm=grpo, version=0, entropy_bonus=0.0
):
    """(loss, gradient by name) of packed batches, through the program that the trainer runs."""
    adapted = add_lora(model, lora_rank) if lora_rank else model
    trained, frozen = split_trained(adapted.params, adapters_only=bool(lora_rank))
    if lora_rank:
        trained = {name: array + 0.01 for name, array in trained.items()}
    program = Program(
        config=adapted.config,
        dtype="float32",
        loss=algorithm.loss,
        options=LossOptions(clip_low=algorithm.clip_low, clip_high=algorithm.clip_high, entropy_bonus=entropy_bonus),
        temperature=temperature,
        logit_chunk_tokens=chunk,
        remat=remat,
        old_policy=algorithm.old_policy,
        corrections=algorithm.corrections,
    )
    gradients, loss = jax.tree.map(jnp.zeros_like, trained), 0.0
    for batch in packed.batches:
        reference = jnp.asarray(batch.targets.logprob)
        gradients, sums = accumulate(program, trained, frozen, batch, reference, gradients, version=version)
        loss += float(sums["loss_sum"])
    return loss, gradients


def relative_difference(one, other):
    """Norm of the difference over norm, over all arrays together."""
    ours, theirs = (np.concatenate([np.ravel(x[name]) for name in sorted(x)]) for x in (one, other))
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
