"""The front door of reinforcement learning: a model, an agent, an environment and an algorithm become a run."""

import collections
import importlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

from agentlab.errors import ConfigError, nearest
from agentlab.inference import JaxEngine, ScriptedEngine, VLLMEngine
from agentlab.inference.base import Engine
from agentlab.learner.checks import check_made, check_steps
from agentlab.learner.placing import Placement, Placing, notes_of, sampled_model, trainer_of
from agentlab.learner.weights import Begun, CheckpointPlan, TrainedWeights
from agentlab.models import Model, adapters_of, merged
from agentlab.platform import Plan
from agentlab.platform.tpu import tpu_metrics
from agentlab.rollout import (
    Evaluation,
    RolloutConfig,
    RolloutOrchestrator,
    evaluate,
    evaluate_async,
    run_episode,
)
from agentlab.rollout.meter import MeterThread
from agentlab.rollout.orchestrator import Tasks, check_roles, check_tasks
from agentlab.rollout.sinks import Sink
from agentlab.run import Parts, Run
from agentlab.training import Algorithm, TrainConfig, check_trainable
from agentlab.training.adapters import check_adapters
from agentlab.training.checkpoint import described
from agentlab.training.quantized import on_grid
from agentlab.types import Policy, SamplingParams, Trajectory, checked_option, config


@config
class GRPOConfig(RolloutConfig, TrainConfig):
    """All options of a run in one place; each is documented where it belongs."""

    num_slots: int = 0
    """Sequences the engine decodes at once; 0 takes `max_concurrency`, or as many as the memory holds."""
    tokens_per_slot: int = 1024
    """Most tokens that one episode may have."""

    def __post_init__(self) -> None:
        RolloutConfig.__post_init__(self)
        TrainConfig.__post_init__(self)
        cuts = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        check_trainable(SamplingParams(temperature=self.temperature, **cuts))
        if self.num_slots < 0:
            raise ConfigError(f"num_slots must be 0 (as max_concurrency) or more, got {self.num_slots}.")
        if self.tokens_per_slot <= self.max_tokens:
            raise ConfigError(
                f"tokens_per_slot must be above max_tokens={self.max_tokens}, got {self.tokens_per_slot}: a slot "
                f"holds a whole episode. Raise tokens_per_slot, or lower max_tokens."
            )


