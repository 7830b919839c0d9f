"""Files that are there whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentlab.errors import ConfigError


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file through a temporary one beside it, so that a reader never sees half of it.

    See `open_atomically`.
    """
    data = content.encode("utf-8", errors="surrogatepass") if isinstance(content, str) else content
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
