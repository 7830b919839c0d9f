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
        make_trainer: Called on the learner thread; what it returns is owned by that thread and
            has `update(groups)`.
    """

    def __init__(self, make_trainer: Callable[[], Any]):
        self._make_trainer = make_trainer
        self._inbox: Inbox[tuple[Sequence[TrajectoryGroup], Reply[Any]]] = Inbox()

    async def serve(self) -> None:
        """Run the thread until this call is cancelled.

        Raises:
            LearnerError: the trainer raised; the cause is attached.
        """
        await run_thread(self._main, self._inbox, name="agentlab-learner")

    async def update(self, groups: Sequence[TrajectoryGroup]) -> Any:
        """One update on these groups; what the trainer's `update` returns."""
        reply: Reply[Any] = Reply()
        self._inbox.put((groups, reply))
        return await reply.wait()

    def _main(self) -> None:
        trainer = self._make_trainer()
        try:
            while True:
                groups, reply = self._inbox.get()
                with span("train", version=trainer.version, groups=tuple(group.id for group in groups)):
                    reply.set(trainer.update(groups))
        except Closed:
            return
        except Exception as error:
            raise LearnerError(f"The trainer failed in an update: {type(error).__name__}: {error}") from error
