"""The only file that lets one thread speak to another: inbox, reply, thread, loop thread, worker pool."""

import asyncio
import collections
import concurrent.futures
import contextvars
import inspect
import queue
import selectors
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

from agentlab.errors import RunEnded, RunError

T = TypeVar("T")
BEAT_S = 0.1
"""Slice of every wait on the main thread, so that an interrupt acts at once."""


class Closed(Exception):
    """The inbox is closed and empty: the thread that reads it ends."""


class Inbox(Generic[T]):
    """What a thread blocks on. Any thread puts, one thread gets; closing it ends that thread."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T | type[Closed]] = queue.SimpleQueue()
        self._closed = False

    def put(self, item: T) -> bool:
        """Leave an item; False, and the item is dropped, when the inbox is closed."""
        if not self._closed:
            self._items.put(item)
        return not self._closed

    def close(self) -> None:
        """Say that nothing more comes. What already waits can still be read."""
        self._closed = True
        self._items.put(Closed)

    def get(self) -> T:
        """Wait for the next item.

        Raises:
            Closed: nothing more comes.
        """
        return self._open(self._items.get())

    def drain(self) -> list[T]:
        """All that waits, without blocking.

        Raises:
            Closed: nothing more comes.
        """
        items: list[T] = []
        while True:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return items
            if item is Closed and items:
                self._items.put(Closed)
                return items
            items.append(self._open(item))

    def _open(self, item: T | type[Closed]) -> T:
        if item is Closed:
            self._items.put(Closed)
            raise Closed
        return item  # pyright: ignore[reportReturnType]


class Reply(Generic[T]):
    """One answer for a task on the loop, given by any thread; owned by the loop it was made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()

    def set(self, value: T) -> None:
        """Give the answer; later answers are ignored."""
        post(self._loop, self._settle, value, None)

    def fail(self, error: BaseException) -> None:
        """Give an error as the answer; later answers are ignored."""
        post(self._loop, self._settle, None, error)

    async def wait(self) -> T:
        """The answer, or the error raised. May be called again after a cancellation."""
        return await asyncio.shield(self._future)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(value)
        else:
            self._future.set_exception(error)
            self._future.exception()  # marks it as seen: a waiter that was cancelled never will


def post(loop: asyncio.AbstractEventLoop, fn: Callable[..., Any], *args: Any) -> bool:
    """Run `fn(*args)` on the loop's thread soon; False when the loop has ended."""
    try:
        loop.call_soon_threadsafe(fn, *args)
    except RuntimeError:
        return False
    return True


def as_error(raised: BaseException) -> BaseException:
    """What user code raised, as something that cannot be taken for our own cancellation or exit."""
    control = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
    if not isinstance(raised, control):
        return raised
    error = RuntimeError(f"{type(raised).__name__} was raised by user code: {raised}")
    error.__cause__ = raised
    return error


async def first_error(main: Callable[[], Awaitable[T]]) -> T:
    """Await `main()`; of several errors that end a task group together, raise the first alone."""
    try:
        return await main()
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


async def run_thread(main: Callable[[], None], inbox: Inbox[Any], *, name: str, grace_s: float = 10.0) -> None:
    """Run `main` on a thread of its own and wait until it returns; what it raises is raised here.

    Cancelling this call closes the inbox, so that `main` ends, and waits for that up to `grace_s`.
    """
    ended: Reply[None] = Reply()
    context = contextvars.copy_context()

    def target() -> None:
        try:
            context.run(main)
        except BaseException as error:  # carried to the task that waits, whatever it is
            ended.fail(error)
        else:
            ended.set(None)

    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    try:
        await ended.wait()
        thread.join()
    except asyncio.CancelledError:
        inbox.close()
        with anyio.move_on_after(grace_s, shield=True):
            await ended.wait()
            thread.join()
        raise


