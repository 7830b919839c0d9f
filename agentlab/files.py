"""Files that are there whole or not at all, and text that they can hold."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from agentlab.errors import ConfigError


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file through a temporary one beside it, so that a reader never sees half of it.

    Text is written in UTF-8, `escaped`. See `open_atomically`.
    """
    data = escaped(content).encode() if isinstance(content, str) else content
    target = target_of(path)
    with open_atomically(target) as file:
        file.write(data)
    return target


def target_of(path: str | os.PathLike[str]) -> Path:
    """Where a path leads: "~" is the home folder, and links are followed."""
    return Path(path).expanduser().resolve()


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes its place at the end of the block, or is gone if the block raises.

    Missing folders are made. What was there before survives a failure.

    Raises:
        ConfigError: something that is not a file is there already.
        OSError: the disk is full or the place cannot be written to; no half-made file is left.
    """
    path = target_of(path)
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} must be a file or not exist yet, but it is something else. Choose another path.")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:  # an interrupt, too, must leave nothing behind
        Path(temporary).unlink(missing_ok=True)
        raise


def escaped(text: str) -> str:
    """The text with what no encoding has, halves of surrogate pairs, spelled out: backslash, "ud800".

    A model can write one in valid JSON; files, pages and messages to a browser cannot hold it.
    """
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")


def shown(value: Any, show: Callable[[Any], str] = repr) -> str:
    """What `repr` (or `str`, or another) shows of a value, `escaped`; where that raises, its type and the error's."""
    try:
        return escaped(show(value))
    except (Exception, SystemExit) as error:  # user code: what it cannot show must not keep the rest from being shown
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
