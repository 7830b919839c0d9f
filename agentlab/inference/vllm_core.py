"""vLLM's `AsyncLLM` as `VLLMEngine` uses it; all of it runs on the engine's thread."""

# vLLM is not installed where types are checked.
# pyright: reportMissingImports=false

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from agentlab.concurrency import Reply, as_error
from agentlab.errors import ConfigError, EngineError
from agentlab.inference import vllm_plugin
from agentlab.inference.vllm_client import finish_reason, read_counters
from agentlab.tracing import record
from agentlab.types import Completion, GenerationRequest


class Core:
    """The engine's side of every crossing. Owned by the engine's thread."""

    def __init__(self, llm: Any, loop: asyncio.AbstractEventLoop, group: anyio.abc.TaskGroup):
        self.llm, self.loop, self._group = llm, loop, group

    def begin(self, work: Callable[[], Awaitable[Any]], reply: Reply[Any], scope: anyio.CancelScope) -> None:
        """Start `work` as a task whose end goes to `reply`."""

        async def run() -> None:
            with scope:
                try:
                    reply.set(await work())
                except Exception as error:  # belongs to whoever waits for the reply
                    reply.fail(as_error(error))

        self._group.start_soon(run)

    async def counters(self) -> dict[str, float]:
        """vLLM's own counters. Raises what has killed vLLM's own process, if anything has."""
        from prometheus_client import generate_latest
        from vllm.v1.metrics.prometheus import get_prometheus_registry

        await self.llm.check_health()
        return read_counters(generate_latest(get_prometheus_registry()).decode())

    async def generate(self, id: str, prompt: Sequence[int], params: Mapping[str, Any], salt: str) -> Any:
        """vLLM's last output of one request. Cancelling this call ends the request."""
        from vllm import SamplingParams
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        tokens = {"prompt_token_ids": list(prompt), "cache_salt": salt}
        if current_platform.is_tpu():
            params = tpu_sampling(params)
        sampling = SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)
        try:
            outputs = [o async for o in self.llm.generate(tokens, sampling, id)]
        except EngineDeadError as error:
            raise EngineError(f"vLLM's own process has died: {error}") from error
        if not outputs:
            raise EngineError(f"vLLM ended request {id} without an output.")
        return outputs[-1]

    async def install(self, path: Path, version: int, pause: str) -> None:
        """Replace all weights between two steps and name them; running requests go on afterwards.

        Must not be cancelled half-way.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self.llm.pause_generation(mode=pause, clear_cache=False)
        await self.llm.start_weight_update()
        await self.llm.update_weights(WeightTransferUpdateRequest(update_info={"path": str(path)}))
        await self.llm.finish_weight_update(str(version))
        await self.llm.reset_prefix_cache()
        await self.llm.resume_generation()


def load_llm(folder: Path, options: Mapping[str, Any]) -> Any:
    """An `AsyncLLM` of the model in this folder; call it on the loop that will use it.

    Raises:
        ConfigError: vLLM does not know an option.
    """
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    vllm_plugin.load()
    ours: dict[str, Any] = {
        "model": str(folder),
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": False,
        "weight_transfer_config": WeightTransferConfig(backend=vllm_plugin.BACKEND),
    }
    if current_platform.is_cpu():  # this build dies when it reads a prompt with a seed in pieces
        ours["enable_chunked_prefill"] = False
    try:
        arguments = AsyncEngineArgs(**{**options, **ours})
    except TypeError as error:
        raise ConfigError(f"vLLM's AsyncEngineArgs must know every option: {error}.") from error
    return AsyncLLM.from_engine_args(arguments)


def tpu_sampling(params: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM's TPU build takes of these: no seed, which it refuses, so that a rerun samples other tokens.

    Raises:
        ConfigError: they ask for `min_p`, which it would leave out without a word.
    """
    if params["min_p"]:
        raise ConfigError(f"min_p must be 0 with vLLM's TPU build, got {params['min_p']}. Use top_p or top_k.")
    return {name: value for name, value in params.items() if name not in ("seed", "min_p")}


def to_completion(request: GenerationRequest, output: Any, limit: int) -> Completion:
    """The record of vLLM's output, with spans from vLLM's own times (`time.monotonic`, as ours).

    Raises:
        EngineError: vLLM did not say which weights sampled the tokens.
    """
    choice, times = output.outputs[0], output.metrics
    tokens = tuple(choice.token_ids)
    spans = choice.weight_versions or ()
    versions = tuple(int(span.version) for span in spans for _ in range(span.start, span.end))
    logprobs = tuple(entry[token].logprob for token, entry in zip(tokens, choice.logprobs or (), strict=True))
    if len(versions) != len(tokens):
        raise EngineError(
            f"A completion must have as many weight versions as tokens, got {len(versions)} for {len(tokens)}. "
            "vLLM 0.32 is the first version that reports them: use it or a later one."
        )
    marks = [
        int(at_s * 1e9) for at_s in (times.queued_ts, times.scheduled_ts, times.first_token_ts, times.last_token_ts)
    ]
    for stage, begin_ns, end_ns in zip(("queueing", "prefill", "decode"), marks[:3], marks[1:], strict=True):
        record(stage, begin_ns, end_ns, request=request.id)
    return Completion(
        request_id=request.id,
        tokens=tokens,
        logprobs=logprobs,
        policy_versions=versions,
        finish_reason=finish_reason(choice.finish_reason, request.sampling.max_tokens, limit),
        num_prefilled=len(request.prompt) - (output.num_cached_tokens or 0),
        queued_s=(marks[1] - marks[0]) / 1e9,
        prefill_s=(marks[2] - marks[1]) / 1e9,
        decode_s=(marks[3] - marks[2]) / 1e9,
    )
