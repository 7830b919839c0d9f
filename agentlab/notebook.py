"""What a notebook may ask for by itself; agentlab needs none of it."""

import importlib

from agentlab.errors import ConfigError


def enable_nested_asyncio() -> None:
    """Let other libraries call `asyncio.run` inside a cell, by applying nest-asyncio to this kernel.

    Never applied by agentlab on its own: its loops run on threads of their own.

    Raises:
        ConfigError: nest-asyncio is not installed, or the kernel's loop is not asyncio's own
            (uvloop's cannot be patched).
    """
    for name in ("nest_asyncio", "nest_asyncio2"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        try:
            module.apply()
        except ValueError as error:
            raise ConfigError(
                f"nest-asyncio can patch asyncio's own loop only: {error}. Use `await` instead."
            ) from error
        return
    raise ConfigError("Nested asyncio needs nest-asyncio. Install it: pip install 'agentlab[nest-asyncio]'.")
