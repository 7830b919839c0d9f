"""The learner thread: batches of groups come in, policies go out; it writes the checkpoints."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentlab.concurrency import Closed, Inbox, Reply, post, run_thread
from agentlab.errors import CheckpointError, LearnerError
from agentlab.tracing import span
from agentlab.training.checkpoint import CheckpointStore
from agentlab.types import TrajectoryGroup


@dataclass(frozen=True)
class Batch:
    """Groups to train on."""

    groups: Sequence[TrajectoryGroup]
    reply: Reply[Any]


class Record(Protocol):
    """What a run has done up to the weights of `version`; frozen."""

    @property
    def version(self) -> int: ...
    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Settled:
    """What the run has done up to the newest weights; kept until the next one comes."""

    record: Record
    save: bool


@dataclass(frozen=True)
class Flush:
    """Write the newest weights unless they are written, and wait until they are."""

    reply: Reply[None]


@dataclass(frozen=True)
class Checkpointing:
    """Where the learner thread writes checkpoints, and what is written beside the weights."""

    open_store: Callable[[], CheckpointStore]
    """Called on the learner thread, which owns the store."""
    about: Mapping[str, Any]
    """See `CheckpointStore.save`."""


class LearnerThread:
    """Runs a trainer on the thread "agentlab-learner". Its methods are called on the loop.

    Args:
        take_trainer: Called on the learner thread; what it returns is owned by that thread and
            has `update(groups)`, and `state()` where there are checkpoints.
        give_back: Called there with the trainer when the thread ends, unless an update failed.
        checkpointing: None writes none.
        on_note: Told on the loop, in a sentence, of checkpoints that could not be written before one could.
    """

    def __init__(
        self,
        take_trainer: Callable[[], Any],
        give_back: Callable[[Any], None] = lambda trainer: None,
        *,
        checkpointing: Checkpointing | None = None,
        on_note: Callable[[str], None] = lambda text: None,
    ):
        self._take_trainer, self._give_back = take_trainer, give_back
        self._checkpointing, self._on_note = checkpointing, on_note
        self._inbox: Inbox[Batch | Settled | Flush] = Inbox()
        self.unsaved: str | None = None
        """Why the newest checkpoint could not be written; None once one is written. Set on the loop."""

    async def serve(self) -> None:
        """Run the thread until this call is cancelled.

        An update that is under way then is finished by the thread alone, before it ends; so is the
        checkpoint of the newest weights, if the run's record for them has come.

        Raises:
            LearnerError: the trainer raised; the cause is attached.
        """
        loop = asyncio.get_running_loop()
        main = _Main(self._inbox, self._take_trainer, self._give_back, self._checkpointing)
        main.tell = lambda unsaved, note: post(loop, self._hear, unsaved, note)
        await run_thread(main.run, self._inbox, name="agentlab-learner", grace_s=0.5)

    async def update(self, groups: Sequence[TrajectoryGroup]) -> Any:
        """One update on these groups; what the trainer's `update` returns.

        Raises:
            LearnerError: the update failed, or the thread has ended.
        """
        reply: Reply[Any] = Reply()
        self._put(Batch(groups, reply))
        return await reply.wait()

    def settled(self, record: Record, *, save: bool) -> None:
        """The run's record that belongs to the newest weights; written with them if `save`.

        Args:
            record: Of the same version as the weights.
            save: Begin to write a checkpoint now. It is left to the next record if the one before
                is still being written.
        """
        self._inbox.put(Settled(record, save))

    async def flush(self) -> None:
        """Wait until a checkpoint of the newest weights is written.

        Raises:
            CheckpointError: it could not be written.
            LearnerError: the thread has ended.
        """
        reply: Reply[None] = Reply()
        self._put(Flush(reply))
        try:
            await reply.wait()
        except CheckpointError as error:
            error.add_note(
                "The updates were done, and the learner has their weights: save them with "
                "al.save_model(learner.trained_model, folder), or go on with another checkpoint_dir."
            )
            raise

    def _hear(self, unsaved: str | None, note: str | None) -> None:
        self.unsaved = unsaved
        if note is not None:
            self._on_note(note)

    def _put(self, item: Batch | Flush) -> None:
        if not self._inbox.put(item):
            raise LearnerError("The learner thread has ended; it takes no more batches.")


class _Main:
    """What the learner thread does; owned by it."""

    tell: Callable[[str | None, str | None], Any]

    def __init__(
        self,
        inbox: Inbox[Any],
        take_trainer: Callable[[], Any],
        give_back: Callable[[Any], None],
        checkpointing: Checkpointing | None,
    ):
        self._inbox, self._take_trainer, self._give_back = inbox, take_trainer, give_back
        self._checkpointing = checkpointing
        self._store: CheckpointStore | None = None
        self._record: Record | None = None
        self._writing: int | None = None
        self._saved: int | None = None
        self._flushed: int | None = None
        self._failures: list[CheckpointError] = []
        """Since the last checkpoint that was written."""
        self._trainer: Any = None

    def run(self) -> None:
        self._trainer = self._take_trainer()
        self._store = self._checkpointing.open_store() if self._checkpointing else None
        try:
            while True:
                self._do(self._inbox.get())
        except Closed:
            if self._flushed != self._trainer.version:
                self._flush()
            self._give_back(self._trainer)
        finally:
            self._close()

    def _do(self, item: Batch | Settled | Flush) -> None:
        if isinstance(item, Batch):
            self._update(item)
        elif isinstance(item, Flush):
            self._flush()
            if self._failures:
                item.reply.fail(self._failures[-1])
            else:
                item.reply.set(None)
        else:
            self._record = item.record
            if self._store is not None and not self._store.busy:
                self._learn_outcome()
                if item.save:
                    self._save()

    def _update(self, item: Batch) -> None:
        trainer = self._trainer
        try:
            with span("train", version=trainer.version, groups=tuple(group.id for group in item.groups)):
                item.reply.set(trainer.update(item.groups))
        except Exception as error:  # whatever it was, the loop must hear of it as the learner's end
            failure = LearnerError(f"The trainer failed in an update: {type(error).__name__}: {error}")
            failure.__cause__ = error
            item.reply.fail(failure)
            self._inbox.close()
            raise failure from error

    def _save(self) -> None:
        """Begin to write the newest weights with their record."""
        assert self._store is not None and self._checkpointing is not None and self._record is not None
        version = self._trainer.version
        try:
            with span("checkpoint", version=version):
                about, record = self._checkpointing.about, self._record.as_json()
                self._store.save(version, self._trainer.state(), about=about, record=record)
            self._writing = version
        except CheckpointError as error:  # it must not end a run: the checkpoints before it are still there
            self._fail(error)

    def _learn_outcome(self) -> None:
        """Wait for the checkpoint that is being written, if there is one, and say how it ended."""
        if self._store is None or self._writing is None:
            return
        version, self._writing = self._writing, None
        try:
            self._store.wait()
        except CheckpointError as error:  # as above
            self._fail(error)
            return
        self._saved = version
        if self._failures:
            first, count = self._failures[0], len(self._failures)
            self._failures = []
            before = f"{count} checkpoints before it could not be written; of the first" if count > 1 else "Before it"
            self.tell(None, f"The checkpoint of version {version} was written. {before}: {first}")

    def _fail(self, error: CheckpointError) -> None:
        self._failures.append(error)
        again = f" {len(self._failures)} checkpoints in a row have failed." if len(self._failures) > 1 else ""
        self.tell(f"{error}{again}", None)

    def _flush(self) -> None:
        """Write the newest weights unless they are written, and wait until they are."""
        self._learn_outcome()
        if self._store is None or self._record is None:
            return
        if self._record.version == self._trainer.version != self._saved:
            self._save()
            self._learn_outcome()
        self._flushed = self._trainer.version

    def _close(self) -> None:
        if self._store is not None:
            self._learn_outcome()
            self._store.close()