class WorkerPool:
    """A bounded pool of daemon threads for environments, tools and rewards; owned by the loop.

    A call that is cancelled leaves its thread to finish alone: it costs one worker until it
    returns, and is counted in `num_hung`.
    """

    def __init__(self, max_workers: int):
        self.max_workers = max_workers
        self.num_hung = 0
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.Semaphore(max_workers)
        self._idle: list[Inbox[Callable[[], None]]] = []
        self._workers: list[Inbox[Callable[[], None]]] = []
        self._num_threads = 0
        self.late_errors: collections.deque[BaseException] = collections.deque(maxlen=16)
        """What was raised by the follow-ups of late calls, newest last."""

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """`fn(*args)` on a worker, in the caller's context; what it raises is raised here."""
        return await self.prepare(fn, *args).wait()

    def prepare(
        self, fn: Callable[..., T], *args: Any, on_late: Callable[[], None] | None = None, at_once: bool = False
    ) -> "WorkerCall[T]":
        """A call that begins when its `wait()` is awaited.

        Args:
            fn: What to call.
            args: Its arguments.
            on_late: Called on the worker after `fn` came back, if the wait had been cancelled
                before that: the place to close what nobody waits for any more.
            at_once: Never wait for a worker: take one beyond the bound if all are busy.
        """
        return WorkerCall(self, fn, args, on_late, at_once)

    def close(self) -> None:
        """End the workers; a busy or hung one ends when its call returns."""
        for worker in self._workers:
            worker.close()

    async def take(self) -> Inbox[Callable[[], None]]:
        """A free worker's inbox, waiting until there is one."""
        await self._limit.acquire()
        return self._idle.pop() if self._idle else self._new_worker()

    def extra(self) -> Inbox[Callable[[], None]]:
        """A worker's inbox without waiting, beyond the bound if need be."""
        return self._idle.pop() if self._idle else self._new_worker()

    def give_back(self, worker: Inbox[Callable[[], None]], *, extra: bool) -> None:
        if not extra:
            self._limit.release()
        if len(self._idle) < self.max_workers:
            self._idle.append(worker)
        else:
            self._workers.remove(worker)
            worker.close()

    def _new_worker(self) -> Inbox[Callable[[], None]]:
        inbox: Inbox[Callable[[], None]] = Inbox()

        def main() -> None:
            try:
                while True:
                    inbox.get()()
            except Closed:
                return

        self._num_threads += 1
        self._workers.append(inbox)
        threading.Thread(target=main, name=f"agentlab-worker-{self._num_threads}", daemon=True).start()
        return inbox


class WorkerCall(Generic[T]):
    """One call on a worker; the loop and the worker agree under a lock on who sees its end."""

    def __init__(
        self,
        pool: WorkerPool,
        fn: Callable[..., T],
        args: tuple[Any, ...],
        on_late: Callable[[], None] | None,
        at_once: bool,
    ):
        self.abandoned = False
        """Whether the wait was cancelled while `fn` ran: then `on_late` follows it on the worker."""
        self._pool, self._fn, self._args, self._on_late, self._at_once = pool, fn, args, on_late, at_once
        self._reply: Reply[T] = Reply()
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._returned = False

    async def wait(self, on_start: Callable[[], None] = lambda: None) -> T:
        """Run it and return its value, or raise what it raised.

        Args:
            on_start: Called when a worker is free and the call begins.
        """
        worker = self._pool.extra() if self._at_once else await self._pool.take()
        on_start()
        worker.put(lambda: self._run(worker))
        try:
            return await self._reply.wait()
        except asyncio.CancelledError:
            with self._lock:
                self.abandoned = not self._returned
            self._pool.num_hung += self.abandoned
            raise

    def _run(self, worker: Inbox[Callable[[], None]]) -> None:
        value, error = None, None
        try:
            value = self._context.run(self._fn, *self._args)
        except BaseException as raised:  # belongs to whoever awaits the call
            error = as_error(raised)
        with self._lock:
            self._returned = True
        if self.abandoned:
            self._clean_up(value)
        elif error is not None:
            self._reply.fail(error)
        else:
            self._reply.set(value)  # pyright: ignore[reportArgumentType]
        if not post(self._loop, self._end, worker):
            raise Closed  # the loop is gone, and with it the pool: this worker ends

    def _clean_up(self, value: Any) -> None:
        if inspect.iscoroutine(value):
            value.close()
        try:
            if self._on_late is not None:
                self._context.run(self._on_late)
        except BaseException as error:  # nobody waits for this call any more, and its worker must live
            self._pool.late_errors.append(as_error(error))

    def _end(self, worker: Inbox[Callable[[], None]]) -> None:
        self._pool.num_hung -= self.abandoned
        self._pool.give_back(worker, extra=self._at_once)


class LoopThread(Generic[T]):
    """The thread "agentlab-loop": runs one coroutine function on an event loop of its own.

    The handle is used by the main thread. The loop is always asyncio's own, whatever policy is set.
    """

    def __init__(self, main: Callable[[], Awaitable[T]], *, name: str = "agentlab-loop"):
        self._main = main
        self._started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, anyio.CancelScope]]
        self._started = concurrent.futures.Future()
        self._result: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

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

    def cancel(self) -> None:
        """Ask the coroutine to end; returns at once."""
        if self._started.exception() is None:
            loop, scope = self._started.result()
            post(loop, scope.cancel)

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
                result = runner.run(body())
        except BaseException as error:  # raised again by result(), on the thread that asks
            if not self._started.done():
                self._started.set_exception(error)
            self._result.set_exception(error)
        else:
            self._result.set_result(result)
        finally:
            self._over.set()


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it.

    A day is simulated in seconds, and the same way each time. Only for code without threads: while
    no timer is due it jumps, whatever a thread is still doing.
    """

    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now_s = 0.0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualClockLoop):
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("Nothing is left to happen: every task of this virtual loop waits for ever.")
        if not ready and timeout:
            self._loop.now_s += timeout
        return ready


def run_virtual(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on a virtual clock; it sees `anyio.current_time()` from 0."""

    async def body() -> T:
        return await main()

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(body())
