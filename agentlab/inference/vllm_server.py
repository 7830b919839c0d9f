"""`VLLMServerEngine`: vLLM servers behind the engine interface, with weights that follow the trainer."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import anyio
import httpx

from agentlab.concurrency import first_error
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.vllm_base import Pause, VLLMEngineBase, check_model
from agentlab.inference.vllm_client import ServerGoneError, VLLMClient
from agentlab.inference.vllm_process import ServerProcess
from agentlab.inference.vllm_weights import shared_memory
from agentlab.models import Model
from agentlab.models.save import save_model
from agentlab.tracing import now_ns, record, span
from agentlab.types import Completion, GenerationRequest, Policy, checked_option

BEAT_S = 0.5
"""Seconds between two looks at a server's health and counters."""
SILENT_S = 30.0
"""A server that accepts connections but does not answer for this long is taken for dead."""


class Server:
    """What the engine knows of one server. Owned by the loop thread."""

    def __init__(self, url: str, client: VLLMClient):
        self.url, self.client = url, client
        self.alive = True
        self.number, self.version = -1, 0
        """Number and version of the policy it serves; -1 before the first one was installed."""
        self.counters: dict[str, float] = {}


class VLLMServerEngine(VLLMEngineBase):
    """Serves a policy by one or several vLLM servers. Owned by the loop thread.

    A request that is made after `update_policy` is sampled under that policy or a newer one; those in
    flight go on under the new weights with what they have cached. The requests of a session stay with
    one server, for its cache; new ones go to the server with the fewest. A server that dies
    is left out, its requests are made once more elsewhere, and it is taken back, with the newest
    weights, when it answers again. When none is left, `serve` and every `generate` raise.

    Weights travel as a file in shared memory (or in `weights_folder`), so servers must run on this
    machine or see that folder. Their routes for new weights have no password: keep them on loopback.

    Args:
        urls: One or more, such as "http://127.0.0.1:8000"; see `launch` for starting one.
        model: What is served: its tokenizer, and the weights that are installed before the first request.
        pause: What running requests do while weights are replaced: "keep" freezes them, "wait" lets
            them end first, "abort" ends them and begins them anew under the new weights.
        weights_folder: Where the files of weights go; shared memory if None.
        timeout_s: Seconds a server has to answer anything but a request for tokens.

    Raises:
        ConfigError: an option is impossible.
        EngineError: a server does not answer.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        model: Model,
        pause: Pause = "keep",
        weights_folder: str | Path | None = None,
        timeout_s: float = 300.0,
    ):
        super().__init__(model, pause)
        urls = [urls] if isinstance(urls, str) else list(urls)
        if not urls:
            raise ConfigError("urls must name at least one vLLM server, got none.")
        if checked_option("timeout_s", timeout_s, float) <= 0:
            raise ConfigError(f"timeout_s must be above 0 seconds, got {timeout_s}.")
        self.urls = tuple(url.rstrip("/") for url in urls)
        self.max_context = min(_max_model_len(url) for url in self.urls)
        self._timeout_s = timeout_s
        self._folder = None if weights_folder is None else Path(weights_folder)
        self._processes: tuple[ServerProcess, ...] = ()
        self._servers: list[Server] = []
        self._gone: Server | None = None
        """The one that died last."""
        self._serving = False
        self._files: dict[int, Path] = {}
        self._writing = anyio.Lock()
        self._homes: dict[str, Server] = {}
        self.update_s, self.update_bytes = 0.0, 0
        """How long the last weight update took, from writing to being in force, and how many bytes it moved."""

    @classmethod
    def launch(
        cls,
        model: Model,
        *,
        python: str | Path,
        num_servers: int = 1,
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 600.0,
        progress: bool = True,
        pause: Pause = "keep",
        **options: Any,
    ) -> Self:
        """Start servers as child processes and wait until they are healthy.

        They end with `close()`, with this object, and with this process, however it ends.

        Args:
            model: Saved to a folder from which the servers load it.
            python: The interpreter of an environment in which vLLM is installed.
            num_servers: How many.
            env: Environment variables for them.
            start_timeout_s: Seconds until they must be healthy.
            progress: Show a bar meanwhile.
            pause: See the class.
            options: Of `vllm serve`, with underscores: `max_model_len=4096`, `enforce_eager=True`. vLLM's
                CPU build needs `enable_chunked_prefill=False`: it dies when it reads a prompt in pieces.

        Raises:
            ConfigError: an option is impossible.
            EngineError: a server ended or was not healthy in time; the text shows its last lines.
        """
        check_model(model)
        if checked_option("num_servers", num_servers, int) < 1:
            raise ConfigError(f"num_servers must be at least 1, got {num_servers}.")
        processes: list[ServerProcess] = []
        try:
            with tempfile.TemporaryDirectory(prefix="agentlab-model-") as folder:
                saved = save_model(model, Path(folder) / "model")
                for _ in range(num_servers):
                    processes.append(ServerProcess(saved, python=python, env=env, **options))
                for process in processes:
                    process.wait_until_healthy(_answers, timeout_s=start_timeout_s, progress=progress)
            engine = cls([process.url for process in processes], model=model, pause=pause)
        except BaseException:  # an interrupt, too, must leave no server behind
            for process in processes:
                process.close()
            raise
        engine._processes = tuple(processes)
        return engine

    def close(self) -> None:
        """End the servers that were launched, and remove the files of weights."""
        for process in self._processes:
            process.close()
        self._remove_files()

    # -- the engine interface ---------------------------------------------------------------------

    async def serve(self) -> None:
        """See `Engine.serve`. Having been cancelled, it can be called again."""
        self._raise_if_dead()
        if self._serving:
            raise EngineError("The engine is serving already.")
        try:
            await first_error(self._keep_all)
        except EngineError as error:
            self._error = error
            raise self._ended() from error
        finally:
            self._serving, self._writing = False, anyio.Lock()  # the next loop may be another
            self._homes.clear()
            self._remove_files()
            self._let_go()

    def release(self, session: str) -> None:
        """See `Engine.release`. vLLM evicts what is unused by itself."""
        self._homes.pop(session, None)

    # -- requests ---------------------------------------------------------------------------------

    async def _sample(self, request: GenerationRequest, limit: int, wanted: int) -> Completion:
        while not self._serving:
            await self._changed.wait()
        sent = replace(request, id=self._unique_id(request))
        try:
            completion = await self._ask(await self._server_for(request.session, wanted), sent, limit)
        except ServerGoneError:  # nothing of it was delivered: once more, elsewhere if there is another
            completion = await self._ask(await self._server_for(request.session, wanted), sent, limit)
        return self._timed(replace(completion, request_id=request.id))

    async def _ask(self, server: Server, request: GenerationRequest, limit: int) -> Completion:
        try:
            return await server.client.generate(request, limit, self._stops, self._salt(server.number))
        except ServerGoneError:
            self._leave_out(server)
            raise

    async def _server_for(self, session: str, wanted: int) -> Server:
        """The session's server, or the one with the fewest sessions, once it has these weights."""
        while True:
            server = self._homes.get(session)
            alive = [server for server in self._servers if server.alive]
            if server is None and alive:
                homes = list(self._homes.values())
                server = self._homes[session] = min(alive, key=homes.count)
            if server is not None and server.number >= max(wanted, 0):
                return server
            await self._changed.wait()

    def _timed(self, completion: Completion) -> Completion:
        """Spans of what the device did, and the completion with queueing told apart from prefill."""
        end_ns = now_ns()
        first_ns = end_ns - int(completion.decode_s * 1e9)
        queued_s = completion.prefill_s * self._queued_share()
        begin_ns = first_ns - int(completion.prefill_s * 1e9)
        begun_ns = begin_ns + int(queued_s * 1e9)
        record("queueing", begin_ns, begun_ns, request=completion.request_id)
        record("prefill", begun_ns, first_ns, request=completion.request_id)
        record("decode", first_ns, end_ns, request=completion.request_id)
        return replace(completion, queued_s=queued_s, prefill_s=completion.prefill_s - queued_s)

    def _queued_share(self) -> float:
        """Which part of the time to the first token is queueing, on average, by vLLM's own sums."""
        queued = sum(server.counters.get("request_queue_time_seconds_sum", 0.0) for server in self._servers)
        computed = sum(server.counters.get("request_prefill_time_seconds_sum", 0.0) for server in self._servers)
        return queued / (queued + computed) if queued + computed else 0.0

    # -- weights and health -----------------------------------------------------------------------

    async def _keep_all(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(limits=limits, trust_env=False) as http:
            self._servers = [Server(url, VLLMClient(url, http, self._timeout_s)) for url in self.urls]
            async with anyio.create_task_group() as group:
                for server in self._servers:
                    group.start_soon(self._keep_current, server)
                    group.start_soon(self._watch, server)
                self._serving = True
                self._changed.ring()

    async def _keep_current(self, server: Server) -> None:
        """Install the newest policy whenever the server has an older one."""
        while True:
            if server.alive and server.number != self._number:
                try:
                    await self._install(server, self._number, self._policy)
                except ServerGoneError:
                    self._leave_out(server)
            else:
                await self._changed.wait()

    async def _install(self, server: Server, number: int, policy: Policy) -> None:
        began_ns = now_ns()
        async with self._writing:
            path = await self._file(number, policy)
        if server.number < 0:
            await server.client.end_update()
        with span("weight_sync", version=policy.version):
            await server.client.install(path, policy.version, pause=self._pause)
        server.number, server.version = number, policy.version
        self.update_s = (now_ns() - began_ns) / 1e9
        self._in_force(self._oldest_version())
        # They fill memory. A server that comes back gets a new one.
        self._remove_files(upto=min((other.number for other in self._servers if other.alive), default=-1))

    async def _file(self, number: int, policy: Policy) -> Path:
        """The file that holds this policy, written at first need."""
        if number not in self._files:
            path = await self._write(policy, shared_memory() if self._folder is None else self._folder)
            self._files[number] = path
            self.update_bytes = path.stat().st_size
        return self._files[number]

    def _remove_files(self, upto: float = math.inf) -> None:
        for number in [number for number in self._files if number <= upto]:
            self._files.pop(number).unlink(missing_ok=True)

    def _oldest_version(self) -> int:
        return min((server.version for server in self._servers if server.alive), default=0)

    async def _watch(self, server: Server) -> None:
        """Look at the server's counters again and again; take it back when it answers again."""
        while True:
            try:
                with anyio.fail_after(SILENT_S):
                    server.counters = await server.client.counters()
                    if not await server.client.healthy():
                        raise ServerGoneError(f"The engine of the vLLM server at {server.url} is dead.")
                if not server.alive:
                    server.alive, server.number = True, -1
                    self._changed.ring()
                self._publish([other.counters for other in self._servers if other.alive], self._oldest_version())
            except (ServerGoneError, TimeoutError) as error:
                self._leave_out(server)
                if not any(other.alive for other in self._servers):
                    last = self._gone or server
                    told = f"No vLLM server is left; the last was {last.url}. {self._last_words(last)}{error}"
                    raise ServerGoneError(told) from error
            await anyio.sleep(BEAT_S)

    def _leave_out(self, server: Server) -> None:
        if server.alive:
            self._gone = server
        server.alive = False
        for session in [session for session, home in self._homes.items() if home is server]:
            del self._homes[session]
        self._changed.ring()

    def _last_words(self, server: Server) -> str:
        lines = [p.last_lines() for p in self._processes if p.url == server.url]
        return f"The one at {server.url} said at last:\n{lines[0]}\n" if lines else ""


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _max_model_len(url: str) -> int:
    """Most tokens of prompt and completion that the server takes."""
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=10.0, trust_env=False)
        return int(answer.raise_for_status().json()["data"][0]["max_model_len"])
    except (httpx.HTTPError, httpx.InvalidURL, KeyError, IndexError, ValueError) as error:
        raise EngineError(
            f"A vLLM server must answer at {url}/v1/models, got {type(error).__name__}: {error}. "
            "Start one with VLLMServerEngine.launch(model, python=...), or check the address."
        ) from error
