"""The learner thread: batches of groups come in, policies go out."""

from collections.abc import Callable, Sequence
from typing import Any

from agentlab.concurrency import Closed, Inbox, Reply, run_thread
from agentlab.errors import LearnerError
from agentlab.tracing import span
from agentlab.types import TrajectoryGroup


class LearnerThread:
    """Runs a trainer on the thread "agentlab-learner". Its methods are called on the loop.

    Args:
        take_trainer: Called on the learner thread; what it returns is owned by that thread and
            has `update(groups)`.
        give_back: Called there with the trainer when the thread ends, unless an update failed.
    """

    def __init__(self, take_trainer: Callable[[], Any], give_back: Callable[[Any], None] = lambda trainer: None):
        self._take_trainer, self._give_back = take_trainer, give_back
        self._inbox: Inbox[tuple[Sequence[TrajectoryGroup], Reply[Any]]] = Inbox()

    async def serve(self) -> None:
        """Run the thread until this call is cancelled.

        An update that is under way then is finished by the thread alone, before it ends.

        Raises:
            LearnerError: the trainer raised; the cause is attached.
        """
        await run_thread(self._main, self._inbox, name="agentlab-learner", grace_s=0.5)

    async def update(self, groups: Sequence[TrajectoryGroup]) -> Any:
        """One update on these groups; what the trainer's `update` returns.

        Raises:
            LearnerError: the update failed, or the thread has ended.
        """
        reply: Reply[Any] = Reply()
        if not self._inbox.put((groups, reply)):
            raise LearnerError("The learner thread has ended; it takes no more batches.")
        return await reply.wait()

    def _main(self) -> None:
        trainer = self._take_trainer()
        while True:
            try:
                groups, reply = self._inbox.get()
            except Closed:
                self._give_back(trainer)
                return
            try:
                with span("train", version=trainer.version, groups=tuple(group.id for group in groups)):
                    reply.set(trainer.update(groups))
            except Exception as error:  # whatever it was, the loop must hear of it as the learner's end
                failure = LearnerError(f"The trainer failed in an update: {type(error).__name__}: {error}")
                failure.__cause__ = error
                reply.fail(failure)
                self._inbox.close()
                raise failure from error
