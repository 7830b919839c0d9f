"""How one thread speaks to another: inbox, reply, a call into a loop; and a thread that ends with its task."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

from agentlab.concurrency.threads import Kind, start_thread
from agentlab.files import shown

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

    def drain(self, wait_s: float = 0.0) -> list[T]:
        """All that waits; where nothing does, wait for the next item, but no longer than `wait_s`.

        Raises:
            Closed: nothing more comes.
        """
        items: list[T] = []
        while True:
            try:
                item = self._items.get(timeout=wait_s) if wait_s and not items else self._items.get_nowait()
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
    """What user code raised, as something that cannot be taken for our own cancellation, interrupt or exit."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration | StopAsyncIteration):
        return raised
    error = RuntimeError(f"{type(raised).__name__} was raised by user code: {shown(raised, str)}")
    error.__cause__ = raised
    return error


def is_interrupt(raised: BaseException) -> bool:
    """Whether a person may have pressed a key: Python tells the main thread alone of that."""
    return isinstance(raised, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


async def first_error(main: Callable[[], Awaitable[T]]) -> T:
    """Await `main()`; of several errors that end a task group together, raise the first alone."""
    try:
        return await main()
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


async def run_thread(
    main: Callable[[], None], inbox: Inbox[Any], *, name: str, grace_s: float = 10.0, kind: Kind = "owner"
) -> None:
    """Run `main` on a thread of its own and wait until it returns; what it raises is raised here.

    Cancelling this call closes the inbox, so that `main` ends, and waits for that up to `grace_s`.
    An exit of the process waits as long as its `kind` says: see `start_thread`.
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

    thread = start_thread(target, name=name, kind=kind, end=inbox.close)
    try:
        await ended.wait()
        thread.join()
    except asyncio.CancelledError:
        inbox.close()
        with anyio.move_on_after(grace_s, shield=True):
            await ended.wait()
            thread.join()
        raise
