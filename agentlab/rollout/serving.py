"""An engine served for as long as one piece of work takes, for code that is not async."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from agentlab.concurrency import LoopThread, first_error
from agentlab.inference.base import Engine

T = TypeVar("T")


def run_served(engine: Engine, work: Callable[[], Awaitable[T]]) -> T:
    """Await `work()` on a loop thread of its own while the engine is served there; give its result here.

    An interrupt acts at once and ends the work.
    """

    async def main() -> T:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            try:
                return await work()
            finally:
                group.cancel_scope.cancel()
        raise AssertionError("a task group does not swallow what ends it")

    thread = LoopThread(lambda: first_error(main))
    try:
        return thread.result()
    finally:
        thread.cancel()
