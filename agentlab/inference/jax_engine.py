"""The built-in inference engine: continuous batching with a prefix cache, on one thread of its own."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import jax
from jax.sharding import Mesh, NamedSharding

from agentlab.chat import ChatFormat, OwnTokenizer
from agentlab.concurrency import Closed, Inbox, Reply, run_thread
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.base import Engine
from agentlab.inference.cache import Kernel
from agentlab.inference.memory import MemoryPlan, free_device_bytes, plan_memory
from agentlab.inference.runner import Runner, cache_layout
from agentlab.inference.scheduler import Generation, Scheduler
from agentlab.inference.shapes import Shapes, default_shapes
from agentlab.models import Model
from agentlab.models.sharding import checked_mesh
from agentlab.platform.compilation import enable_compilation_cache
from agentlab.platform.progress import bar
from agentlab.tracing import counter, now_ns, record
from agentlab.types import Completion, EngineStats, GenerationRequest, Policy, checked_option


@dataclass(frozen=True)
class Submitted:
    """A request, and where its completion goes."""

    ticket: int
    request: GenerationRequest
    reply: Reply[Completion]
    submitted_ns: int


@dataclass(frozen=True)
class Abort:
    """Nobody waits for this request any more."""

    ticket: int


@dataclass(frozen=True)
class Released:
    """This conversation is over."""

    session: str


Item = Submitted | Abort | Released | Policy


PAUSE_S, BURST_S = 0.001, 0.005
"""An engine that was idle begins when no request has come for `PAUSE_S`, at the latest `BURST_S` after the first:
requests come in bursts, and a prefill for the first of them alone would hold up the others."""
LAST_DISPATCH_S = 30.0
"""Seconds for which a new `serve` waits for the last dispatch of the one before."""


class JaxEngine(Engine):
    """Serves a model with JAX. Requests join and leave between decode steps.

    A request's tokens depend on its seed alone: not on who shared its batch, up to the rounding of
    matrix products of different sizes. After an update of the policy a conversation in progress
    keeps what it has cached; nothing computed under older weights is shared with other sessions.

    Args:
        model: What to serve; its parameters are read, never donated.
        num_slots: Most requests in progress; the others wait, first come first served. None takes as many
            as the memory holds, at most `max_slots`; see `plan`.
        max_slots: Most slots that are planned.
        memory_share: Of the memory that is free now, how much the cache and its working copies may take.
        tokens_per_slot: Most tokens of prompt and completion together.
        max_dispatch: Most decode steps between two looks at the inbox.
        dispatch_s: Seconds that those steps should take at most.
        prefill_chunk: Prompt tokens of one sequence that are computed at once; a running sequence
            never waits longer than for one chunk.
        recompute_on_update: After an update compute what running requests have cached again, under
            the new weights.
        mesh: Devices over which weights and cache are laid out, apart from those of training or shared with
            them; None takes the devices of `model`.
        attention: What computes the attention of a decode: "xla", or JAX's own TPU kernel "pallas", which reads
            the cache in place (elsewhere it is interpreted, slowly). "auto" takes the kernel on one TPU chip
            for weights in bfloat16 and heads of a multiple of 128.
        shapes: Sizes of the compiled programs, if not the default ones.
        warm_up: Compile all programs when serving begins, before the first request is answered. Without it
            the first requests wait for as few programs as serve them, three or more; the others follow when needed.
        compilation_cache: Keep compiled programs on disk, see `enable_compilation_cache`.

    Raises:
        ConfigError: an option is impossible, or the memory does not hold the cache.
    """

    _heir: Reply[None] | None = None
    """Told when the thread has left: the next serve waits for it, if it came too early."""

    def __init__(
        self,
        model: Model,
        *,
        num_slots: int | None = None,
        max_slots: int = 32,
        memory_share: float = 0.6,
        tokens_per_slot: int = 512,
        max_dispatch: int = 8,
        dispatch_s: float = 0.5,
        prefill_chunk: int = 64,
        recompute_on_update: bool = False,
        mesh: Mesh | None = None,
        attention: Literal["auto", "xla", "pallas"] = "auto",
        shapes: Shapes | None = None,
        warm_up: bool = False,
        compilation_cache: bool = True,
    ):
        counts = {"max_slots": max_slots, "max_dispatch": max_dispatch, "prefill_chunk": prefill_chunk}
        _check_sizes(counts if num_slots is None else counts | {"num_slots": num_slots}, dispatch_s)
        _check_model(model, tokens_per_slot)
        if compilation_cache:
            enable_compilation_cache()
        mesh = mesh_of(model) if mesh is None else checked_mesh(mesh)
        devices = devices_of(model.params) if mesh is None else list(mesh.devices.flat)
        self.plan: MemoryPlan = plan_memory(
            model.config,
            num_slots=num_slots,
            max_slots=max_slots,
            tokens_per_slot=tokens_per_slot,
            item_bytes=dtype_of(model.params).itemsize,
            free_bytes=free_device_bytes(devices, cache_layout(model.config, mesh)),
            share=memory_share,
        )
        """The cache's size, and the memory that it was planned for."""
        num_slots = self.plan.num_slots
        shapes = shapes or default_shapes(num_slots, tokens_per_slot, prefill_chunk)
        shapes.check(num_slots, tokens_per_slot)
        tokenizer = OwnTokenizer(model.tokenizer)
        sizes: dict[str, Any] = {
            "num_slots": num_slots,
            "tokens_per_slot": tokens_per_slot,
            "shapes": shapes,
            "max_dispatch": min(max_dispatch, tokens_per_slot),
            "stop_token_ids": stop_token_ids(model, tokenizer),
        }
        kernel = kernel_for(attention, model, devices)
        self.tokenizer, self.max_context = model.tokenizer, tokens_per_slot
        self._runner = Runner(model, kernel=kernel, mesh=mesh, **sizes)
        self._scheduler = Scheduler(tokenizer=tokenizer, **sizes)
        self._dispatch_ns = int(dispatch_s * 1e9)
        self._recompute = recompute_on_update
        self._warm_up_first = warm_up
        self._replies: dict[int, Reply[Completion]] = {}
        self._inbox: Inbox[Item] = Inbox()
        self._tickets = itertools.count()
        self._serving = self._ending = False
        self._error: BaseException | None = None
        self._stats = EngineStats(num_slots=num_slots)
        self._levels = (-1, -1)

    # -- on the loop ------------------------------------------------------------------------------

    def warm_up(self, *, progress: bool = True) -> int:
        """Compile all programs; blocks, so call it before `serve`. Compilations after it are faults.

        Returns:
            How many programs there are.

        Raises:
            EngineError: the engine is serving already.
        """
        if self._serving:
            raise EngineError("warm_up must be called before serve: the engine's thread owns the programs now.")
        total = self._runner.num_declared
        with bar(total, f"Compiling {total} programs", kind="compiling", enabled=progress) as shown:
            for program in self._runner.warm_up():
                shown.set_postfix_str(" ".join(map(str, program)))
                shown.update()
        self._publish()
        return total

    async def serve(self) -> None:
        """See `Engine.serve`. Having been cancelled, it can be called again."""
        if self._error is not None:
            raise self._ended()
        if self._ending:
            await self._predecessor()
        if self._serving:
            raise EngineError("The engine is serving already; it has one thread.")
        self._serving, self._ending = True, False
        try:
            await run_thread(self._main, self._inbox, name="agentlab-engine", grace_s=1.0)
        finally:
            self._ending = True
            if self._error is None:
                self._inbox = Inbox()

    async def _predecessor(self) -> None:
        """Wait for the thread of a serve that was cancelled: it may still be in its last dispatch."""
        left: Reply[None] = Reply()
        self._heir = left  # before the look at `_serving`: the thread that leaves looks here after that is False
        if self._serving:
            with anyio.move_on_after(LAST_DISPATCH_S):
                await left.wait()

    async def generate(self, request: GenerationRequest) -> Completion:
        """See `Engine.generate`."""
        if self._error is not None:
            raise self._ended()
        if not request.prompt:
            raise ConfigError(f"Request {request.id!r} must have a prompt of at least one token, got none.")
        if len(request.prompt) >= self.max_context:
            return Completion(request.id, (), (), (), "context")
        ticket = next(self._tickets)
        reply: Reply[Completion] = Reply()
        inbox = self._inbox
        if not inbox.put(Submitted(ticket, request, reply, now_ns())):
            raise self._ended()
        try:
            return await reply.wait()
        except anyio.get_cancelled_exc_class():
            inbox.put(Abort(ticket))
            raise

    def update_policy(self, policy: Policy) -> None:
        """See `Engine.update_policy`.

        Raises:
            ConfigError: the parameters are not of the structure of `model.params`.
            EngineError: the engine died.
        """
        self._runner.check(policy)
        if not self._inbox.put(policy):
            raise self._ended()

    def release(self, session: str) -> None:
        """See `Engine.release`."""
        self._inbox.put(Released(session))

    def prepared_s(self) -> float:
        """See `Engine.prepared_s`: the time of compilations."""
        return self._runner.preparing.seconds()

    def stats(self) -> EngineStats:
        """See `Engine.stats`. As of the last dispatch."""
        return self._stats

    def _ended(self) -> EngineError:
        if self._error is None:
            return EngineError("The engine stopped serving before it answered; serve it again and repeat the request.")
        error = EngineError(f"The inference engine died: {type(self._error).__name__}: {self._error}")
        error.__cause__ = self._error
        return error

    # -- on the engine's thread -------------------------------------------------------------------

    def _main(self) -> None:
        inbox = self._inbox
        try:
            self._warm_up(inbox)
            while True:
                self._read(inbox)
                self._prepare(inbox)
                self._step()
        except Closed:
            pass
        except BaseException as error:  # whatever it is, those who wait must hear of it
            self._error = error
            raise self._ended() from error
        finally:
            self._leave(inbox)
            self._serving = False
            if self._heir is not None:
                self._heir.set(None)

    def _warm_up(self, inbox: Inbox[Item]) -> None:
        """Compile what is asked for before the first request, and end after some program when serving ends."""
        if not self._warm_up_first or self._runner.warm:
            return
        for _ in self._runner.warm_up():
            self._publish()
            self._take_all(inbox)
        self._publish()

    def _read(self, inbox: Inbox[Item]) -> None:
        if not self._scheduler.has_work:
            self._take(inbox.get())
            latest, scheduler = time.monotonic() + BURST_S, self._scheduler
            while 0 < len(scheduler.waiting) < len(scheduler.slots) and time.monotonic() < latest:
                if not self._take_all(inbox, PAUSE_S):
                    break
        self._take_all(inbox)

    def _take_all(self, inbox: Inbox[Item], wait_s: float = 0.0) -> bool:
        """Take what is there or comes within a time; False if nothing does."""
        items = inbox.drain(wait_s)
        for item in items:
            self._take(item)
        return bool(items)

    def _take(self, item: Item) -> None:
        match item:
            case Submitted(ticket, request, reply, submitted_ns):
                self._replies[ticket] = reply
                self._scheduler.submit(Generation(ticket, request, submitted_ns))
            case Abort(ticket):
                self._scheduler.abort(ticket)
                self._replies.pop(ticket, None)
            case Released(session):
                self._scheduler.release(session)
            case Policy():
                self._runner.install(item)
                self._scheduler.policy_changed(recompute=self._recompute)
        self._publish()

    def _prepare(self, inbox: Inbox[Item]) -> None:
        """Have the programs for all that are served, who may become more while these are compiled."""
        served = -1
        while served != self._scheduler.num_served:
            served = self._scheduler.num_served
            for _ in self._runner.prepare(served):
                self._take_all(inbox)
        self._scheduler.shapes = self._runner.shapes

    def _step(self) -> None:
        step_ns = self._runner.step_ns
        max_steps = max(1, self._dispatch_ns // step_ns) if step_ns else None
        plan = self._scheduler.schedule(now_ns=now_ns(), max_steps=max_steps)
        if plan.copies:
            self._runner.copy(plan.copies)
        version = self._runner.version
        for chunk, token, logprob in self._runner.prefill(plan) if plan.chunks else ():
            self._scheduler.prefilled(chunk, token, logprob, version)
            self._answer(chunk.generation)
        limits = [min(plan.num_steps, self._scheduler.room(g)) for g in plan.decoded]
        for generation, tokens, logprobs in self._runner.decode(plan, limits) if plan.decoded else ():
            self._scheduler.decoded(generation, tokens, logprobs, version)
            self._answer(generation)
        self._publish()

    def _answer(self, generation: Generation) -> None:
        """Give the completion if the generation has ended; note the time of its first token."""
        if generation.num_sampled and not generation.first_token_ns:
            generation.first_token_ns = now_ns()
            request = generation.request
            record("queueing", generation.submitted_ns, generation.begun_ns, request=request.id)
        if generation.reason is None:
            return
        self._replies.pop(generation.ticket).set(
            Completion(
                request_id=generation.request.id,
                tokens=tuple(generation.sampled),
                logprobs=tuple(generation.logprobs),
                policy_versions=tuple(generation.versions),
                finish_reason=generation.reason,
                num_prefilled=len(generation.request.prompt) - generation.num_cached,
                queued_s=(generation.begun_ns - generation.submitted_ns) / 1e9,
                prefill_s=(generation.first_token_ns - generation.begun_ns) / 1e9,
                decode_s=(now_ns() - generation.first_token_ns) / 1e9,
            )
        )

    def _publish(self) -> None:
        scheduler, runner = self._scheduler, self._runner
        levels = len(scheduler.running), len(scheduler.waiting)
        if levels != self._levels:
            counter("slots_in_use", levels[0])
            counter("waiting", levels[1])
            self._levels = levels
        self._stats = EngineStats(
            policy_version=runner.version,
            num_running=levels[0],
            num_waiting=levels[1],
            num_slots=len(scheduler.slots),
            tokens_sampled=scheduler.tokens_sampled,
            tokens_prefilled=scheduler.tokens_prefilled,
            tokens_cached=scheduler.tokens_cached,
            busy_s=runner.busy_ns / 1e9,
            compilations=runner.compilations,
            num_programs=runner.num_declared if runner.warm or self._warm_up_first else 0,
            num_compiled=runner.num_compiled,
        )

    def _leave(self, inbox: Inbox[Item]) -> None:
        """Free what requests hold, and tell all that wait, also those that were never read."""
        inbox.close()
        try:
            while True:
                for item in inbox.drain():
                    if isinstance(item, Submitted):
                        self._replies[item.ticket] = item.reply
        except Closed:
            pass
        for generation in (*self._scheduler.running, *self._scheduler.waiting):
            self._scheduler.abort(generation.ticket)
        for reply in self._replies.values():
            reply.fail(self._ended())
        self._replies.clear()
        self._publish()


def devices_of(params: Any) -> list[Any]:
    """The devices that hold these parameters."""
    return sorted(jax.tree.leaves(params)[0].devices(), key=lambda device: device.id)


def mesh_of(model: Model) -> Mesh | None:
    """The mesh that a model was loaded onto, if it was."""
    sharding = jax.tree.leaves(model.params)[0].sharding
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) and sharding.num_devices > 1:
        return checked_mesh(sharding.mesh)
    return None


