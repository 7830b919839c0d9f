"""One process behind walls: how it is asked, how it answers, and how it is ended."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from agentlab.errors import ConfigError
from agentlab.tools.sandbox_walls import Walls, open_walls
from agentlab.types import config

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
        return self.shown()

    def shown(self, max_chars: int | None = None) -> str:
        """The text; of an output longer than `max_chars` its beginning and its end."""
        failed = f"(exit status {self.exit_code})" if not self.note and self.exit_code else ""
        output = self.output.rstrip("\n")
        if max_chars is not None and len(output) > max_chars:
            half = max_chars // 2
            left_out = f"\n… ({len(output) - 2 * half} characters left out) …\n"
            output = output[:half] + left_out + output[len(output) - half :]
        return "\n".join(filter(None, (output, self.note, failed))) or "(no output)"


class Server:
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
        if not self.end.alive:
            return Ran("", None, "lost", note=SAID["lost"]), False
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
