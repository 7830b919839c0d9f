"""What we ask of one vLLM server, over HTTP: tokens for tokens, new weights, its counters."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx

from agentlab.errors import AgentLabError, ConfigError, EngineError
from agentlab.tracing import now_ns
from agentlab.types import Completion, FinishReason, GenerationRequest, SamplingParams

WHOLE = 1 << 20
"""Tokens between two pieces of a stream: the first token, and then all the rest."""
PREFIX = "generate-tokens-"
"""vLLM puts this before the id of a request; an abort by another id is accepted and does nothing."""


class ServerGoneError(EngineError):
    """A server does not answer any more."""


class AbortedError(EngineError):
    """A request was ended in vLLM before its completion was whole."""


@dataclass
class Sampled:
    """What has arrived of one completion. Owned by the call that reads it."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] | None = None
    finish_reason: str = ""
    num_cached: int = 0
    first_token_ns: int = 0


class VLLMClient:
    """One server. Owned by the loop thread.

    Args:
        url: Without a slash at its end.
        http: Shared by all servers.
        timeout_s: Seconds for an answer to anything but a request for tokens, which has no limit.
    """

    def __init__(self, url: str, http: httpx.AsyncClient, timeout_s: float):
        self.url = url
        self._http, self._timeout_s = http, timeout_s

    async def generate(self, request: GenerationRequest, limit: int, stops: Sequence[int], salt: str) -> Completion:
        """Sample. Cancelling this call ends the request in the server.

        Args:
            request: What to sample.
            limit: Most tokens, at or below `sampling.max_tokens`.
            stops: Token ids that end a turn of this model.
            salt: Requests of another salt share no cache with this one.

        Raises:
            ServerGoneError: the server went before it had answered.
            EngineError: it refused.
        """
        submitted_ns = now_ns()
        body = request_body(request, limit, stops, salt)
        sampled = Sampled()
        headers = {"X-Request-Id": body["request_id"], "X-Session-Id": request.session}
        route = "/inference/v1/generate"
        async with self._or_gone():
            async with self._open("POST", route, json=body, headers=headers, timeout=None) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        read_piece(json.loads(line[6:]), sampled, self.url)
            if not sampled.finish_reason:
                raise ServerGoneError(f"The vLLM server at {self.url} ended its answer to {request.id} in the middle.")
            return completion(request, sampled, limit, submitted_ns)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by id, whether or not their connection is still open."""
        ids = [PREFIX + id for id in request_ids]
        await self._call("POST", "/inference/v1/abort_requests", json={"request_ids": ids})

    async def install(self, path: Path, version: int, *, pause: str) -> None:
        """Replace all weights between two steps and name them; running requests go on afterwards.

        Cancelling this call does not stop it half-way.

        Raises:
            ServerGoneError: the server went.
            EngineError: it refused the weights. It stays paused, since it may hold parts of them.
        """
        with anyio.CancelScope(shield=True):
            async with self._or_gone():
                await self._install(path, version, pause)

    async def end_update(self) -> None:
        """End an update that a client before us began and never ended, if there is one."""
        try:
            await self._call("POST", "/finish_weight_update")
        except ServerGoneError:
            raise
        except EngineError:
            return  # "called without a matching start": there is none

    async def _install(self, path: Path, version: int, pause: str) -> None:
        await self._call("POST", "/pause", params={"mode": pause, "clear_cache": "false"})
        await self._call("POST", "/start_weight_update")
        await self._call("POST", "/update_weights", json={"update_info": {"path": str(path)}})
        await self._call("POST", "/finish_weight_update", json={"weight_version": str(version)})
        await self._call("POST", "/reset_prefix_cache")
        await self._call("POST", "/resume")

    async def model(self) -> Mapping[str, Any]:
        """The entry of the served model: its id and `max_model_len`."""
        return (await self._call("GET", "/v1/models")).json()["data"][0]

    async def healthy(self) -> bool:
        """Whether it answers and its engine lives."""
        try:
            await self._call("GET", "/health")
        except EngineError:
            return False
        return True

    async def counters(self) -> dict[str, float]:
        """vLLM's own counters, `vllm:` left off, summed over their labels."""
        return read_counters((await self._call("GET", "/metrics")).text)

    @asynccontextmanager
    async def _or_gone(self) -> AsyncIterator[None]:
        """What a server refuses because the engine behind it has died is told as its going."""
        try:
            yield
        except ServerGoneError:
            raise
        except EngineError as error:
            if await self.healthy():
                raise
            raise ServerGoneError(f"The engine of the vLLM server at {self.url} has died: {error}") from error

    async def _call(self, method: str, path: str, **what: Any) -> httpx.Response:
        async with self._open(method, path, timeout=self._timeout_s, **what) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def _open(self, method: str, path: str, **what: Any) -> AsyncIterator[httpx.Response]:
        try:
            async with self._http.stream(method, self.url + path, **what) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise refusal(self.url, path, response)
                yield response
        except httpx.TransportError as error:
            raise ServerGoneError(
                f"The vLLM server at {self.url} must answer {path}, but the connection failed: "
                f"{type(error).__name__}: {error}. See its log, or start another."
            ) from error


