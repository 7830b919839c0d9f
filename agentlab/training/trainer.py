"""The trainer: groups of trajectories in; a policy and metrics, listed in `training.glossary`, out."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agentlab.errors import ConfigError
from agentlab.models import Model, without_adapters
from agentlab.models.sharding import lay_out
from agentlab.models.tree import flat_arrays
from agentlab.tracing import Stage, now_ns, span
from agentlab.training.adapters import all_adapters, named_adapters, with_adapters
from agentlab.training.advantages import token_advantages
from agentlab.training.algorithms import Algorithm, grpo
from agentlab.training.checkpoint import (
    KEPT,
    CheckpointStore,
    Restored,
    about_model,
    described,
    holds_checkpoints,
    place,
)
from agentlab.training.corrections import interpolated_policy, sampler_policy
from agentlab.training.forward import Program
from agentlab.training.losses import LossOptions
from agentlab.training.metrics import (
    gap_alarm,
    loss_metrics,
    mean_of_epochs,
    pack_metrics,
    reward_metrics,
    staleness_metrics,
)
from agentlab.training.optimizer import step, update_rule
from agentlab.training.packing import SHORTEST_ROW, MicroBatch, Packed, pack, with_advantages
from agentlab.training.quantized import QuantizedType, on_grid, quantize
from agentlab.training.replicas import Replicas, Round
from agentlab.training.scores import trained_groups
from agentlab.training.weights import Stacked, published, split_trained, trainable_layers
from agentlab.types import Policy, SamplingParams, TrainedGroup, TrajectoryGroup, config


@config
class TrainConfig:
    """How the weights are updated."""

    algorithm: Algorithm = grpo
    """How rewards become a loss: one of `agentlab.algorithms`, or `replace(algorithms.grpo, ...)`."""
    learning_rate: float | Callable = 1e-4
    """After warm-up; a number or an optax schedule. About 1e-4 for adapters, 1e-6 to 1e-5 for all weights."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises linearly to its value."""
    weight_decay: float = 0.0
    """Of AdamW."""
    optimizer: Callable | None = None
    """In place of AdamW: a function that makes an optax optimizer of the learning rate, e.g. `optax.lion`."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this global norm."""
    beta: float = 0.0
    """Weight of the divergence from the frozen base model; 0 computes no reference."""
    clip_low: float | None = None
    clip_high: float | None = None
    """Ratios are clipped to [1 - clip_low, 1 + clip_high]; None takes the algorithm's own bounds."""
    dual_clip: float | None = None
    """Bound, above 1, of the loss of tokens with a negative advantage, in units of it; None for no bound."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy, which is taken off the loss."""
    lora_rank: int = 16
    """Of the adapters of all linear layers; 0 trains all weights instead."""
    lora_alpha: float | None = None
    """Adapters are scaled by lora_alpha / lora_rank; None takes 2 * lora_rank, or that of adapters that were loaded."""
    base_type: QuantizedType | None = None
    """Kind in which the frozen weights under the adapters are held, "nf4" (4 bits) or "int8"; None leaves them
    as they are. Needs the extra `qlora`."""
    frozen: Callable | None = None
    """By the name of a weight, e.g. "layers.3.mlp.up_proj.weight", whether it (or its adapter) stays as it is."""
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
    scan_layers: bool = True
    """Compile one layer and loop over all: soon compiled. False compiles every layer. Frozen weights are the
    model's own arrays either way, not a second copy."""
    solved_reward: float = 1.0
    """Reward from which a trajectory counts as solved in the metrics."""
    seed: int = 0
    """Of the adapters' initial weights."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            if not callable(value) and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {value}.")
        for name in ("warmup_steps", "weight_decay", "beta", "clip_high", "entropy_bonus", "lora_rank"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {value}.")
        for name in ("epochs_per_batch", "logit_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.clip_low is not None and not 0 <= self.clip_low <= 1:
            raise ConfigError(f"clip_low must lie in [0, 1], got {self.clip_low}.")
        if self.dual_clip is not None and not 1 < self.dual_clip < math.inf:
            raise ConfigError(f"dual_clip must be above 1 and finite, got {self.dual_clip}.")
        if self.base_type is not None and not self.scan_layers:
            raise ConfigError(f"base_type={self.base_type!r} needs scan_layers=True: quantised weights are stacked.")
        if self.base_type is not None and not self.lora_rank:
            raise ConfigError(f"base_type={self.base_type!r} needs adapters to train: set lora_rank above 0.")
        if self.optimizer is not None and self.weight_decay:
            raise ConfigError(
                f"weight_decay={self.weight_decay} is AdamW's, and optimizer replaces AdamW. Give it to the "
                "optimizer, e.g. optimizer=functools.partial(optax.lion, weight_decay=0.01)."
            )
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
    trained: tuple[TrainedGroup, ...] = ()
    """The last groups of the update with the scores of their tokens."""


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
        algorithm: How rewards become a loss; None takes the configuration's.
        temperature: That trajectories are sampled at; log-probabilities are taken at the same.
        devices: Each computes micro-batches of its own; none given is where the model lies.
        publish_to: Devices over which published weights are laid out; none given leaves them where the model lies.

    Raises:
        ConfigError: the temperature is not above 0, the model has adapters of another rank or scale, or nothing is
            trained.
    """

    version: int
    """Updates behind the weights."""

    def __init__(
        self,
        model: Model,
        config: TrainConfig | None = None,
        algorithm: Algorithm | None = None,
        *,
        temperature: float = 1.0,
        devices: Sequence[Any] = (),
        publish_to: Sequence[Any] = (),
    ):
        self.config = config or TrainConfig()
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature must be above 0 to train, got {temperature}.")
        self.algorithm = algorithm or self.config.algorithm
        self.version = 0
        self._replicas, self._publish_to = Replicas(devices), tuple(publish_to)
        if self.config.base_type is not None:
            model = on_grid(model, self.config.base_type)
        self._model = model
        adapted = with_adapters(model, self.config.lora_rank, self.config.lora_alpha, self.config.seed)
        self._trained, self._frozen = split_trained(
            adapted.params,
            adapters_only=bool(self.config.lora_rank),
            frozen=self.config.frozen,
            stack_frozen=self.config.base_type is not None,
        )
        if not self._trained:
            raise ConfigError("frozen must leave something to train, but it is True for every weight of the model.")
        if self.config.base_type is not None:
            self._frozen = quantize(self._frozen, self.config.base_type)
        self._trained, self._frozen = self._replicas.replicate((self._trained, self._frozen))
        self._trainable = self._replicas.replicate(trainable_layers(self._trained, self.config.frozen))
        self._reference = self._reference_weights() if self.config.beta > 0 else None
        self._program = Program(
            config=adapted.config,
            dtype=str(flat_arrays(model.params)["embed_tokens",].dtype),
            loss=self.algorithm.loss,
            options=_loss_options(self.config, self.algorithm),
            temperature=float(temperature),
            logit_chunk_tokens=self.config.logit_chunk_tokens,
            remat=self.config.remat,
            old_policy=self.algorithm.old_policy,
            corrections=self.algorithm.corrections,
            scan=self.config.scan_layers,
        )
        self._rule = update_rule(
            self.config.learning_rate,
            self.config.warmup_steps,
            self.config.weight_decay,
            self.config.max_grad_norm,
            self.config.optimizer,
        )
        self._optimizer_state = self._replicas.replicate(self._rule.optimizer.init(self._trained))
        self._steps = 0
        self._compiled: set[tuple[int, int]] = set()
        self._base = without_adapters(model).params
        self._policy = None if model.config.lora else Policy(0, self._base)

    @property
    def policy(self) -> Policy:
        """The newest weights, merged."""
        return self._policy or self._publish(changed=True)

    def update(self, groups: Sequence[TrajectoryGroup]) -> UpdateResult:
        """One update from these groups. The version rises by 1 even if they teach nothing.

        Raises:
            ValueError: a trajectory begins with a sampled token.
        """
        with self._replicas.here():
            return self._update(groups)

    def _update(self, groups: Sequence[TrajectoryGroup]) -> UpdateResult:
        start_ns = now_ns()
        packed = self._pack(groups)
        rounds = list(self._replicas.rounds(packed.batches))
        references = [self._reference_logprobs(batch) for batch, *_ in rounds]
        if self.config.beta > 0 and self.algorithm.divergence_in == "reward":
            packed = self._penalized(groups, packed, rounds, references)
            rounds = list(self._replicas.rounds(packed.batches))
        before = [self._logprobs_before(batch) for batch, *_ in rounds]
        num_epochs = self.config.epochs_per_batch if packed.batches else 0
        epochs = [self._epoch(packed, rounds, references, before) for _ in range(num_epochs)]
        notes = tuple(self._nonfinite_note(groups, packed, epoch) for epoch in epochs if epoch["nonfinite"])
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
        logprobs = epochs[0]["logprobs"] if epochs else ()
        return UpdateResult(self.policy, metrics, notes, trained_groups(groups, packed, logprobs, self.version - 1))

    def save(self, folder: str | Path) -> None:
        """Write weights, optimizer state and version below `folder`, whole or not at all.

        Raises:
            CheckpointError: it cannot be written.
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
            why = "it holds none" if place(folder).is_dir() else "there is no such folder"
            raise ConfigError(f"There must be a checkpoint in {folder}, but {why}. Check the path.")
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
            credit=self.algorithm.credit,
            shaping=self.algorithm.shaping,
            row_tokens=self.config.row_tokens,
            micro_batch_tokens=self.config.micro_batch_tokens,
            share_prefix=self.config.share_prefix,
            keep_equal_groups=self.config.beta > 0 or self.config.entropy_bonus > 0,
        )

    def _penalized(
        self,
        groups: Sequence[TrajectoryGroup],
        packed: Packed,
        rounds: Sequence[Round],
        references: Sequence[Array],
    ) -> Packed:
        """The same batches, with beta times the divergence taken off the reward of each token."""
        penalties = [[np.zeros(t.num_sampled) for t in group.trajectories] for group in groups]
        for (_, members, _), reference in zip(rounds, references, strict=True):
            for number, own in zip(members, self._replicas.split(reference, len(members)), strict=True):
                targets, there = packed.batches[number].targets, packed.batches[number].targets.sequence >= 0
                sampled, mask = jnp.asarray(targets.logprob), jnp.asarray(there)
                costs = self.config.beta * np.asarray(self.algorithm.divergence(sampled, own, mask))
                for entry in np.flatnonzero(there):
                    group, index = packed.sequences[targets.sequence[entry]]
                    penalties[group][index][targets.place[entry]] = costs[entry]
        with span("advantage", groups=len(groups)):
            values = token_advantages(
                groups,
                advantages=self.algorithm.advantages,
                credit=self.algorithm.credit,
                shaping=self.algorithm.shaping,
                penalties=penalties,
            )
        return with_advantages(packed, values)

    def _logprobs_before(self, batch: MicroBatch) -> Array | None:
        """Under the weights that the update begins with; None where no later epoch needs them."""
        if self.config.epochs_per_batch == 1 or self.algorithm.old_policy in (sampler_policy, interpolated_policy):
            return None
        with span("forward_backward", what="old policy"):
            return self._replicas.score(self._program, self._trained, self._frozen, batch).block_until_ready()

    def _nonfinite_note(self, groups: Sequence[TrajectoryGroup], packed: Packed, epoch: Mapping[str, Any]) -> str:
        causes = [batch for batch, broken in zip(packed.batches, epoch["broken"], strict=True) if broken]
        if not causes:
            return (
                f"Update {self.version + 1}: the gradients of its {len(packed.batches)} micro-batches were finite, but "
                "their sum or its square was not, and the weights were left as they were. Make the rewards smaller, or "
                "use an algorithm that normalizes them."
            )
        sequences = sorted({int(s) for batch in causes for s in batch.targets.sequence if s >= 0})
        names = dict.fromkeys(groups[packed.sequences[s][0]].id for s in sequences)
        return (
            f"Update {self.version + 1}: the gradient of {len(causes)} of {len(packed.batches)} micro-batches was not "
            f"finite, and the weights were left as they were. Groups in them: {', '.join(names)}."
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
            return self._replicas.score(self._program, *self._reference, batch).block_until_ready()

    def _epoch(
        self,
        packed: Packed,
        rounds: Sequence[Round],
        references: Sequence[Array],
        before: Sequence[Array | None],
    ) -> dict[str, Any]:
        """Gradients over all micro-batches, then one optimizer step."""
        gradients = self._replicas.zeros(self._trained)
        sums: dict[int, Any] = {}
        for (batch, members, shape), reference, old in zip(rounds, references, before, strict=True):
            stage: Stage = "forward_backward" if shape in self._compiled else "compile"
            with span(stage, rows=shape[0], length=shape[1]):
                gradients, measured = self._replicas.accumulate(
                    self._program,
                    self._trained,
                    self._frozen,
                    batch,
                    reference,
                    gradients,
                    before=old,
                    version=self.version,
                )
                sums.update(zip(members, self._replicas.split(measured, len(members)), strict=True))
            self._compiled.add(shape)
        rate = float(self._rule.learning_rate(self._steps))
        with span("optimizer"):
            self._trained, self._optimizer_state, taken = step(
                self._rule,
                self._trained,
                self._optimizer_state,
                self._replicas.total(gradients),
                self._trainable,
            )
            measured = {name: float(value) for name, value in jax.device_get(taken).items()}
        self._steps += not measured["nonfinite"]
        broken = [float(sums[number]["nonfinite"]) for number in range(len(packed.batches))]
        return {
            **loss_metrics(list(sums.values()), packed.counts.sampled_tokens),
            **measured,
            "learning_rate": rate,
            "broken": broken,
            "logprobs": [sums[number]["logprob"] for number in range(len(packed.batches))],
        }

    def _publish(self, *, changed: bool) -> Policy:
        before, config = self._policy, self._program.config
        params, adapters = before.params if before else None, None
        if config.lora or changed:
            like = flat_arrays(self._base)["embed_tokens",]
            trained = self._replicas.gathered({**all_adapters(self._frozen, self._trained), **self._trained}, like)
            adapters = named_adapters(self._model, config.lora, trained)
            if not self._model.config.lora:  # fresh adapters that are frozen add nothing
                trained = {name: trained[name] for name in self._trained}
            params = published(config, self._base, trained) if changed or before is None else params
        if self._publish_to:
            params = lay_out(self._model.config, params, self._publish_to)
        self._policy = Policy(self.version, jax.block_until_ready(params), adapters)
        return self._policy


def _loss_options(options: TrainConfig, algorithm: Algorithm) -> LossOptions:
    return LossOptions(
        clip_low=algorithm.clip_low if options.clip_low is None else options.clip_low,
        clip_high=algorithm.clip_high if options.clip_high is None else options.clip_high,
        dual_clip=options.dual_clip,
        beta=options.beta,
        divergence=algorithm.divergence,
        divergence_in=algorithm.divergence_in,
        entropy_bonus=options.entropy_bonus,
    )
