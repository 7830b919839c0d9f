"""vLLM engines for tests: small models that its CPU build can serve, and the settings that it needs there."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentlab.inference import VLLMEngine, VLLMServerEngine
from agentlab.inference.vllm_engine import is_installed
from agentlab.models import Model, tiny_model

ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}
needs_vllm = pytest.mark.skipif(not is_installed(), reason="vLLM is not installed here; run `make test-vllm`")


def small_model(seed: int = 0, **config: Any) -> Model:
    """vLLM's attention on the CPU takes heads of 32 and more."""
    return tiny_model(seed=seed, **{"hidden_size": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, **config})


def options(context: int) -> dict[str, Any]:
    """vLLM's CPU build dies when it reads a prompt with a seed in pieces, so it must read them whole."""
    return {
        "enable_chunked_prefill": False,
        "max_model_len": context,
        "enforce_eager": True,
        "dtype": "float32",
        "max_num_seqs": 32,
    }


@contextmanager
def server_engine(model: Model, context: int, num_servers: int = 1) -> Iterator[VLLMServerEngine]:
    engine = VLLMServerEngine.launch(
        model, python=sys.executable, env=ENV, progress=False, num_servers=num_servers, **options(context)
    )
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def in_process_engine(model: Model, context: int) -> Iterator[VLLMEngine]:
    engine = VLLMEngine(model, env=ENV, **options(context))
    try:
        yield engine
    finally:
        engine.close()


def kill_server(url: str) -> None:
    """End a server and its workers as a crash would."""
    port = url.rpartition(":")[2]
    for pid, words in processes():
        if "vllm.entrypoints.openai.api_server" in words and port in words:
            os.killpg(os.getpgid(pid), signal.SIGKILL)


def kill_own_core() -> None:
    """End the process in which a `VLLMEngine` of this one computes."""
    for pid, words in processes():
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        if int(parent) == os.getpid() and ("spawn_main" in " ".join(words) or words[0].startswith("VLLM::")):
            os.kill(pid, signal.SIGKILL)


def processes() -> list[tuple[int, list[str]]]:
    """(id, command line) of all that run here."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append((int(path.parent.name), path.read_text().split("\0")))
        except OSError:  # it has ended meanwhile
            continue
    return found
