"""Sandboxes for model-written code: warm, limited in everything, and replaced when they break."""

import contextlib
import json
import os
import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, final

from agentlab.errors import ConfigError, ToolError, nearest
from agentlab.tools.sandbox_process import Limits, Ran, Server
from agentlab.tools.sandbox_walls import WALL_NAMES, SandboxWarning, WallName, Walls, warn_of, working_walls

__all__ = ["Limits", "Ran", "Sandbox", "SandboxPool", "SandboxWarning"]


@final
class Sandbox:
    """A place where model-written code runs: its files last from call to call, its processes do not.

    With bubblewrap there is no network, a file system of its own (the system's programs can be read,
    /work and /tmp written to), process numbers of its own, and nothing of your environment. Where
    bubblewrap does not work, it is a subprocess with limits, which cannot hold everything: making
    one warns of what is not contained.

    Calls from several threads wait for each other. Started by its first call; started anew, with no
    files, if the code manages to break it.

    Args:
        limits: What each call may use.
        walls: "bubblewrap" refuses to do without; "subprocess" does without, and does not warn. Or
            the walls themselves, as another sandbox has them in `walls`.
        readable: Files and folders of this machine that the code may read (bubblewrap only).

    Raises:
        ConfigError: an option is impossible, or no sandbox works here.
    """

    def __init__(
        self, limits: Limits | None = None, *, walls: WallName | Walls = "auto", readable: Sequence[str] = ()
    ) -> None:
        self.limits = checked_limits(limits)
        self.walls = checked_walls(walls)
        self.readable = tuple(str(Path(path).resolve(strict=True)) for path in readable)
        if walls == "auto":
            warn_of(self.walls)
        self._turn: queue.SimpleQueue[Server | None] = queue.SimpleQueue()
        self._turn.put(None)

    @property
    def not_contained(self) -> tuple[str, ...]:
        """What the code can still do to this machine, in words; empty with bubblewrap."""
        return self.walls.not_contained

    def python(self, code: str, stdin: str = "") -> Ran:
        """Run a Python program; a last line that is an expression is shown, as in a notebook."""
        return self.run("python", code, stdin, show_last=True)

    def bash(self, script: str, stdin: str = "") -> Ran:
        """Run a bash script."""
        return self.run("bash", script, stdin)

    def run(
        self,
        language: Literal["python", "bash"],
        text: str,
        stdin: str = "",
        *,
        clear: bool = False,
        show_last: bool = False,
    ) -> Ran:
        """Run a program.

        Args:
            language: "python" or "bash".
            text: The program.
            stdin: What it can read from standard input.
            clear: Remove all files afterwards.
            show_last: Show the value of a Python program's last line, if it is an expression.

        Raises:
            ConfigError: the sandbox could not be started.
        """
        if language not in ("python", "bash"):
            raise ConfigError(f"There is no language {language!r}.{nearest(str(language), ('python', 'bash'))}")
        if "\0" in text or len(text) > 100_000:
            return Ran("", 126, note="A program must have at most 100000 characters, and none of them may be NUL.")
        with self._server() as holder:
            server = holder[0] or Server(self.walls, self.limits, self.readable)
            holder[0] = server
            request = {"language": language, "text": text, "stdin": stdin, "limits": asdict(self.limits)}
            ran, clean = server.call(request | {"clear": clear, "show_last": show_last}, self.limits)
            if not clean:
                server.end()
                holder[0] = None
            return ran

    def write(self, files: Mapping[str, str]) -> None:
        """Write text files, their folders included.

        Args:
            files: Texts by path; a relative path begins in the working folder.

        Raises:
            ToolError: one could not be written.
        """
        self._files("write", dict(files))

    def read(self, path: str, *, max_bytes: int = 1 << 20) -> str:
        """The text of a file, at most so many bytes of it.

        Raises:
            ToolError: it cannot be read.
        """
        return self._files("read", [path, max_bytes])

    def delete(self, path: str) -> None:
        """Delete a file.

        Raises:
            ToolError: it is not there, or is a folder.
        """
        self._files("delete", path)

    def files(self, folder: str = ".") -> dict[str, int]:
        """Sizes in bytes of all files below a folder, by path relative to it.

        Raises:
            ToolError: there is no such folder.
        """
        return self._files("list", folder)

    def clear(self) -> None:
        """Remove all files, and make an empty place of it."""
        self.run("python", "", clear=True)

    def close(self) -> None:
        """End it, and whatever runs in it. It can be used again, and is then empty."""
        with self._server() as holder:
            if holder[0] is not None:
                holder[0].end()
                holder[0] = None

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _server(self) -> "Iterator[list[Server | None]]":
        """The server, for one thread at a time; what is left in the list is kept for the next."""
        holder = [self._turn.get()]
        try:
            yield holder
        except BaseException:  # an interrupt, too, may leave half an answer in the pipe
            if holder[0] is not None:
                holder[0].end()
            holder[0] = None
            raise
        finally:
            self._turn.put(holder[0])

    def _files(self, what: str, argument: Any) -> Any:
        wide = _FILE_LIMITS | {"timeout_s": self.limits.timeout_s, "memory_bytes": self.limits.memory_bytes}
        request = {
            "language": "python",
            "text": FILES_PROGRAM,
            "stdin": json.dumps([what, argument]),
            "limits": asdict(self.limits) | wide,
            "clear": False,
            "show_last": False,
        }
        with self._server() as holder:
            holder[0] = holder[0] or Server(self.walls, self.limits, self.readable)
            ran, _ = holder[0].call(request, self.limits)
            if ran.ended == "lost":
                holder[0] = None
        if not ran.ok:
            raise ToolError(ran.output.strip().rpartition("\n")[2] or ran.text)
        return json.loads(ran.output)


