"""The threads of a run: all are started here, and all are ended before the process is."""

import atexit
import concurrent.futures.thread  # noqa: F401  (its own exit is registered on import, and must run after ours)
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["loop", "owner", "worker"]
"""An event loop; what owns an engine or a trainer; code of a user or of an outlet, which may never come back."""

PATIENCE_S: dict[Kind, float | None] = {"loop": 60.0, "owner": None, "worker": 5.0}
"""Seconds that an exit waits for threads of a kind, one kind after the other; None waits for their end."""
SAY_AFTER_S = 3.0
"""Seconds of such a wait after which a person is told of it."""


@dataclass(frozen=True)
class Started:
    """A thread that runs."""

    kind: Kind
    end: Callable[[], None]
    """Asks it to end; returns at once. May be called on any thread, and more than once."""


_running: dict[threading.Thread, Started] = {}
_lock = threading.Lock()


def start_thread(main: Callable[[], None], *, name: str, kind: Kind, end: Callable[[], None]) -> threading.Thread:
    """Run `main` on a thread that ends when it returns, and that an exit of the process ends before it goes on.

    A thread that Python itself kills while it is inside JAX takes the whole process with it: "terminate
    called", SIGABRT. So an exit, whether the script came to its end or raised, first calls `end` of every
    thread that runs, and waits. An interrupt ends this waiting. A signal that kills at once, and `os._exit`,
    leave no time for it.

    Args:
        main: What to run.
        name: Of the thread.
        kind: How long an exit waits for it, and in which order: see PATIENCE_S.
        end: Asks it to end; returns at once.
    """

    def body() -> None:
        try:
            main()
        finally:
            with _lock:
                _running.pop(thread, None)

    thread = threading.Thread(target=body, name=name, daemon=True)
    with _lock:
        _running[thread] = Started(kind, end)
    try:
        thread.start()
    except RuntimeError:  # the process is ending, and takes no more of them
        with _lock:
            del _running[thread]
        raise
    return thread


def end_threads() -> None:
    """End every thread that `start_thread` started: loops, then what they serve, then user code."""
    for kind, patience_s in PATIENCE_S.items():
        with _lock:
            these = {thread: started for thread, started in _running.items() if started.kind == kind}
        for started in these.values():
            started.end()
        _wait(list(these), patience_s)


def _wait(threads: list[threading.Thread], patience_s: float | None) -> None:
    began_s, told = time.monotonic(), False
    for thread in threads:
        while thread.is_alive():
            waited_s = time.monotonic() - began_s
            if patience_s is not None and waited_s >= patience_s:
                return
            if waited_s >= SAY_AFTER_S and not told:
                told = True
                say(f"The process ends when {thread.name} has ended; interrupt it to leave at once.")
            thread.join(0.1)


def say(text: str) -> None:
    """Tell a person, while the process ends."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it may be closed, and threads must be ended all the same
            sys.stderr.write(f"agentlab: {text}\n")


def _forget() -> None:
    """In a forked child there are none of the threads of its parent."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


# Registered last, and so run first: before executors of the standard library, of which checkpoints make use, take
# no more work. This is no public name of `threading`; without it the public `atexit` does, which runs a little later:
# threads are ended all the same, but the newest weights may not be written any more.
getattr(threading, "_register_atexit", atexit.register)(end_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
