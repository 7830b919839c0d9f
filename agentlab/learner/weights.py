"""The weights that a front door trains over several runs: who has the trainer, and where it is written."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from agentlab.errors import ConfigError, RunError
from agentlab.models import Adapters, Model
from agentlab.rollout.ledger import Progress, RunRecord, Schedule
from agentlab.rollout.sinks import JsonLines, Sink, check_sinks
from agentlab.run import current_run
from agentlab.tracing import now_ns
from agentlab.training import Trainer
from agentlab.training.checkpoint import CheckpointStore, holds_checkpoints, place
from agentlab.training.worker import Checkpointing, LearnerThread
from agentlab.types import Policy, checked_option


@dataclass(frozen=True)
class CheckpointPlan:
    """Where and when a run writes checkpoints, and whether it goes on from the newest."""

    folder: str
    every: int
    every_s: float
    keep: int
    resume: bool

    @classmethod
    def of(
        cls, folder: str | PathLike[str] | None, every: int, every_s: float, keep: int, resume: bool
    ) -> "CheckpointPlan | None":
        """The plan, None without a folder.

        Raises:
            ConfigError: a number is impossible, or `resume` has no folder to resume from.
        """
        for name, value in (("checkpoint_every", every), ("keep_checkpoints", keep)):
            if checked_option(name, value, int) < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        if not checked_option("checkpoint_every_s", every_s, float) > 0:
            raise ConfigError(f"checkpoint_every_s must be more than 0 seconds, got {every_s}.")
        if folder is None:
            if resume:
                raise ConfigError("resume=True needs the folder of the checkpoints: checkpoint_dir=…")
            return None
        return cls(str(place(folder)), every, every_s, keep, resume)

    def sinks(self) -> tuple[Sink, ...]:
        """metrics.jsonl beside the checkpoints; nothing in a bucket, which has no lines to append to."""
        return () if "://" in self.folder else (JsonLines(Path(self.folder) / "metrics.jsonl"),)


@dataclass(frozen=True)
class Begun:
    """How a run begins: where its checkpoints and rows go, and what the run that it resumes had done."""

    plan: CheckpointPlan | None
    about: Mapping[str, Any]
    record: RunRecord | None = None
    notes: tuple[str, ...] = ()
    sinks: tuple[Sink, ...] = ()

    @property
    def progress(self) -> Progress | None:
        return self.record.progress if self.record else None

    def schedule(self) -> Schedule | None:
        """When to write; counted from now on."""
        if self.plan is None:
            return None
        step = self.record.progress.steps if self.record else 0
        return Schedule(self.plan.every, self.plan.every_s, step=step, now_s=now_ns() / 1e9)


class TrainedWeights:
    """A trainer and the newest weights. Used by the main thread, and by the loop of the live run.

    The trainer belongs to the learner thread while a run lives; between runs nobody touches it.

    Args:
        model: What is trained, its adapters folded in.
        make_trainer: Makes the trainer, on the thread that needs it first.
        adapters: Those that were folded in.
    """

    def __init__(self, model: Model, make_trainer: Callable[[], Trainer], adapters: Adapters | None = None):
        self.policy = Policy(0, model.params, adapters)
        """The newest weights; frozen."""
        self._make_trainer = make_trainer
        self._trainer: Trainer | None = None
        self._is_out = False

    def begin(self, plan: CheckpointPlan | None, sinks: Sink | Sequence[Sink], about: Mapping[str, Any]) -> Begun:
        """Read the checkpoint that the run goes on from, if it does. On the main thread.

        Args:
            plan: Of the checkpoints.
            sinks: Where the user wants rows besides.
            about: What must be the same in a run that goes on, besides the trainer's own.

        Raises:
            ConfigError: there are checkpoints that are not to be resumed, or of something else, or a sink is none.
            RunError: the trainer is still busy with the run before.
        """
        outlets = (*check_sinks(sinks), *(plan.sinks() if plan else ()))
        self._check_free()
        return replace(self._found(plan, about), sinks=outlets)

    def on(self, model: Model) -> Model:
        """The model that is trained, as it was given, with the newest weights; its adapters are folded in."""
        changed = model.changed or self.policy.version > 0 or model.config.lora is not None
        return replace(model, config=model.config.without_lora(), params=self.policy.params, changed=changed)

    def refresh(self) -> None:
        """Take the trainer's newest weights, if it is here. On the loop, before its thread starts."""
        if self._trainer is not None:
            self.policy = self._trainer.policy

    def publish(self, policy: Policy) -> None:
        """The learner has new weights."""
        self.policy = policy

    def thread(self, begun: Begun, on_note: Callable[[str], None]) -> LearnerThread:
        """The learner thread of a run; it takes the trainer and gives it back."""
        checkpointing = None
        if begun.plan is not None:
            folder, keep = begun.plan.folder, begun.plan.keep
            checkpointing = Checkpointing(lambda: CheckpointStore(folder, keep=keep), begun.about)
        return LearnerThread(self._take, self._give_back, checkpointing=checkpointing, on_note=on_note)

    def _check_free(self) -> None:
        if self._is_out and current_run() is None:
            raise RunError(
                "The trainer must be free to start a run, but the last update of the run before is still being "
                "computed, or failed. Try again in a moment; if it failed, make a new learner."
            )

    def _found(self, plan: CheckpointPlan | None, about: Mapping[str, Any]) -> Begun:
        if plan is None or current_run() is not None:
            return Begun(plan, about)
        there = holds_checkpoints(plan.folder)
        if there and not plan.resume:
            raise ConfigError(
                f"checkpoint_dir must hold no checkpoints of another run, but {plan.folder} does. Go on from them "
                "with resume=True, or name another folder."
            )
        if self._trainer is None:
            self._trainer = self._make_trainer()
        whole = {**self._trainer.about(), "roles": dict(about)}
        found = None
        if there:
            with contextlib.closing(CheckpointStore(plan.folder, keep=plan.keep)) as store:
                found = store.restore(self._trainer.state(), about=whole) if store.versions else None
        if found is None:
            note = f"There is no checkpoint in {plan.folder} yet: the run begins." if plan.resume else ""
            return Begun(plan, whole, notes=(note,) if note else ())
        self._trainer.go_on(found)
        self.policy = self._trainer.policy
        return Begun(plan, whole, RunRecord.from_json(found.record), found.notes)

    def _take(self) -> Trainer:
        trainer, self._trainer, self._is_out = self._trainer, None, True
        return self._make_trainer() if trainer is None else trainer

    def _give_back(self, trainer: Trainer) -> None:
        self._trainer, self._is_out = trainer, False
