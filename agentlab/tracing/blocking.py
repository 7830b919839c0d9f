"""Finds calls that block the thread they are made on, by watching every call of a C function."""

import asyncio
import builtins
import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

BLOCKING = {
    time.sleep: "time.sleep",
    builtins.input: "input",
    os.system: "os.system",
    os.waitpid: "waiting for a process",
}
SOCKET_CALLS = frozenset(("connect", "accept", "recv", "recv_into", "recvfrom", "send", "sendall"))
WAITING_CALLS = frozenset(("poll", "select"))
BUSY_S = 0.5
"""Time of computing in one body above which it counts as blocking."""
SKIPPED = ("asyncio", "selectors", "anyio", "concurrent")


@contextlib.contextmanager
def blocking_calls(found: list[str]) -> Iterator[None]:
    """Adds to `found` what blocked this thread in the body: "time.sleep at file.py:12".

    It sees sleeping, waiting for processes, input, blocking sockets (and so HTTP clients), and long
    computing. Waits of an event loop itself do not count, nor does what other threads do.
    """
    before = sys.getprofile()
    computing_s = time.thread_time()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (what := _blocking(called)) and not _is_of_a_loop(frame):
            found.append(f"{what} at {_where(frame)}")

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)
        busy_s = time.thread_time() - computing_s
        if busy_s > BUSY_S:
            found.append(f"{busy_s:.1f} s of computing")


def apart(function: Callable[P, R]) -> Callable[P, R]:
    """The function, called on a thread of its own where the caller's runs an event loop, as a notebook's does."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return function(*args, **kwargs)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, *args, **kwargs).result()

    return called


def _blocking(called: Any) -> str:
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, socket.socket):
        return f"socket.{name}" if name in SOCKET_CALLS and owner.gettimeout() != 0.0 else ""
    if name in WAITING_CALLS and type(owner).__name__ in ("poll", "epoll"):
        return "waiting for files or sockets"
    try:
        return BLOCKING.get(called, "")
    except TypeError:  # it cannot be hashed, and so is none of them
        return ""


def _is_of_a_loop(frame: FrameType | None) -> bool:
    """Whether an event loop waits here, as it should."""
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in SKIPPED


def _where(frame: FrameType) -> str:
    """The nearest place outside of the standard library's own files."""
    library = str(Path(subprocess.__file__).parent)
    here: FrameType | None = frame
    while here is not None and here.f_back is not None and here.f_code.co_filename.startswith(library):
        if "site-packages" in here.f_code.co_filename:
            break
        here = here.f_back
    shown = here or frame
    return f"{Path(shown.f_code.co_filename).name}:{shown.f_lineno}"
