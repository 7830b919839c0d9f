"""A bounded pool of threads for user code that blocks: environments, tools, rewards."""

import asyncio
import collections
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from agentlab.concurrency.crossings import Closed, Inbox, Reply, as_error, post
from agentlab.concurrency.threads import start_thread

T = TypeVar("T")


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
        start_thread(main, name=f"agentlab-worker-{self._num_threads}", kind="worker", end=inbox.close)
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