def room_for(request: GenerationRequest, max_context: int) -> int:
    """Most tokens that may be sampled; below 1 where the prompt fills the context.

    Raises:
        ConfigError: there is no prompt.
    """
    if not request.prompt:
        raise ConfigError(f"Request {request.id!r} must have a prompt of at least one token, got none.")
    return min(request.sampling.max_tokens, max_context - len(request.prompt))


def refusal(url: str, path: str, response: httpx.Response) -> AgentLabError:
    """The server's own words, as an error."""
    text = response.text
    try:
        found = json.loads(text).get("error", text)
        text = found.get("message", text) if isinstance(found, dict) else str(found)
    except (json.JSONDecodeError, AttributeError):
        pass
    hint = " Start it with VLLMServerEngine.launch, which sets what is needed." if response.status_code == 404 else ""
    return EngineError(f"The vLLM server at {url} refused {path} ({response.status_code}): {text[:500]}{hint}")


def request_body(request: GenerationRequest, limit: int, stops: Sequence[int], salt: str) -> dict[str, Any]:
    """The request in vLLM's words."""
    return {
        "request_id": request.id,
        "token_ids": list(request.prompt),
        "cache_salt": salt,
        "sampling_params": sampling_body(request.sampling, limit, stops) | {"stream_interval": WHOLE},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def sampling_body(sampling: SamplingParams, limit: int, stops: Sequence[int]) -> dict[str, Any]:
    """Sampling in vLLM's words; it gives log-probabilities of the distribution sampled from."""
    return {
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted({*stops, *sampling.stop_token_ids}),
        "logprobs": 0,
        "skip_special_tokens": False,
        "detokenize": bool(sampling.stop),
    }


def read_piece(piece: Mapping[str, Any], sampled: Sampled, url: str) -> None:
    """Add one piece of a stream to what has arrived."""
    if "error" in piece:
        raise EngineError(f"The vLLM server at {url} failed: {piece['error'].get('message', piece['error'])}")
    usage = piece.get("usage") or {}
    sampled.num_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or sampled.num_cached
    for choice in piece["choices"]:
        tokens = choice.get("token_ids") or []
        if tokens and not sampled.first_token_ns:
            sampled.first_token_ns = now_ns()
        sampled.tokens += tokens
        sampled.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or ()]
        sampled.finish_reason = choice.get("finish_reason") or sampled.finish_reason
        if spans := choice.get("weight_versions"):
            sampled.versions = [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]


def completion(request: GenerationRequest, sampled: Sampled, limit: int, submitted_ns: int) -> Completion:
    """The record of what has arrived.

    Raises:
        AbortedError: somebody ended it before it was whole.
        EngineError: the server did not say which weights sampled the tokens, or lost some.
    """
    reason = finish_reason(sampled.finish_reason, request.sampling.max_tokens, limit)
    sizes = len(sampled.tokens), len(sampled.logprobs), len(sampled.versions or ())
    if len(set(sizes)) > 1:
        raise EngineError(
            f"A completion must have as many tokens as log-probabilities and weight versions, got {sizes} for "
            f"{request.id}. vLLM 0.32 is the first version that reports weight versions: use it or a later one."
        )
    done_ns = now_ns()
    first_ns = sampled.first_token_ns or done_ns
    return Completion(
        request_id=request.id,
        tokens=tuple(sampled.tokens),
        logprobs=tuple(sampled.logprobs),
        policy_versions=tuple(sampled.versions or ()),
        finish_reason=reason,
        num_prefilled=len(request.prompt) - sampled.num_cached,
        prefill_s=(first_ns - submitted_ns) / 1e9,
        decode_s=(done_ns - first_ns) / 1e9,
    )


def finish_reason(theirs: str, max_tokens: int, limit: int) -> FinishReason:
    """Ours for theirs: a length below `max_tokens` is a full context.

    Raises:
        AbortedError: it is neither "stop" nor "length".
    """
    if theirs == "length":
        return "length" if limit == max_tokens else "context"
    if theirs == "stop":
        return "stop"
    raise AbortedError(f'vLLM must end a request by "stop" or "length", got {theirs!r}: it was aborted from elsewhere.')


def read_counters(text: str) -> dict[str, float]:
    """Values of a Prometheus page by name, summed over labels."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("vllm:"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0].removeprefix("vllm:")
            values[name] = values.get(name, 0.0) + float(value)
    return values
