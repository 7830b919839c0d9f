"""What the engines over vLLM share: the wanted policy, who waits, vLLM's counters, the end that reaches all."""

import abc
import functools
import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import anyio
import anyio.lowlevel

from agentlab.chat import OwnTokenizer
from agentlab.concurrency import Bell, WorkerPool
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.base import Engine
from agentlab.inference.jax_engine import stop_token_ids
from agentlab.inference.vllm_client import AbortedError, room_for
from agentlab.inference.vllm_weights import check_policy, write_weights
from agentlab.models import Model
from agentlab.tracing import counter
from agentlab.types import Completion, EngineStats, GenerationRequest, Policy

Pause = Literal["keep", "wait", "abort"]
"""What running requests do while weights are replaced: freeze, end first, or begin anew under the new ones."""
OURS = ("host", "port", "model", "enable_scale_out", "logprobs_mode", "weight_transfer_config", "disable_log_stats")
"""Options of vLLM that the engines need to have their own way."""


class VLLMEngineBase(Engine):
    """An engine whose vLLM lives elsewhere: it tells what is wanted, and waits. Owned by the loop thread."""

    def __init__(self, model: Model, pause: Pause):
        check_model(model)
        if pause not in get_args(Pause):
            raise ConfigError(f'pause must be "keep", "wait" or "abort", got {pause!r}.')
        self.tokenizer = model.tokenizer
        self._model, self._pause = model, pause
        self._stops = stop_token_ids(model, OwnTokenizer(model.tokenizer))
        self._policy, self._number = Policy(0, model.params), 0
        """What is wanted, and how many policies were given before it: a version may be given twice."""
        self._changed = Bell()
        """Rings whenever what is served or what is wanted has changed."""
        self._scopes: set[anyio.CancelScope] = set()
        self._error: BaseException | None = None
        self._name = uuid.uuid4().hex[:8]
        self._ids = itertools.count()
        self._stats = EngineStats()

    async def generate(self, request: GenerationRequest) -> Completion:
        """See `Engine.generate`."""
        self._raise_if_dead()
        limit = room_for(request, self.max_context)
        if limit < 1:
            return Completion(request.id, (), (), (), "context")
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await self._sample_whole(request, limit)
            finally:
                self._scopes.discard(scope)
        raise self._ended()

    def update_policy(self, policy: Policy) -> None:
        """See `Engine.update_policy`.

        Raises:
            ConfigError: the parameters are not of the structure of `model.params`.
            EngineError: the engine died.
        """
        self._raise_if_dead()
        check_policy(self._model, policy)
        if policy.version != self._policy.version or policy.params is not self._policy.params:
            self._policy, self._number = policy, self._number + 1
            self._changed.ring()

    def stats(self) -> EngineStats:
        """See `Engine.stats`. From vLLM's own counters, at most half a second old.

        vLLM has no fixed number of slots: they are the most requests that ran at once so far.
        """
        return self._stats

    @abc.abstractmethod
    async def _sample(self, request: GenerationRequest, limit: int, wanted: int) -> Completion:
        """One completion of at most `limit` tokens, begun under the policy of number `wanted` or a newer one."""

    async def _sample_whole(self, request: GenerationRequest, limit: int) -> Completion:
        """A completion that no update has ended: what one of ours has is begun anew under the new weights."""
        while True:
            try:
                return await self._sample(request, limit, self._number)
            except AbortedError:
                if self._pause != "abort":
                    raise

    async def _write(self, policy: Policy, folder: Path) -> Path:
        """A file of these weights, written by a thread; cancelling this call leaves no file behind."""
        path = folder / f"agentlab-{self._name}-{next(self._ids)}.safetensors"
        pool = WorkerPool(1)
        try:
            with anyio.CancelScope(shield=True):
                await pool.run(functools.partial(write_weights, self._model, policy, path))
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:  # a cancellation, too
            path.unlink(missing_ok=True)
            raise
        finally:
            pool.close()
        return path

    def _publish(self, counters: Sequence[Mapping[str, float]], version: int) -> None:
        """Take over what vLLM counts of itself, one mapping per server."""

        def total(name: str) -> float:
            return sum(found.get(name, 0.0) for found in counters)

        running, waiting = int(total("num_requests_running")), int(total("num_requests_waiting"))
        cache_used = total("kv_cache_usage_perc") / max(1, len(counters))
        for name, value in {"slots_in_use": running, "waiting": waiting, "cache_used": cache_used}.items():
            counter(name, value)
        cached = int(total("prompt_tokens_cached_total"))
        self._stats = EngineStats(
            policy_version=version,
            num_running=running,
            num_waiting=waiting,
            num_slots=max(self._stats.num_slots, running),
            tokens_sampled=int(total("generation_tokens_total")),
            tokens_prefilled=int(total("prompt_tokens_total")) - cached,
            tokens_cached=cached,
            cache_used=cache_used,
        )

    def _in_force(self, version: int) -> None:
        """All that samples has this policy, or a newer one."""
        self._stats = replace(self._stats, policy_version=version)
        self._changed.ring()

    def _salt(self, number: int) -> str:
        """What keeps the cache of one policy apart: vLLM resets its own only when no request runs."""
        return f"{self._name}-{number}"

    def _unique_id(self, request: GenerationRequest) -> str:
        """An id that vLLM has not seen before, also when a request is made once more."""
        return f"{request.id}-{self._name}-{next(self._ids)}"

    def _let_go(self) -> None:
        """Serving has ended: everybody who waits hears of it."""
        self._stats = replace(self._stats, num_running=0, num_waiting=0)
        self._changed.ring()
        for scope in self._scopes:
            scope.cancel()

    def _raise_if_dead(self) -> None:
        if self._error is not None:
            raise self._ended()

    def _ended(self) -> EngineError:
        """What those who wait are told: what killed the engine, or that it is not served any more."""
        if self._error is None:
            return EngineError("The engine stopped serving before it answered; serve it again and repeat the request.")
        text = str(self._error)
        if not isinstance(self._error, EngineError):
            text = f"The inference engine died: {type(self._error).__name__}: {text}"
        error = EngineError(text)
        error.__cause__ = self._error
        return error


def check_model(model: Any) -> None:
    """Refuse what is not a model.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(model, Model):
        raise ConfigError(f"model must be a Model, see load_model, got {type(model).__name__}.")


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of vLLM that are ours to set.

    Raises:
        ConfigError: naming them.
    """
    if taken := sorted(set(options) & set(OURS)):
        raise ConfigError(f"These options are set by agentlab and cannot be given: {', '.join(taken)}.")
