"""Where things that were fetched once are kept for the next time."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder of agentlab; it may not exist yet.

    `$AGENTLAB_CACHE` if set, else `agentlab` in `$XDG_CACHE_HOME`, else `~/.cache/agentlab`.
    """
    chosen = os.environ.get("AGENTLAB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "agentlab"
