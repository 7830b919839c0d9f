"""Files that are there whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file through a temporary one beside it, so that a reader never sees half of it.

    Missing folders are made. What was there before survives a failure.

    Raises:
        OSError: the disk is full or the place cannot be written to; no half-made file is left.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode("utf-8", errors="surrogatepass") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:  # an interrupt, too, must leave nothing behind
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
