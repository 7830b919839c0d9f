"""What a notebook may ask for by itself; agentlab needs none of it."""

import importlib
import os
from typing import Literal, TypeAlias

from agentlab.errors import ConfigError, nearest
from agentlab.platform.detect import jax_devices

Preset: TypeAlias = Literal["fast", "cpu", "tpu"]
PRESETS = ("auto", "fast", "cpu", "tpu")


def preset(name: str = "auto") -> Preset:
    """How much a tutorial does: "fast" (seconds, nothing to download), "cpu" or "tpu".

    Args:
        name: "auto" is "tpu" where JAX computes on TPUs, and "cpu" elsewhere. Whatever is given,
            AGENTLAB_FAST=1 in the environment makes it "fast".

    Raises:
        ConfigError: there is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.{nearest(name, PRESETS)}")
    if name == "fast" or os.environ.get("AGENTLAB_FAST") == "1":
        return "fast"
    if name == "auto":
        return "tpu" if jax_devices()[0].platform == "tpu" else "cpu"
    return "cpu" if name == "cpu" else "tpu"


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
