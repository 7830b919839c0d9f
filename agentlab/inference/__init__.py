"""Inference engines: requests in, completions out, weights swapped in between.

Names are loaded when they are used, so that a scripted engine needs no accelerator library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentlab.inference.base import Engine
    from agentlab.inference.idle import IdleEngine
    from agentlab.inference.jax_engine import JaxEngine
    from agentlab.inference.scripted import ByteTokenizer, ScriptedEngine
    from agentlab.inference.vllm_engine import VLLMEngine
    from agentlab.inference.vllm_server import VLLMServerEngine

__all__ = ["ByteTokenizer", "Engine", "IdleEngine", "JaxEngine", "ScriptedEngine", "VLLMEngine", "VLLMServerEngine"]

_HOMES = {
    "ByteTokenizer": "scripted",
    "Engine": "base",
    "IdleEngine": "idle",
    "JaxEngine": "jax_engine",
    "ScriptedEngine": "scripted",
    "VLLMEngine": "vllm_engine",
    "VLLMServerEngine": "vllm_server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