_FILE_LIMITS: dict[str, Any] = {"output_bytes": 16 << 20}

FILES_PROGRAM = """
import json, os, sys
what, argument = json.load(sys.stdin)
try:
    if what == "write":
        for path, text in argument.items():
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        answer = None
    elif what == "read":
        with open(argument[0], "rb") as file:
            answer = file.read(argument[1]).decode("utf-8", "replace")
    elif what == "delete":
        os.remove(argument)
        answer = None
    else:
        if not os.path.isdir(argument):
            sys.exit(f"There is no folder {argument!r}.")
        found = [os.path.join(folder, name) for folder, _, names in os.walk(argument) for name in names]
        answer = {os.path.relpath(path, argument): os.lstat(path).st_size for path in sorted(found)}
except OSError as error:
    sys.exit(f"{error.strerror}: {error.filename!r}.")
sys.stdout.write(json.dumps(answer) + "\\n")
"""


@final
class SandboxPool:
    """Warm sandboxes for calls that need no memory of each other; any thread may call.

    Args:
        size: Sandboxes that exist at most; a call waits for a free one. None: two per processor.
        limits: What each call may use.
        walls: As of a `Sandbox`.
        readable: As of a `Sandbox`.

    Raises:
        ConfigError: an option is impossible, or no sandbox works here.
    """

    def __init__(
        self,
        size: int | None = None,
        limits: Limits | None = None,
        *,
        walls: WallName | Walls = "auto",
        readable: Sequence[str] = (),
    ) -> None:
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ConfigError(f"size must be at least 1, or None for two per processor, got {size!r}.")
        self.size = size or min(16, 2 * (os.cpu_count() or 1))
        self.limits = checked_limits(limits)
        self.walls = checked_walls(walls)
        if walls == "auto":
            warn_of(self.walls)
        self._readable = tuple(readable)
        self._spare: queue.LifoQueue[Sandbox] = queue.LifoQueue(self.size)
        self._free: queue.LifoQueue[Sandbox] = queue.LifoQueue()
        for _ in range(self.size):
            self._free.put(self._new())

    @property
    def not_contained(self) -> tuple[str, ...]:
        """As of a `Sandbox`."""
        return self.walls.not_contained

    def run(self, language: Literal["python", "bash"], text: str, stdin: str = "", *, clear: bool = True) -> Ran:
        """Run a program in an empty sandbox, which is cleared afterwards, whatever `clear` says."""
        del clear
        with self.borrow() as sandbox:
            return sandbox.run(language, text, stdin, clear=True)

    def python(self, code: str, stdin: str = "") -> Ran:
        """Run a Python program in an empty sandbox; the value of a last expression is shown."""
        with self.borrow() as sandbox:
            return sandbox.run("python", code, stdin, clear=True, show_last=True)

    def bash(self, script: str, stdin: str = "") -> Ran:
        """Run a bash script in an empty sandbox."""
        return self.run("bash", script, stdin)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Sandbox]:
        """A sandbox for the time of the block, waiting for a free one. Clear it if you wrote files."""
        sandbox = self._free.get()
        try:
            yield sandbox
        finally:
            self._free.put(sandbox)

    @contextlib.contextmanager
    def lend(self) -> Iterator[Sandbox]:
        """An empty sandbox for the time of a whole episode, without waiting: one more if none is spare."""
        try:
            sandbox = self._spare.get_nowait()
        except queue.Empty:
            sandbox = self._new()
        try:
            yield sandbox
        finally:
            sandbox.clear()
            try:
                self._spare.put_nowait(sandbox)
            except queue.Full:
                sandbox.close()

    def close(self) -> None:
        """End all sandboxes that are not lent, each when its call has ended. The pool can be used again."""
        for sandbox in [self._free.get() for _ in range(self.size)]:
            sandbox.close()
            self._free.put(sandbox)
        while not self._spare.empty():
            with contextlib.suppress(queue.Empty):
                self._spare.get_nowait().close()

    def _new(self) -> Sandbox:
        return Sandbox(self.limits, walls=self.walls, readable=self._readable)

    def __enter__(self) -> "SandboxPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked_limits(limits: Limits | None) -> Limits:
    """The limits, or the usual ones.

    Raises:
        ConfigError: they are something else.
    """
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigError(f"limits must be Limits(...), got {type(limits).__name__}.")
    return limits or Limits()


def checked_walls(name: WallName | Walls) -> Walls:
    """The best walls of this kind that work here.

    Raises:
        ConfigError: the kind is unknown, or none work.
    """
    if isinstance(name, Walls):
        return name
    if name not in WALL_NAMES:
        raise ConfigError(f"There are no walls {name!r}.{nearest(str(name), WALL_NAMES)}")
    return working_walls(name, problem_with)


def problem_with(walls: Walls) -> str:
    """What keeps these walls from being used on this machine; empty if nothing does."""
    limits = Limits()
    try:
        server = Server(walls, limits, ())
    except ConfigError as error:
        return str(error)
    try:
        wanted = (("python", "import csv, decimal, subprocess, uuid\nprint('in', 'side')"), ("bash", "echo in side"))
        for language, text in wanted:
            request = {"language": language, "text": text, "stdin": "", "limits": asdict(limits)}
            ran, clean = server.call(request | {"clear": True, "show_last": False}, limits)
            if not clean or ran.output != "in side\n":
                return f"a trial of {language} ended with {ran.ended}: {ran.text[-300:]!r}."
    finally:
        server.end()
    return ""
