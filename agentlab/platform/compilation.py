"""JAX's persistent compilation cache, in the user's cache directory."""

import ctypes
import functools
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax

OFF = "off"
VARIABLE = "AGENTLAB_COMPILATION_CACHE"


def compilation_cache_folder() -> Path | None:
    """Where compiled programs are kept: $AGENTLAB_COMPILATION_CACHE ("off" for nowhere), or the cache directory."""
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return None
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return Path(named) if named else root / "agentlab" / "compiled"


def enable_compilation_cache(folder: str | Path | None = None) -> Path | None:
    """Keep compiled programs on disk, so that the next process starts without compiling them.

    A folder that JAX was told already is left as it is. One that cannot be written is a warning,
    not an error: programs are then compiled in every process.

    Args:
        folder: Where; None for `compilation_cache_folder()`.

    Returns:
        The folder in use, or None.
    """
    configured = jax.config.values.get("jax_compilation_cache_dir")
    if configured and folder is None:
        return Path(configured)
    chosen = Path(folder) if folder is not None else compilation_cache_folder()
    if chosen is None:
        return None
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=chosen):
            pass
    except OSError as error:
        warnings.warn(
            f"Compiled programs must be kept in a folder that can be written, and {chosen} cannot: {error}. Every "
            f"process will compile them again. Set {VARIABLE} to another folder, or to {OFF!r}.",
            stacklevel=2,
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return chosen


def trim_memory() -> None:
    """Give free memory back to the system: glibc keeps for itself what a compiler used."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Any:
    """The function of the C library, None where that is not glibc."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
