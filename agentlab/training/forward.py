"""What runs on the device: log-probabilities of packed rows, and the loss with its gradient."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from agentlab.models import Decoder, DecoderConfig
from agentlab.models.attention import attend
from agentlab.models.decoder import rotary_frequencies
from agentlab.training.attention import attend_packed
from agentlab.training.corrections import Correction, OldPolicy, Policies, correct, sampler_policy
from agentlab.training.losses import Loss, LossOptions, TokenTerms, log_ratio
from agentlab.training.packing import MicroBatch
from agentlab.training.quantized import unpacked
from agentlab.training.weights import Stacked, one_layer_decoder, split_layers

NO_WINDOW = 2**30
Block = Callable[[Array, tuple[Stacked, Array, Array | None]], tuple[Array, None]]
"""(x, (weights of the layer, frequencies, window)) -> (x after the layer, nothing), as `scan` has it."""
Sums = dict[str, Array]
"""Of one micro-batch, by name: sums over its sampled tokens ("…_sum"), extremes, the loss, and "logprob", which has
an entry for each target."""


@dataclass(frozen=True)
class Program:
    """What is fixed when a program is compiled; equal values share their programs."""

    config: DecoderConfig
    dtype: str
    """Of the weights and the stream while they are computed with."""
    loss: Loss
    options: LossOptions
    temperature: float
    logit_chunk_tokens: int
    """Sampled tokens whose vocabulary logits exist at the same time."""
    remat: bool
    """Compute each layer again in the backward pass instead of keeping its inside."""
    old_policy: OldPolicy = sampler_policy
    corrections: tuple[Correction, ...] = ()
    scan: bool = True
    """Compile one layer and loop over all, instead of every layer."""


@functools.partial(jax.jit, static_argnames="program", donate_argnames="gradients")
def accumulate(
    program: Program,
    trained: Stacked,
    frozen: Stacked,
    batch: MicroBatch,
    reference: Array,
    gradients: Stacked,
    *,
    before: Array | None = None,
    version: Array | int = 0,
) -> tuple[Stacked, Sums]:
    """Add the gradient of one micro-batch's share of the loss.

    Args:
        trained: float32; differentiated.
        frozen: In the model's type.
        reference: Log-probabilities under the reference policy, [B * T], in the order of the targets.
        gradients: float32, like `trained`; donated.
        before: Log-probabilities under the weights that the update began with, [B * T]; None where
            `trained` are still those.
        version: Of the weights that the update began with.
    """
    (_, sums), added = jax.value_and_grad(_loss, argnums=1, has_aux=True)(
        program, trained, frozen, batch, reference, before, version
    )
    sums["nonfinite"] = 1.0 - jnp.isfinite(sum(jnp.sum(x) for x in jax.tree.leaves(added)))
    return jax.tree.map(jnp.add, gradients, added), sums


@functools.partial(jax.jit, static_argnames="program")
def score(program: Program, trained: Stacked, frozen: Stacked, batch: MicroBatch) -> Array:
    """Log-probabilities of the targets, [B * T] float32; 0 where there is none. No gradient."""
    return token_logprobs(program, trained, frozen, batch)[0]


def _loss(
    program: Program,
    trained: Stacked,
    frozen: Stacked,
    batch: MicroBatch,
    reference: Array,
    before: Array | None,
    version: Array | int,
) -> tuple[Array, Sums]:
    logprob, entropy = token_logprobs(program, trained, frozen, batch)
    targets = jax.tree.map(jnp.asarray, batch.targets)
    mask, sampler = targets.sequence >= 0, targets.logprob
    current = jax.lax.stop_gradient(logprob)
    age = jnp.where(mask, jnp.maximum(version - targets.version, 0), 0)
    old = program.old_policy(Policies(sampler, current, current if before is None else before, age))
    weights = correct(program.corrections, old, sampler, targets.row, mask)
    terms = TokenTerms(logprob, old, reference, targets.advantage, targets.row, mask, weights.weight, entropy)
    losses = program.loss(terms, program.options)
    loss = jnp.sum(targets.weight * losses.loss)
    ratio = jnp.exp(log_ratio(current, sampler, mask))
    gap = jnp.where(mask, jnp.abs(current - sampler), 0.0)
    sums = {
        "loss_sum": loss,
        "kl_sum": jnp.sum(losses.kl),
        "clipped_sum": jnp.sum(losses.clipped),
        "weight_sum": jnp.sum(jnp.where(mask, weights.weight, 0.0)),
        "bounded_sum": jnp.sum(mask & weights.bounded, dtype=jnp.float32),
        "masked_sum": jnp.sum(mask & (weights.weight == 0), dtype=jnp.float32),
        "entropy_sum": jnp.sum(entropy),
        "ratio_sum": jnp.sum(jnp.where(mask, ratio, 0.0)),
        "ratio_min": jnp.min(jnp.where(mask, ratio, jnp.inf)),
        "ratio_max": jnp.max(jnp.where(mask, ratio, -jnp.inf)),
        "gap_sum": jnp.sum(gap),
        "gap_max": jnp.max(gap),
        "logprob": current,
    }
    return loss, sums


def token_logprobs(program: Program, trained: Stacked, frozen: Stacked, batch: MicroBatch) -> tuple[Array, Array]:
    """(log-probability, entropy in nats) of every target at the sampling temperature, [B * T] float32 each.

    Both are 0 where there is no target. Vocabulary logits are made chunk by chunk, and again in
    the backward pass, so that no array of all tokens times the vocabulary ever exists.
    """
    decoder, hidden = _hidden(program, trained, frozen, batch)
    size, chunk = batch.targets.index.size, min(program.logit_chunk_tokens, batch.targets.index.size)
    padding = (0, -size % chunk)
    wanted = jnp.pad(batch.targets.index, padding).reshape(-1, chunk)
    tokens = jnp.pad(batch.targets.token, padding).reshape(-1, chunk)
    masks = jnp.pad(batch.targets.sequence >= 0, padding).reshape(-1, chunk)
    rows = hidden.reshape(-1, hidden.shape[-1])

    @jax.checkpoint
    def scored(index: Array, token: Array, mask: Array) -> tuple[Array, Array]:
        logits = decoder.logits(rows[index]) / program.temperature
        total = jax.nn.logsumexp(logits, axis=-1)
        logprob = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0] - total
        expected = jnp.sum(jnp.exp(logits - total[:, None]) * logits, axis=-1)
        entropy = total - expected if program.options.entropy_bonus else jax.lax.stop_gradient(total - expected)
        return jnp.where(mask, logprob, 0.0), jnp.where(mask, entropy, 0.0)

    def chunk_of(_: None, piece: tuple[Array, Array, Array]) -> tuple[None, tuple[Array, Array]]:
        zeros = jnp.zeros(chunk, jnp.float32)
        return None, jax.lax.cond(jnp.any(piece[2]), scored, lambda *_: (zeros, zeros), *piece)

    _, (logprob, entropy) = jax.lax.scan(chunk_of, None, (wanted, tokens, masks))
    return logprob.reshape(-1)[:size], entropy.reshape(-1)[:size]


def _hidden(program: Program, trained: Stacked, frozen: Stacked, batch: MicroBatch) -> tuple[Decoder, Array]:
    """(a decoder whose `logits` may be asked, hidden states [B, T, D] after the final norm)."""
    config = program.config
    top, layers = split_layers({**frozen, **{name: array.astype(program.dtype) for name, array in trained.items()}})
    outer = one_layer_decoder(config, top, _layer(layers, 0))
    positions = jnp.asarray(batch.positions)[..., None].astype(jnp.float32)
    related, distance = _related(batch)

    def block(x: Array, piece: tuple[Stacked, Array, Array | None]) -> tuple[Array, None]:
        layer, frequencies, window = piece
        mask = related if window is None else related & (distance < window)

        def attention(_: int, q: Array, k: Array, v: Array) -> Array:
            if config.attention_soft_cap is None:
                return attend_packed(q, k, v, mask, scale=config.attention_scale)
            return attend(q, k, v, mask, scale=config.attention_scale, soft_cap=config.attention_soft_cap)

        decoder = one_layer_decoder(config, top, unpacked(layer))
        return decoder.layers[0](x, positions * frequencies, 0, attention), None

    windows = jnp.asarray([window or NO_WINDOW for window in config.windows]) if config.windows else None
    local = map(config.has_local_rope, range(config.num_layers))
    frequencies = jnp.asarray([rotary_frequencies(config, local=layer) for layer in local])
    x = outer.embed(jnp.asarray(batch.tokens))
    if program.scan:
        return outer, outer.norm(_scanned(block, x, layers, (frequencies, windows), remat=program.remat))
    block = jax.checkpoint(block) if program.remat else block
    for number in range(config.num_layers):
        window = None if windows is None else windows[number]
        x, _ = block(x, (_layer(layers, number), frequencies[number], window))
    return outer, outer.norm(x)


def _scanned(block: Block, x: Array, layers: Stacked, options: tuple[Array, Array | None], *, remat: bool) -> Array:
    """The stream after all layers, by one program for all.

    Weights that are tuples of the layers' own arrays are fetched layer by layer, in the backward pass again, so
    that one layer of them is copied at a time. They are a `switch` of the layer's number because JAX never keeps
    what a `switch` gives for the backward pass of a checkpointed function, whatever the policy.
    """
    apart = {name: arrays for name, arrays in layers.items() if isinstance(arrays, tuple)}
    stacked = {name: array for name, array in layers.items() if name not in apart}
    fetches = [functools.partial(_layer, apart, number) for number in range(len(next(iter(apart.values()), ())))]

    def one(x: Array, piece: tuple[Array, Stacked, Array, Array | None]) -> tuple[Array, None]:
        number, own, frequencies, window = piece
        fetched = jax.lax.switch(number, fetches) if fetches else {}
        return block(x, (own | fetched, frequencies, window))

    if remat or fetches:
        policy = None if remat else jax.checkpoint_policies.everything_saveable
        one = jax.checkpoint(one, prevent_cse=False, policy=policy)
    frequencies, windows = options
    return jax.lax.scan(one, x, (jnp.arange(len(frequencies)), stacked, frequencies, windows))[0]


def _layer(layers: Stacked, number: int) -> Stacked:
    return unpacked({name: array[number] for name, array in layers.items()})


def _related(batch: MicroBatch) -> tuple[Array, Array]:
    """(who may see whom but for a window, how far back that lies), [B, T, T], indexed [row, query, key].

    `models.attention.segment_mask`, but each segment names its own prefix, so that several groups
    share a row. Padding sees itself alone, so that no attention row is empty.
    """
    segments, prefixes, positions = map(jnp.asarray, (batch.segments, batch.prefixes, batch.positions))
    query, prefix, key = segments[:, :, None], prefixes[:, :, None], segments[:, None, :]
    distance = positions[:, :, None] - positions[:, None, :]
    related = ((query == key) | (prefix == key)) & (key >= 0) & (distance >= 0)
    return related | jnp.eye(segments.shape[1], dtype=bool), distance
