"""The thread that runs an event loop of its own, and the handle by which the main thread speaks to it."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import anyio

from agentlab.concurrency.crossings import BEAT_S, post
from agentlab.concurrency.threads import start_thread
from agentlab.errors import RunEnded, RunError

T = TypeVar("T")


class LoopThread(Generic[T]):
    """The thread "agentlab-loop": runs one coroutine function on an event loop of its own.

    The handle is used by the main thread. The loop is always asyncio's own, whatever policy is set.

    Args:
        main: What to run.
        name: Of the thread.
        on_exit: Called on the main thread when the process ends before the loop has, just before it is cancelled.
    """

    def __init__(
        self,
        main: Callable[[], Awaitable[T]],
        *,
        name: str = "agentlab-loop",
        on_exit: Callable[[], None] = lambda: None,
    ):
        self._main = main
        self._started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, anyio.CancelScope]]
        self._started = concurrent.futures.Future()
        self._result: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._over = threading.Event()
        self._on_exit = on_exit
        self._thread = start_thread(self._run, name=name, kind="loop", end=self._leave)

    @property
    def done(self) -> bool:
        return self._result.done()

    def call(self, fn: Callable[..., Any], *args: Any, timeout_s: float = 5.0) -> Any:
        """`fn(*args)` on the loop thread, its result here.

        Raises:
            RunEnded: the loop has ended.
            RunError: it did not answer within `timeout_s`.
        """
        if threading.current_thread() is self._thread:
            return fn(*args)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                answer.set_result(fn(*args))
            except Exception as error:  # belongs to the caller on the main thread
                answer.set_exception(error)

        if not post(self._started.result()[0], run):
            raise RunEnded("The run has ended; it can no longer be asked.")
        waited = 0.0
        while waited < timeout_s:
            try:
                return answer.result(timeout=BEAT_S)
            except concurrent.futures.TimeoutError:
                if answer.done():
                    raise
                waited += BEAT_S
                if self.done and not answer.done():
                    raise RunEnded("The run has ended; it can no longer be asked.") from None
        raise RunError(f"The run did not answer within {timeout_s} s; its loop is blocked.")

    def post(self, fn: Callable[..., Any], *args: Any) -> bool:
        """Run `fn(*args)` on the loop thread soon, from any thread; False when the loop has ended."""
        return self._started.exception() is None and post(self._started.result()[0], fn, *args)

    def cancel(self) -> None:
        """Ask the coroutine to end; returns at once."""
        if self._started.exception() is None:
            loop, scope = self._started.result()
            post(loop, scope.cancel)

    def _leave(self) -> None:
        self._on_exit()
        self.cancel()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended, in slices that can be interrupted; False on time-out."""
        waited = 0.0
        # Not Thread.join: before Python 3.13 an interrupt inside it marks the living thread as ended.
        while not self._over.wait(BEAT_S):
            waited += BEAT_S
            if timeout_s is not None and waited >= timeout_s:
                return False
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return True

    def result(self) -> T:
        """What the coroutine returned or raised, waiting in slices that can be interrupted."""
        self.join()
        return self._result.result()

    def _run(self) -> None:
        async def body() -> Any:
            with anyio.CancelScope() as scope:
                self._started.set_result((asyncio.get_running_loop(), scope))
                return await self._main()
            raise concurrent.futures.CancelledError

        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                result = _run_to_its_end(runner.get_loop(), body())
        except BaseException as error:  # raised again by result(), on the thread that asks
            if not self._started.done():
                self._started.set_exception(error)
            self._result.set_exception(error)
        else:
            self._result.set_result(result)
        finally:
            self._over.set()


def _run_to_its_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns or raises; a SystemExit of another task goes to whoever awaits that, and ends no loop."""
    task = loop.create_task(main)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):  # of the task itself, whose result tells it, or of one that keeps it
            continue
    return task.result()
