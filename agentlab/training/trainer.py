"""The trainer: groups of trajectories in; a policy and metrics, listed in `training.glossary`, out."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agentlab.errors import ConfigError
from agentlab.models import Model, add_lora
from agentlab.models.tree import flat_arrays
from agentlab.tracing import Stage, now_ns, span
from agentlab.training.algorithms import Algorithm, LossOptions, grpo
from agentlab.training.checkpoint import (
    KEPT,
    CheckpointStore,
    Restored,
    about_model,
    described,
    holds_checkpoints,
)
from agentlab.training.forward import Program, accumulate, score
from agentlab.training.metrics import (
    gap_alarm,
    loss_metrics,
    mean_of_epochs,
    pack_metrics,
    reward_metrics,
    staleness_metrics,
)
from agentlab.training.optimizer import step, update_rule
from agentlab.training.packing import SHORTEST_ROW, MicroBatch, Packed, pack
from agentlab.training.weights import Stacked, published, split_trained, stack_layers
from agentlab.types import Policy, SamplingParams, TrajectoryGroup, config


@config
class TrainConfig:
    """How the weights are updated."""

    learning_rate: float = 1e-4
    """Of AdamW, after warm-up. About 1e-4 for adapters, 1e-6 to 1e-5 for all weights."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises linearly to its value."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this global norm."""
    beta: float = 0.0
    """Weight of the divergence from the frozen base model; 0 computes no reference."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """Ratios are clipped to [1 - clip_low, 1 + clip_high]."""
    lora_rank: int = 16
    """Of the adapters of all linear layers; 0 trains all weights instead."""
    lora_alpha: float | None = None
    """Adapters are scaled by lora_alpha / lora_rank; None takes 2 * lora_rank."""
    epochs_per_batch: int = 1
    """Optimizer steps on the same groups, each over all of them."""
    row_tokens: int = 512
    """Tokens that a packed row is filled up to."""
    micro_batch_tokens: int = 512
    """Most places computed at once; lower it when memory runs out or decoding waits too long."""
    share_prefix: bool = True
    """Compute a group's common prompt once per row, not once per trajectory."""
    logit_chunk_tokens: int = 128
    """Sampled tokens whose vocabulary logits exist at the same time."""
    remat: bool = False
    """Compute layers again in the backward pass: less memory, about a third more time."""
    solved_reward: float = 1.0
    """Reward from which a trajectory counts as solved in the metrics."""
    seed: int = 0
    """Of the adapters' initial weights."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {getattr(self, name)}.")
        for name in ("warmup_steps", "weight_decay", "beta", "clip_high", "lora_rank"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}.")
        for name in ("epochs_per_batch", "logit_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.clip_low <= 1:
            raise ConfigError(f"clip_low must lie in [0, 1], got {self.clip_low}.")
        if not SHORTEST_ROW <= self.row_tokens <= self.micro_batch_tokens:
            raise ConfigError(
                f"row_tokens must be at least {SHORTEST_ROW} and at most micro_batch_tokens, "
                f"got row_tokens={self.row_tokens} and micro_batch_tokens={self.micro_batch_tokens}."
            )


@dataclass(frozen=True)
class UpdateResult:
    """What an update gives."""

    policy: Policy
    """The new weights, merged; never donated or changed later."""
    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()
    """Warnings for a person: why an update changed nothing."""


def check_trainable(sampling: SamplingParams) -> None:
    """Refuse ways of sampling whose log-probabilities the trainer cannot reproduce.

    Raises:
        ConfigError: temperature is 0, top_p below 1, top_k above 0, or min_p above 0.
    """
    if sampling.temperature == 0:
        raise ConfigError(
            "Training needs a temperature above 0, got 0: always taking the likeliest token explores "
            "nothing, and its log-probabilities are all 0. Set temperature=1.0."
        )
    cuts = (("top_p", sampling.top_p, 1.0), ("top_k", sampling.top_k, 0), ("min_p", sampling.min_p, 0.0))
    for name, value, off in cuts:
        if value != off:
            raise ConfigError(
                f"Training needs {name}={off}, got {value}: tokens sampled from a cut-off distribution have "
                "log-probabilities that the trainer, which sees the whole vocabulary, cannot reproduce, so "
                f"every probability ratio would be wrong. Leave {name} out, or use it for evaluation only."
            )


class Trainer:
    """Owns trained weights and optimizer state. Belongs to the learner thread.

    Args:
        model: Never changed; its weights are version 0 and, when beta > 0, the reference.
        config: How to update.
        algorithm: How rewards become a loss.
        temperature: That trajectories are sampled at; log-probabilities are taken at the same.

    Raises:
        ConfigError: the temperature is not above 0, or the model has adapters already.
    """

    version: int
    """Updates behind the weights."""

    def __init__(
        self,
        model: Model,
        config: TrainConfig | None = None,
        algorithm: Algorithm = grpo,
        *,
        temperature: float = 1.0,
    ):
        self.config = config or TrainConfig()
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature must be above 0 to train, got {temperature}.")
        self.algorithm = algorithm
        self.version = 0
        self._model = model
        adapted = _with_adapters(model, self.config)
        self._trained, self._frozen = split_trained(
            stack_layers(adapted.params), adapters_only=bool(self.config.lora_rank)
        )
        self._reference = self._reference_weights() if self.config.beta > 0 else None
        self._program = Program(
            config=adapted.config,
            dtype=str(flat_arrays(model.params)["embed_tokens",].dtype),
            loss=algorithm.loss,
            options=LossOptions(clip_low=self.config.clip_low, clip_high=self.config.clip_high, beta=self.config.beta),
            temperature=float(temperature),
            logit_chunk_tokens=self.config.logit_chunk_tokens,
            remat=self.config.remat,
        )
        self._rule = update_rule(
            self.config.learning_rate,
            self.config.warmup_steps,
            self.config.weight_decay,
            self.config.max_grad_norm,
        )
        self._optimizer_state = self._rule.optimizer.init(self._trained)
        self._steps = 0
        self._compiled: set[tuple[int, int]] = set()
        self._policy = Policy(0, model.params)

    @property
    def policy(self) -> Policy:
        """The newest weights, merged."""
        return self._policy

    def update(self, groups: Sequence[TrajectoryGroup]) -> UpdateResult:
        """One update from these groups. The version rises by 1 even if they teach nothing.

        Raises:
            ValueError: a trajectory begins with a sampled token.
        """
        start_ns = now_ns()
        with span("pack", groups=len(groups)):
            packed = self._pack(groups)
        references = [self._reference_logprobs(batch) for batch in packed.batches]
        epochs = [self._epoch(packed, references) for _ in range(self.config.epochs_per_batch if packed.batches else 0)]
        notes = tuple(
            f"Update {self.version + 1}: the gradient was not finite, the weights were left as they were. "
            f"Groups: {', '.join(group.id for group in groups)}."
            for epoch in epochs
            if epoch["nonfinite"]
        )
        self.version += 1
        with span("optimizer", what="publish"):
            self._publish(changed=any(not epoch["nonfinite"] for epoch in epochs))
        metrics = {
            **reward_metrics(groups, self.config.solved_reward),
            **mean_of_epochs(epochs),
            **staleness_metrics(packed.batches, self.version - 1),
            **pack_metrics(packed),
        }
        metrics["logprob_gap_alarm"] = gap_alarm(metrics)
        metrics["seconds"] = (now_ns() - start_ns) / 1e9
        metrics["tokens_per_s"] = metrics["tokens"] * self.config.epochs_per_batch / metrics["seconds"]
        return UpdateResult(self._policy, metrics, notes)

    def save(self, folder: str | Path) -> None:
        """Write weights, optimizer state and version below `folder`, whole or not at all.

        Raises:
            OSError: the folder cannot be written.
        """
        with contextlib.closing(CheckpointStore(folder, keep=KEPT)) as store:
            store.save(self.version, self.state(), about=self.about(), record={"version": self.version})
            store.wait()

    def restore(self, folder: str | Path) -> Restored:
        """Go on from the newest state below `folder` that can be read whole; says what was found there.

        Raises:
            ConfigError: there is none, or it belongs to another model or configuration.
        """
        if not holds_checkpoints(folder):
            raise ConfigError(f"There must be a checkpoint in {folder}, but it holds none. Check the path.")
        with contextlib.closing(CheckpointStore(folder)) as store:
            found = store.restore(self.state(), about=self.about())
        self.go_on(found)
        return found

    def go_on(self, found: Restored) -> None:
        """Take over the state of a checkpoint."""
        self.version, state = found.version, found.state
        self._trained, self._optimizer_state = state["trained"], state["optimizer"]
        self._steps = int(state["steps"])
        self._publish(changed=True)

    def state(self) -> dict[str, Any]:
        """The arrays that a checkpoint holds: trained weights or adapters, optimizer state, optimizer steps."""
        return {"trained": self._trained, "optimizer": self._optimizer_state, "steps": np.asarray(self._steps)}

    def about(self) -> dict[str, Any]:
        """What another trainer must have in common with this one to go on from its state; plain JSON."""
        return {
            "model": about_model(self._model),
            "config": described(self.config),
            "algorithm": described(self.algorithm),
        }

    def _pack(self, groups: Sequence[TrajectoryGroup]) -> Packed:
        return pack(
            groups,
            advantages=self.algorithm.advantages,
            aggregate=self.algorithm.aggregate,
            row_tokens=self.config.row_tokens,
            micro_batch_tokens=self.config.micro_batch_tokens,
            share_prefix=self.config.share_prefix,
            keep_equal_groups=self.config.beta > 0,
        )

    def _reference_weights(self) -> tuple[Stacked, Stacked]:
        """(trained, frozen) of the untrained model: adapters that add nothing, or a copy of the weights.

        The trained arrays are never donated, so the first ones stay valid.
        """
        return self._trained, self._frozen

    def _reference_logprobs(self, batch: MicroBatch) -> Array:
        if self._reference is None:
            return jnp.asarray(batch.targets.logprob)
        with span("forward_backward", what="reference"):
            return score(self._program, *self._reference, batch).block_until_ready()

    def _epoch(self, packed: Packed, references: Sequence[Array]) -> dict[str, float]:
        """Gradients over all micro-batches, then one optimizer step."""
        gradients = jax.tree.map(jnp.zeros_like, self._trained)
        sums = []
        for batch, reference in zip(packed.batches, references, strict=True):
            stage: Stage = "forward_backward" if batch.shape in self._compiled else "compile"
            with span(stage, rows=batch.shape[0], length=batch.shape[1]):
                gradients, measured = accumulate(
                    self._program, self._trained, self._frozen, batch, reference, gradients
                )
                sums.append(jax.device_get(measured))
            self._compiled.add(batch.shape)
        rate = float(self._rule.learning_rate(self._steps))
        with span("optimizer"):
            self._trained, self._optimizer_state, taken = step(
                self._rule, self._trained, self._optimizer_state, gradients
            )
            measured = {name: float(value) for name, value in jax.device_get(taken).items()}
        self._steps += not measured["nonfinite"]
        return {**loss_metrics(sums, packed.counts.sampled_tokens), **measured, "learning_rate": rate}

    def _publish(self, *, changed: bool) -> None:
        params = published(self._program.config, self._model.params, self._trained) if changed else self._policy.params
        self._policy = Policy(self.version, jax.block_until_ready(params))


def _with_adapters(model: Model, options: TrainConfig) -> Model:
    if model.config.lora:
        raise ConfigError(f"{model.name} has adapters already. Fold them in with merge_lora before training.")
    if not options.lora_rank:
        return model
    return add_lora(model, options.lora_rank, alpha=options.lora_alpha, seed=options.seed)
