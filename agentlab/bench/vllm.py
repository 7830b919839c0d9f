"""vLLM through our engine against vLLM called bare, and what a weight update costs."""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import httpx

from agentlab.bench.contract import Row
from agentlab.inference import VLLMServerEngine
from agentlab.inference.vllm_client import sampling_body
from agentlab.models import load_model
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

SHARE = 0.9
CPU_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
}
"""What vLLM's CPU build needs to start quickly on a small machine; no other build reads it."""


def run(arguments: Sequence[str]) -> list[Row]:
    """Start one server and measure both ways in turn."""
    parser = argparse.ArgumentParser(prog="python -m agentlab.bench vllm", description=__doc__)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with vLLM")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=24, help="per request")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    model = load_model(options.model)
    engine = VLLMServerEngine.launch(
        model,
        python=options.python,
        env=CPU_ENV,
        max_model_len=512,
        enforce_eager=True,
        dtype="float32",
        enable_chunked_prefill=False,  # vLLM's CPU build dies when it reads a prompt with a seed in pieces
    )
    try:
        return anyio.run(functools.partial(_measure, engine, model, options))
    finally:
        engine.close()


async def _measure(engine: VLLMServerEngine, model: Any, options: argparse.Namespace) -> list[Row]:
    prompt = tuple(model.tokenizer.encode("Count from one to one hundred, in words:"))
    rows: list[Row] = []
    async with anyio.create_task_group() as serving, httpx.AsyncClient(timeout=None, trust_env=False) as http:
        serving.start_soon(engine.serve)
        await engine.generate(_request("warm", prompt, 4))
        for count in options.requests:
            requests = [_request(str(seed), prompt, options.tokens, seed) for seed in range(count)]
            ours, bare = await _speeds(engine, http, requests, options.rounds)
            rows += [
                Row(f"{count} requests: vLLM bare", bare, unit="tokens/s"),
                Row(f"{count} requests: through the engine", ours, unit="tokens/s"),
                Row.at_least(f"{count} requests: engine over bare", ours / bare, SHARE),
            ]
        rows += await _updates(engine, model, prompt, options.rounds)
        serving.cancel_scope.cancel()
    return rows


async def _speeds(
    engine: VLLMServerEngine, http: httpx.AsyncClient, requests: Sequence[GenerationRequest], rounds: int
) -> tuple[float, float]:
    """Medians of tokens per second (through the engine, bare), the two measured in turn."""
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(await _rate(engine.generate, requests))
        bare.append(await _rate(functools.partial(_ask_bare, engine, http), requests))
    return statistics.median(ours), statistics.median(bare)


async def _rate(ask: Callable[[GenerationRequest], Awaitable[int | Completion]], requests: Sequence[Any]) -> float:
    counts: list[int] = []

    async def one(request: GenerationRequest) -> None:
        answer = await ask(request)
        counts.append(answer if isinstance(answer, int) else len(answer.tokens))

    began_s = time.perf_counter()
    async with anyio.create_task_group() as group:
        for request in requests:
            group.start_soon(one, request)
    return sum(counts) / (time.perf_counter() - began_s)


async def _ask_bare(engine: VLLMServerEngine, http: httpx.AsyncClient, request: GenerationRequest) -> int:
    """One plain call of vLLM's own route, its whole answer at once; how many tokens came."""
    body = {
        "token_ids": list(request.prompt),
        "sampling_params": sampling_body(request.sampling, request.sampling.max_tokens, ()),
    }
    answer = await http.post(f"{engine.urls[0]}/inference/v1/generate", json=body)
    return len(answer.raise_for_status().json()["choices"][0]["token_ids"])


async def _updates(engine: VLLMServerEngine, model: Any, prompt: tuple[int, ...], rounds: int) -> list[Row]:
    """Seconds from `update_policy` to the weights being in force, and to the first token under them."""
    installed, first = [], []
    for version in range(1, rounds + 1):
        began_s = time.perf_counter()
        engine.update_policy(Policy(version, model.params))
        completion = await engine.generate(_request(f"u{version}", prompt, 1))
        if completion.policy_versions != (version,):
            raise AssertionError(f"The token must be of policy {version}, got {completion.policy_versions}.")
        first.append(time.perf_counter() - began_s)
        installed.append(engine.update_s)
    return [
        Row("weight update: size", engine.update_bytes / 1e6, unit="MB"),
        Row("weight update: duration", statistics.median(installed), unit="s"),
        Row("weight update: from ready to the first token under it", statistics.median(first), unit="s"),
    ]


def _request(id: str, prompt: tuple[int, ...], tokens: int, seed: int = 0) -> GenerationRequest:
    return GenerationRequest(id, id, prompt, SamplingParams(max_tokens=tokens, seed=seed))
