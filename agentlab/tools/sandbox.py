"""Sandboxes for model-written code: warm, limited in everything, and replaced when they break."""

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, final

from agentlab.errors import ConfigError, ToolError, nearest
from agentlab.tools.sandbox_walls import (
    WALL_NAMES,
    SandboxWarning,
    WallName,
    Walls,
    open_walls,
    warn_of,
    working_walls,
)
from agentlab.types import config

__all__ = ["Limits", "Ran", "Sandbox", "SandboxPool", "SandboxWarning"]

Ended = Literal["exit", "timeout", "output", "cpu", "memory", "processes", "file", "files", "lost"]
"""How a call ended: by itself; by the limit that was passed; or with the sandbox."""
GRACE_S = 5.0
"""Seconds beyond its limit after which a sandbox that does not answer is ended."""

SAID: Mapping[str, str] = {
    "timeout": "Stopped: it ran longer than {timeout_s:g} s.",
    "output": "Stopped: it wrote more than {output_bytes} bytes.",
    "cpu": "Stopped: it used more than {cpu_s:g} s of processor time.",
    "memory": "Stopped: it used too much memory; one process may have {memory_bytes} bytes.",
    "processes": "Stopped: it had more than {max_processes} processes.",
    "file": "Stopped: it wrote a file of more than {file_bytes} bytes.",
    "files": "Stopped: it made more than {max_files} files.",
    "lost": "Stopped: it ended the sandbox it ran in.",
}


@config
class Limits:
    """What one call in a sandbox may use."""

    timeout_s: float = 10.0
    """Seconds on the clock."""
    cpu_s: float = 10.0
    """Seconds of processor time, of all its processes together."""
    memory_bytes: int = 512 << 20
    """Address space of each process; all of them together may hold twice as much."""
    output_bytes: int = 64 << 10
    """Of standard output and standard error together."""
    file_bytes: int = 16 << 20
    """Of one file."""
    disk_bytes: int = 64 << 20
    """Of all files in the working folder, and of those in /tmp (bubblewrap only)."""
    max_processes: int = 32
    """Processes and threads at once."""
    max_files: int = 10_000
    """Files and folders that exist at once (bubblewrap only)."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value}.")


@dataclass(frozen=True)
class Ran:
    """What came of one call."""

    output: str
    """Standard output and standard error, in the order in which they were written."""
    exit_code: int | None
    """As a shell shows it: 128 + n for signal n; None if the sandbox was lost."""
    ended: Ended = "exit"
    duration_s: float = 0.0
    note: str = ""
    """Why it was stopped, in words; empty if it ended by itself."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with exit status 0."""
        return self.ended == "exit" and self.exit_code == 0

    @property
    def text(self) -> str:
        """The output and, where there is something to say, how it ended; for a model to read."""
        failed = f"(exit status {self.exit_code})" if not self.note and self.exit_code else ""
        return "\n".join(filter(None, (self.output.rstrip("\n"), self.note, failed))) or "(no output)"


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
        self._turn: queue.SimpleQueue[_Server | None] = queue.SimpleQueue()
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
            server = holder[0] or _Server(self.walls, self.limits, self.readable)
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
    def _server(self) -> "Iterator[list[_Server | None]]":
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
            holder[0] = holder[0] or _Server(self.walls, self.limits, self.readable)
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
        self._free: queue.LifoQueue[Sandbox] = queue.LifoQueue()
        for _ in range(self.size):
            self._free.put(Sandbox(self.limits, walls=self.walls, readable=readable))

    @property
    def not_contained(self) -> tuple[str, ...]:
        """As of a `Sandbox`."""
        return self.walls.not_contained

    def python(self, code: str, stdin: str = "") -> Ran:
        """Run a Python program in an empty sandbox."""
        with self.borrow() as sandbox:
            return sandbox.run("python", code, stdin, clear=True, show_last=True)

    def bash(self, script: str, stdin: str = "") -> Ran:
        """Run a bash script in an empty sandbox."""
        with self.borrow() as sandbox:
            return sandbox.run("bash", script, stdin, clear=True)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Sandbox]:
        """A sandbox for the time of the block, waiting for a free one. Clear it if you wrote files."""
        sandbox = self._free.get()
        try:
            yield sandbox
        finally:
            self._free.put(sandbox)

    def close(self) -> None:
        """End all sandboxes, each when its call has ended. The pool can be used again."""
        for sandbox in [self._free.get() for _ in range(self.size)]:
            sandbox.close()
            self._free.put(sandbox)

    def __enter__(self) -> "SandboxPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server:
    """The process inside; owned by the thread whose turn it is."""

    def __init__(self, walls: Walls, limits: Limits, readable: Sequence[str]) -> None:
        opening = open_walls(walls, disk_bytes=limits.disk_bytes, readable=readable)
        try:
            self._process = subprocess.Popen(
                opening.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=opening.env,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise ConfigError(f"The sandbox cannot be started: {error}. Use walls='subprocess'.") from error
        self.end = weakref.finalize(self, _end, self._process, opening.folder)

    def call(self, request: Mapping[str, Any], limits: Limits) -> tuple[Ran, bool]:
        """Ask it to run something: what came of it, and whether the sandbox can be used again as it should be."""
        started = time.monotonic()
        deadline = started + request["limits"]["timeout_s"] + GRACE_S
        data = json.dumps(request).encode()
        try:
            _write(self._process.stdin, len(data).to_bytes(4, "big") + data, deadline)
            size = int.from_bytes(_read(self._process.stdout, 4, deadline), "big")
            answer = json.loads(_read(self._process.stdout, size, deadline))
        except (EOFError, BrokenPipeError, TimeoutError):
            self.end()
            return Ran("", None, "lost", time.monotonic() - started, SAID["lost"]), False
        ended: Ended = answer["ended"] or "exit"
        note = SAID[ended].format(**(asdict(limits) | request["limits"])) if ended != "exit" else ""
        return Ran(answer["output"], answer["code"], ended, answer["duration_s"], note), answer["clean"]


def _write(sink: IO[bytes] | None, data: bytes, deadline: float) -> None:
    assert sink is not None
    os.set_blocking(sink.fileno(), False)
    view = memoryview(data)
    while view:
        if not select.select([], [sink], [], max(0.0, deadline - time.monotonic()))[1]:
            raise TimeoutError
        view = view[os.write(sink.fileno(), view[: 1 << 16]) :]


def _read(source: IO[bytes] | None, size: int, deadline: float) -> bytes:
    assert source is not None
    data = bytearray()
    while len(data) < size:
        if not select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(source.fileno(), size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _end(process: subprocess.Popen[bytes], folder: Path | None) -> None:
    """End a server: it leaves by itself when its input closes, or else is killed with what it holds."""
    inside = _children(process.pid)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        for pid in (*inside, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    """The children of a process, of which bubblewrap has one: process 1 of the sandbox."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


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
        server = _Server(walls, limits, ())
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