def dtype_of(params: Any) -> Any:
    """The type of these parameters."""
    return jax.tree.leaves(params)[0].dtype


def _check_sizes(counts: Mapping[str, int], dispatch_s: float) -> None:
    for name, size in counts.items():
        if checked_option(name, size, int) < 1:
            raise ConfigError(f"{name} must be at least 1, got {size}.")
    if not checked_option("dispatch_s", dispatch_s, float) > 0:
        raise ConfigError(f"dispatch_s must be above 0 seconds, got {dispatch_s}.")


def _check_model(model: Model, tokens_per_slot: int) -> None:
    if not isinstance(model, Model):
        raise ConfigError(f"model must be a Model, see load_model, got {type(model).__name__}.")
    if not 2 <= checked_option("tokens_per_slot", tokens_per_slot, int) <= model.config.max_position:
        raise ConfigError(
            f"tokens_per_slot must lie between 2 and the model's context of {model.config.max_position} "
            f"tokens, got {tokens_per_slot}."
        )


def kernel_for(attention: str, model: Model, devices: Sequence[Any]) -> Kernel:
    """What computes the attention of a decode on these devices.

    Raises:
        ConfigError: there is no such choice, or the kernel cannot run there.
    """
    if attention not in ("auto", "xla", "pallas"):
        raise ConfigError(f'attention must be "auto", "xla" or "pallas", got {attention!r}.')
    on_tpu = devices[0].platform == "tpu"
    dtype = dtype_of(model.params)
    suits = len(devices) == 1 and dtype == "bfloat16" and model.config.head_dim % 128 == 0
    if attention == "pallas" and not suits:
        raise ConfigError(
            f"The attention kernel needs one device, weights in bfloat16 and heads of a multiple of 128 numbers, got "
            f'{len(devices)} devices, {dtype} and heads of {model.config.head_dim}. Use attention="xla".'
        )
    if attention == "pallas":
        return "pallas" if on_tpu else "pallas_interpreted"
    return "pallas" if attention == "auto" and on_tpu and suits else "xla"


def stop_token_ids(model: Model, tokenizer: OwnTokenizer) -> tuple[int, ...]:
    """The tokens that end a turn of this model, by its config and its tokenizer."""
    ids = set(model.config.eos_token_ids)
    if getattr(tokenizer, "chat_template", None):
        ids.update(ChatFormat(tokenizer).stop_token_ids)
    elif tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return tuple(sorted(ids))