class AgenticRLLearner:
    """Trains an agent in an environment: episodes run ahead while the learner updates the weights.

    Used by the main thread. The trainer inside belongs to the learner thread of the live run.

    Args:
        model: What to train; see `load_model`. With adapters (`load_adapters`) training goes on from them.
        agent_class: Called once per episode with `agent_kwargs`; a class or any callable.
        env_class: Called once per episode with the task and `env_kwargs`.
        config: How to roll out and how to train.
        algorithm: How rewards become a loss; None takes the configuration's.
        engine: What samples: None or "jax" for a `JaxEngine`, "vllm" for a `VLLMEngine`, an engine that
            serves this model already, or a function that makes one from the model, on the loop of the run.
            An engine object, and that of "vllm", is kept from run to run.
        placement: Where several devices are: "colocated" samples and trains on all of them, "disaggregated"
            samples on some and trains on the others; "auto" chooses as `plan` says. A model that was loaded
            onto a mesh stays there.
        engine_devices: How many devices sample where it is disaggregated; None is half of them.

    Raises:
        ConfigError: an option is unknown or impossible, or keyword arguments do not fit their class.
    """

    def __init__(
        self,
        *,
        model: Model,
        agent_class: Callable[..., Any],
        env_class: Callable[..., Any],
        agent_kwargs: Mapping[str, Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        config: GRPOConfig | None = None,
        algorithm: Algorithm | None = None,
        engine: Callable[[Model], Engine] | Engine | str | None = None,
        placement: Placement = "auto",
        engine_devices: int | None = None,
    ):
        check_made(model, Model, "model", hint=" Use al.load_model(...).")
        self.config = config if config is not None else GRPOConfig()
        check_made(self.config, GRPOConfig, "config")
        algorithm = self.config.algorithm if algorithm is None else algorithm
        check_made(algorithm, Algorithm, "algorithm")
        check_adapters(model, self.config.lora_rank, self.config.lora_alpha)
        if self.config.tokens_per_slot > model.config.max_position:
            raise ConfigError(
                f"tokens_per_slot must be at most {model.config.max_position}, the context of {model.name}, "
                f"got {self.config.tokens_per_slot}."
            )
        self._roles: dict[str, Any] = {
            "agent_class": agent_class,
            "env_class": env_class,
            "agent_kwargs": agent_kwargs or {},
            "env_kwargs": env_kwargs or {},
        }
        check_roles(**self._roles)
        self.model = on_grid(model, self.config.base_type) if self.config.base_type else model
        self.algorithm = algorithm
        self._placing = Placing(placement, engine_devices, own_engine=engine not in (None, "jax"))
        self._weights = TrainedWeights(
            merged(self.model),
            lambda: trainer_of(self._placed(), self.model, self.config, algorithm),
            adapters_of(self.model),
        )
        self._make_engine = self._engine_option(engine)

    def train(
        self,
        tasks: Tasks,
        *,
        steps: int,
        name: str = "run",
        eval_tasks: Tasks | None = None,
        eval_every: int = 10,
        eval_k: int = 1,
        checkpoint_dir: str | PathLike[str] | None = None,
        checkpoint_every: int = 10,
        checkpoint_every_s: float = 300.0,
        keep_checkpoints: int = 3,
        resume: bool = False,
        sinks: Sink | Sequence[Sink] = (),
    ) -> Run:
        """Start training in the background and return at once.

        Args:
            tasks: Task objects or dictionaries with a "prompt" or "question"; may be endless. When
                they end, what is left of the last batch is trained on and the run ends.
            steps: Updates to do, those before a resumption included.
            name: Shown wherever the run is.
            eval_tasks: Held-out tasks, finite and iterable again, played before the first update, every
                `eval_every` updates, and after the last; see `Run.evaluations`.
            eval_every: Updates between two evaluations.
            eval_k: Episodes per held-out task.
            checkpoint_dir: Where checkpoints are written, in the background: a folder or an address such as
                "gs://bucket/run". None writes none.
            checkpoint_every: Updates from one checkpoint to the next.
            checkpoint_every_s: Seconds after which one is written, even if fewer updates were done.
            keep_checkpoints: Newest checkpoints that are kept.
            resume: Go on from the newest checkpoint in `checkpoint_dir` that can be read whole: no task is
                repeated, none is left out. `tasks` must be the same again. Where there is no checkpoint yet the
                run begins, so that the same cell starts and resumes. Reading it blocks this call.
            sinks: Where rows are written besides, e.g. `[al.sinks.TensorBoard("logs")]`. A run with a local
                `checkpoint_dir` writes `metrics.jsonl` there in any case.

        Raises:
            ConfigError: steps is below 1, there is no task, the run does not fit into the memory of the
                accelerator, or the checkpoints are of another model or configuration; the differences
                are listed.
            RunActiveError: another run lives in this process.
            RunError: the last update of a stopped run is still being computed, or an update failed.
        """
        check_steps(steps)
        check_tasks(tasks)
        check_evaluation(eval_tasks, eval_every, eval_k)
        plan = CheckpointPlan.of(checkpoint_dir, checkpoint_every, checkpoint_every_s, keep_checkpoints, resume)
        placed = self.plan
        if placed.devices[0].memory_bytes is not None:
            placed.check()
        begun = self._weights.begin(plan, sinks, self._about())
        begun = replace(begun, notes=(*notes_of(placed), *begun.notes))
        return Run(name, lambda: self._parts(steps, eval_tasks, eval_every, eval_k, begun), tasks, steps)

    def evaluate(self, tasks: Tasks, *, k: int = 1, **options: Any) -> Evaluation:
        """Play `tasks` `k` times each with the newest weights, and count; see `rollout.evaluate`."""
        config = options.pop("config", self.config)
        return evaluate(self._engine(), tasks, k=k, config=config, **self._roles, **options)

    def run_episode(self, task: Any) -> Trajectory:
        """Play one task once with the newest weights and return its record."""
        return run_episode(self._engine(), task, config=self.config, **self._roles)

    def check(self, tasks: Tasks, *, script: Any = None) -> Any:
        """Play the first task twice before a run, and show it in the notebook.

        Shown are the prompt and what is trained on in colour, parsed calls, the parts of the reward, the
        memory that a run needs, the time of an update, and what looks wrong (`warnings`).

        Args:
            tasks: As for `train`; of an iterator the first task is used up.
            script: Answers in place of the model's, as a `ScriptedEngine` takes them: quick, and the
                way to see a tool called by a model that cannot do it yet.

        Raises:
            ConfigError: there is no task.
        """
        scripted = script is not None
        context = self.config.tokens_per_slot
        engine = ScriptedEngine(script, self.model.tokenizer, max_context=context) if scripted else self._engine()
        viz = importlib.import_module("agentlab.viz")  # displays are loaded when asked for
        options = {"model": self.model, "config": self.config, "roles": self._roles, "scripted": scripted}
        return viz.preview(engine, tasks, **options)

    @property
    def plan(self) -> Plan:
        """Which devices sample and train, and the memory that it takes; `print(learner.plan)` shows it."""
        return self._placing.plan(self.model, self.config)

    @property
    def policy(self) -> Policy:
        """The newest weights; frozen."""
        return self._weights.policy

    @property
    def trained_model(self) -> Model:
        """The model with the newest weights, adapters folded in, for `save_model` or another learner."""
        return self._weights.on(self.model)

    def _parts(self, steps: int, eval_tasks: Tasks | None, eval_every: int, eval_k: int, begun: Begun) -> Parts:
        self._weights.refresh()
        engine = self._engine(warm_up=True)
        orchestrator = RolloutOrchestrator(
            engine, config=self.config, version=self.policy.version, progress=begun.progress, **self._roles
        )
        orchestrator.gate.limit = steps * self.config.groups_per_step
        play = None
        if eval_tasks is not None:
            options = {"k": eval_k, "config": self.config, "chat": orchestrator.chat}
            play = partial(evaluate_async, engine, eval_tasks, **options, **self._roles)
        notes = collections.deque(begun.notes, maxlen=8)
        meter = device_meter(self.plan.devices[0].platform, notes.append)
        return Parts(
            engine,
            orchestrator,
            self._weights.thread(begun, notes.append),
            self._weights.publish,
            play,
            eval_every,
            record=begun.record,
            schedule=begun.schedule(),
            sinks=begun.sinks,
            notes=notes,
            adapters=self.policy.adapters,
            meter=meter,
        )

    def _engine_option(self, engine: Any) -> Callable[[Model], Any] | Engine | None:
        if engine == "vllm":
            return VLLMEngine(
                self._sampled, max_model_len=self.config.tokens_per_slot, max_num_seqs=self.config.max_concurrency
            )
        if engine is None or engine == "jax":
            return None
        if isinstance(engine, Engine) or callable(engine):
            return engine
        raise ConfigError(
            f'engine must be "jax", "vllm", an engine or a function that makes one from the model, got {engine!r}.'
            + (nearest(engine, ("jax", "vllm")) if isinstance(engine, str) else "")
        )

    def _engine(self, *, warm_up: bool = False) -> Engine:
        if isinstance(self._make_engine, Engine):
            engine = self._make_engine
        elif self._make_engine is not None:
            engine = self._make_engine(self._sampled)
        else:
            placed = self._placed()
            engine = JaxEngine(
                sampled_model(placed, self._placing.shared(placed, self._sampled)),
                num_slots=self.config.num_slots or None,
                max_slots=self.config.max_concurrency,
                tokens_per_slot=self.config.tokens_per_slot,
                warm_up=warm_up,
            )
        if self.policy.version or isinstance(self._make_engine, Engine):
            engine.update_policy(self.policy)
        return engine

    @property
    def _sampled(self) -> Model:
        """What an engine is made of: weights without adapters, which policies of the same structure replace."""
        return self.trained_model if self.model.config.lora else self.model

    def _placed(self) -> Plan:
        """The plan, with the model where it says, if engine and trainer share it."""
        placed = self.plan
        self.model = self._placing.shared(placed, self.model)
        return placed

    def _about(self) -> dict[str, Any]:
        return {name: described(value) for name, value in self._roles.items()}


class GRPOLearner(AgenticRLLearner):
    """Group-relative policy optimisation of an agent in an environment.

    Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.
    """


def device_meter(accelerator: str, on_note: Callable[[str], None]) -> MeterThread | None:
    """What records the accelerator's own metrics during a run; None where it has none."""
    if accelerator != "tpu":
        return None
    return MeterThread(partial(tpu_metrics, accelerator=accelerator), on_note)


def check_evaluation(eval_tasks: Tasks | None, eval_every: int, eval_k: int) -> None:
    """Refuse held-out tasks that cannot be played again, and impossible numbers.

    Raises:
        ConfigError: they are.
    """
    if eval_tasks is None:
        return
    check_tasks(eval_tasks)
    if isinstance(eval_tasks, Iterator | AsyncIterator):
        raise ConfigError("eval_tasks must give the same tasks each time; make a list of this iterator.")
    for option, value in (("eval_every", eval_every), ("eval_k", eval_k)):
        if checked_option(option, value, int) < 1:
            raise ConfigError(f"{option} must be at least 1, got {value}.")
