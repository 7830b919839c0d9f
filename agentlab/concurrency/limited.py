"""Calls of plain functions that are given up after a time."""

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from agentlab.concurrency.threads import start_thread

T = TypeVar("T")


class GivenUp(Exception):
    """A call did not come back in time, or could not begin because too many before it never came back."""


class LimitedCalls:
    """Calls plain functions on daemon threads and waits for each only so long; any thread may use it.

    Nobody can stop a Python function from outside: a call that is given up runs on alone, and its
    thread is held until it returns. So only so many may be left behind at once.

    Args:
        max_left: Calls that may be left running; beyond these no other begins.
    """

    def __init__(self, max_left: int):
        self.max_left = max_left
        self.num_left = 0
        """Calls that were given up and still run."""
        self._lock = threading.Lock()

    def call(self, seconds: float, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """`fn(*args, **kwargs)` in the caller's context; what it raises is raised here.

        Raises:
            GivenUp: it took longer than `seconds`, or `max_left` calls were left running.
        """
        if self.num_left >= self.max_left:
            raise GivenUp(f"{self.num_left} calls before it were given up and still run.")
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        state = _Call()

        def main() -> None:
            value, error = None, None
            try:
                value = context.run(fn, *args, **kwargs)
            except BaseException as raised:  # belongs to whoever waits
                error = raised
            with self._lock:
                state.returned = True
                self.num_left -= state.left
            answers.put((value, error))

        context = contextvars.copy_context()
        start_thread(main, name="agentlab-limited", kind="worker", end=lambda: None)
        try:
            value, error = answers.get(timeout=seconds)
        except queue.Empty:
            with self._lock:
                state.left = not state.returned
                self.num_left += state.left
            raise GivenUp(f"It took longer than {seconds:g} s and was given up.") from None
        if error is not None:
            raise error
        return value


class _Call:
    """How a call stands, as its thread and its waiter agree under the lock."""

    returned = False
    left = False
