"""`VLLMEngine`: vLLM in this process behind the engine interface, with weights that follow the trainer."""

import asyncio
import functools
import importlib.util
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio

from agentlab.concurrency import LoopThread, Reply, as_error, post
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.preparing import Preparing
from agentlab.inference.vllm_base import Pause, VLLMEngineBase, check_options
from agentlab.inference.vllm_client import sampling_body
from agentlab.inference.vllm_core import Core, load_llm, to_completion
from agentlab.inference.vllm_process import ENVIRONMENT
from agentlab.inference.vllm_weights import shared_memory
from agentlab.models import Model
from agentlab.models.save import save_model
from agentlab.tracing import span
from agentlab.types import Completion, GenerationRequest, Policy

T = TypeVar("T")


def is_installed() -> bool:
    """Whether vLLM can be imported here; a mere folder of this name does not count."""
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


class VLLMEngine(VLLMEngineBase):
    """Serves a model by vLLM's `AsyncLLM` in this process; it runs on a thread of its own.

    A request that is made after `update_policy` is sampled under that policy or a newer one; those in
    flight go on under the new weights with what they have cached. vLLM is imported, and the model
    loaded, when `serve` is called for the first time; it stays until `close()`. Neither that nor an
    update can be cancelled half-way. vLLM's TPU build takes no seeds, so that a rerun samples other
    tokens there, and an update needs room for two copies of the weights (see `vllm_tpu`).

    Args:
        model: What to serve.
        pause: What running requests do while weights are replaced: "keep" freezes them, "wait" lets
            them end first, "abort" ends them and begins them anew under the new weights.
        env: Environment variables for vLLM, set before it is imported.
        options: Of vLLM's `AsyncEngineArgs`: `max_model_len=4096`, `enforce_eager=True`.

    Raises:
        ConfigError: vLLM is not installed, or an option is one of ours.
    """

    def __init__(
        self,
        model: Model,
        *,
        pause: Pause = "keep",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ):
        super().__init__(model, pause)
        check_options(options)
        if not is_installed():
            raise ConfigError(
                "VLLMEngine needs vLLM in this environment, and it is not installed. Run `pip install agentlab[vllm]`, "
                "or serve from another environment with VLLMServerEngine.launch(model, python=...)."
            )
        self.max_context = int(options.setdefault("max_model_len", model.config.max_position))
        self._options = options
        self._env = {**ENVIRONMENT, **(env or {})}
        self._installed: tuple[int, int] | None = None
        """Number and version of the policy in force."""
        self._thread: LoopThread[None] | None = None
        self._core: Core | None = None
        self._preparing = Preparing()

    def close(self) -> None:
        """End vLLM and its thread."""
        if self._thread is not None:
            self._thread.cancel()
            self._thread.join(30.0)
            self._thread = self._core = None

    # -- on the loop ------------------------------------------------------------------------------

    async def serve(self) -> None:
        """See `Engine.serve`. Having been cancelled, it can be called again."""
        self._raise_if_dead()
        try:
            core = await self._loaded()
            while True:
                if self._installed is None or self._installed[0] != self._number:
                    await self._install(core, self._number, self._policy)
                else:
                    with anyio.move_on_after(0.5):
                        await self._changed.wait()
                    self._publish([await self._on_engine(core.counters)], self._installed[1])
        except Exception as error:  # whatever it was, those who wait must hear of it
            self._error = error
            raise self._ended() from error
        finally:
            self._let_go()

    def prepared_s(self) -> float:
        """See `Engine.prepared_s`: the time in which vLLM started."""
        return self._preparing.seconds()

    def release(self, session: str) -> None:
        """See `Engine.release`. vLLM evicts what is unused by itself."""

    async def _loaded(self) -> Core:
        core = self._core
        if core is None:
            with self._preparing, anyio.CancelScope(shield=True):  # the next serve would load it once more
                ready: Reply[Core] = Reply()
                self._thread = LoopThread(functools.partial(self._main, ready), name="agentlab-engine")
                core = self._core = await ready.wait()
        assert core is not None, "the shield lets no cancellation through"
        return core

    async def _sample(self, request: GenerationRequest, limit: int, wanted: int) -> Completion:
        while self._core is None or self._installed is None or self._installed[0] < wanted:
            await self._changed.wait()
        core, id, salt = self._core, self._unique_id(request), self._salt(self._installed[0])
        params = sampling_body(request.sampling, limit, self._stops)
        output = await self._on_engine(functools.partial(core.generate, id, request.prompt, params, salt))
        return to_completion(request, output, limit)

    async def _install(self, core: Core, number: int, policy: Policy) -> None:
        path = await self._write(policy, shared_memory())
        try:
            with span("weight_sync", version=policy.version), anyio.CancelScope(shield=True):
                await self._on_engine(functools.partial(core.install, path, policy.version, self._pause))
        finally:
            path.unlink(missing_ok=True)
        self._installed = number, policy.version
        self._in_force(policy.version)

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
