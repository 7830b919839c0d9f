"""`VLLMEngine`: vLLM in this process behind the engine interface, with weights that follow the trainer."""

import asyncio
import functools
import importlib.util
import itertools
import os
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio

from agentlab.concurrency import LoopThread, Reply, WorkerPool, as_error, post
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.base import Engine
from agentlab.inference.jax_engine import stop_token_ids
from agentlab.inference.vllm_client import room_for, sampling_body
from agentlab.inference.vllm_core import Core, load_llm, to_completion
from agentlab.inference.vllm_process import ENVIRONMENT, OURS
from agentlab.inference.vllm_weights import check_policy, shared_memory, write_weights
from agentlab.models import Model
from agentlab.models.save import save_model
from agentlab.tracing import counter, span
from agentlab.types import Completion, EngineStats, GenerationRequest, Policy

T = TypeVar("T")


def is_installed() -> bool:
    """Whether vLLM can be imported here; a mere folder of this name does not count."""
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


class VLLMEngine(Engine):
    """Serves a model by vLLM's `AsyncLLM` in this process; it runs on a thread of its own.

    A request that is made after `update_policy` is sampled under that policy or a newer one; those in
    flight go on under the new weights with what they have cached. vLLM is imported, and the model
    loaded, when `serve` is called for the first time; it stays until `close()`.

    Args:
        model: What to serve.
        pause: What running requests do while weights are replaced: "keep" freezes them, "wait" lets
            them end first, "abort" ends them, which fails their episodes.
        env: Environment variables for vLLM, set before it is imported.
        options: Of vLLM's `AsyncEngineArgs`: `max_model_len=4096`, `enforce_eager=True`.

    Raises:
        ConfigError: vLLM is not installed, or an option is one of ours.
    """

    def __init__(
        self,
        model: Model,
        *,
        pause: Literal["keep", "wait", "abort"] = "keep",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ):
        if not isinstance(model, Model):
            raise ConfigError(f"model must be a Model, see load_model, got {type(model).__name__}.")
        if not is_installed():
            raise ConfigError(
                "VLLMEngine needs vLLM in this environment, and it is not installed. Run `pip install agentlab[vllm]`, "
                "or serve from another environment with VLLMServerEngine.launch(model, python=...)."
            )
        if pause not in ("keep", "wait", "abort"):
            raise ConfigError(f'pause must be "keep", "wait" or "abort", got {pause!r}.')
        if taken := sorted(set(options) & set(OURS)):
            raise ConfigError(f"These options are set by agentlab and cannot be given: {', '.join(taken)}.")
        self.tokenizer = model.tokenizer
        self.max_context = int(options.setdefault("max_model_len", model.config.max_position))
        self._model, self._pause, self._options = model, pause, options
        self._env = {**ENVIRONMENT, **(env or {})}
        self._stops = stop_token_ids(model)
        self._policy = Policy(0, model.params)
        self._version: int | None = None
        self._changed = anyio.Event()
        self._thread: LoopThread[None] | None = None
        self._core: Core | None = None
        self._name = uuid.uuid4().hex[:8]
        self._ids = itertools.count()
        self._scopes: set[anyio.CancelScope] = set()
        self._error: BaseException | None = None
        self._num_open = self._most_open = 0
        self._sampled = self._prefilled = self._cached = 0

    def close(self) -> None:
        """End vLLM and its thread."""
        if self._thread is not None:
            self._thread.cancel()
            self._thread.join(30.0)
            self._thread = self._core = None

    # -- on the loop ------------------------------------------------------------------------------

    async def serve(self) -> None:
        """See `Engine.serve`. Having been cancelled, it can be called again."""
        if self._error is not None:
            raise self._ended()
        try:
            if self._core is None:
                ready: Reply[Core] = Reply()
                self._thread = LoopThread(functools.partial(self._main, ready), name="agentlab-engine")
                self._core = await ready.wait()
            while True:
                changed = self._changed
                if self._version != self._policy.version:
                    await self._install(self._policy)
                else:
                    with anyio.move_on_after(0.5):
                        await changed.wait()
                    await self._on_engine(self._core.check)
        except Exception as error:  # whatever it was, those who wait must hear of it
            self._error = error
            raise self._ended() from error
        finally:
            self._tell()  # a new event: the next loop may be another
            for scope in self._scopes:
                scope.cancel()

    async def generate(self, request: GenerationRequest) -> Completion:
        """See `Engine.generate`."""
        if self._error is not None:
            raise self._ended()
        limit = room_for(request, self.max_context)
        if limit < 1:
            return Completion(request.id, (), (), (), "context")
        wanted = self._policy.version
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                while self._core is None or self._version is None or self._version < wanted:
                    await self._changed.wait()
                return await self._sample(self._core, request, limit)
            finally:
                self._scopes.discard(scope)
        raise self._ended()

    def update_policy(self, policy: Policy) -> None:
        """See `Engine.update_policy`.

        Raises:
            ConfigError: the parameters are not of the structure of `model.params`.
            EngineError: the engine died.
        """
        if self._error is not None:
            raise self._ended()
        check_policy(self._model, policy)
        self._policy = policy
        self._tell()

    def release(self, session: str) -> None:
        """See `Engine.release`. vLLM evicts what is unused by itself."""

    def stats(self) -> EngineStats:
        """See `Engine.stats`. vLLM has no fixed number of slots: they are the most requests so far."""
        return EngineStats(
            policy_version=self._version or 0,
            num_running=self._num_open,
            num_slots=self._most_open,
            tokens_sampled=self._sampled,
            tokens_prefilled=self._prefilled,
            tokens_cached=self._cached,
        )

    async def _sample(self, core: Core, request: GenerationRequest, limit: int) -> Completion:
        id = f"{request.id}-{self._name}-{next(self._ids)}"
        params = sampling_body(request.sampling, limit, self._stops)
        self._num_open += 1
        self._most_open = max(self._most_open, self._num_open)
        counter("slots_in_use", self._num_open)
        try:
            output = await self._on_engine(functools.partial(core.generate, id, request.prompt, params))
        finally:
            self._num_open -= 1
            counter("slots_in_use", self._num_open)
        completion = to_completion(request, output, limit)
        self._sampled += len(completion.tokens)
        self._prefilled += completion.num_prefilled
        self._cached += len(request.prompt) - completion.num_prefilled
        return completion

    async def _install(self, policy: Policy) -> None:
        assert self._core is not None
        path = shared_memory() / f"agentlab-{self._name}-{policy.version}.safetensors"
        pool = WorkerPool(1)
        try:
            await pool.run(functools.partial(write_weights, self._model, policy, path))
            with span("weight_sync", version=policy.version):
                await self._on_engine(functools.partial(self._core.install, path, policy.version, self._pause))
        finally:
            pool.close()
            path.unlink(missing_ok=True)
        self._version = policy.version
        self._tell()

    async def _on_engine(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` on the engine's loop and wait for it; cancelling this cancels it there."""
        assert self._core is not None
        reply: Reply[T] = Reply()
        scope = anyio.CancelScope()
        if not post(self._core.loop, self._core.begin, work, reply, scope):
            raise EngineError("vLLM's thread has ended.")
        try:
            return await reply.wait()
        except anyio.get_cancelled_exc_class():
            post(self._core.loop, scope.cancel)
            raise

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _ended(self) -> EngineError:
        if self._error is None:
            return EngineError("The engine stopped serving before it answered; serve it again and repeat the request.")
        error = EngineError(f"The inference engine died: {type(self._error).__name__}: {self._error}")
        error.__cause__ = self._error
        return error

    # -- on the engine's thread -------------------------------------------------------------------

    async def _main(self, ready: Reply[Core]) -> None:
        try:
            os.environ.update(self._env)
            with tempfile.TemporaryDirectory(prefix="agentlab-model-") as folder:
                llm = load_llm(save_model(self._model, Path(folder) / "model"), self._options)
        except BaseException as error:  # whoever waits for the engine must hear why there is none
            ready.fail(as_error(error))
            return
        try:
            async with anyio.create_task_group() as group:
                ready.set(Core(llm, asyncio.get_running_loop(), group))
                await anyio.sleep_forever()
        finally:
            llm.shutdown()
