"""The engine's device side: cache, installed weights, and plans turned into program calls."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered

from agentlab.concurrency import ahead
from agentlab.errors import ConfigError
from agentlab.inference import programs
from agentlab.inference.attention import kernel_length
from agentlab.inference.cache import Cache, Kernel, abstract_cache, empty_cache
from agentlab.inference.preparing import Preparing
from agentlab.inference.programs import DecodeRows, PrefillRows
from agentlab.inference.sampling import SamplingRows
from agentlab.inference.scheduler import Chunk, Copy, Generation, Plan
from agentlab.inference.seats import Seating, Seats
from agentlab.inference.shapes import Shapes
from agentlab.models import Model
from agentlab.models.config import DecoderConfig
from agentlab.models.sharding import param_shardings
from agentlab.models.tree import flat_arrays
from agentlab.platform.compilation import trim_memory
from agentlab.tracing import Stage, span
from agentlab.types import Policy

NUM_STOPS = 8
"""Stop token ids per request that the device looks for; more are found on the host, after the dispatch."""

FEW_DISPATCHES = 100
"""Dispatches for which an engine that was not warmed up makes do with few programs: it pays to compile the others only
for those that stay."""

Program = tuple[Any, ...]
"""Name and sizes of a compiled program."""


class Runner:
    """Runs plans. Owned by the engine's thread (by the constructing thread until that has started).

    Args:
        model: Weights and shape.
        num_slots: Rows of the cache.
        tokens_per_slot: Length of each row.
        shapes: Sizes of the compiled programs.
        max_dispatch: Most decode steps in one call.
        stop_token_ids: Looked for on the device, besides those of each request.
        kernel: What computes the attention of a decode.
        mesh: Devices over which weights and cache are laid out; None keeps them where the model is.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_slots: int,
        tokens_per_slot: int,
        shapes: Shapes,
        max_dispatch: int,
        stop_token_ids: Sequence[int],
        kernel: Kernel = "xla",
        mesh: Mesh | None = None,
    ):
        self.version = 0
        self.busy_ns = 0
        self.compilations = 0
        """Programs compiled that should have been compiled already."""
        self.step_ns = 0
        """Time of one decode step, as last measured; 0 before that."""
        self._config = model.config
        self._num_slots = num_slots
        self._shapes = shapes
        self._few: Shapes | None = None
        self._dispatches = 0
        self.shapes = shapes
        """Sizes that may be used now."""
        self._max_dispatch = max_dispatch
        self._kernel: Kernel = kernel
        self._stop_token_ids = tuple(stop_token_ids)
        self._seen: set[Program] = set()
        """Programs that were compiled ahead or called."""
        self._compiled = ""
        """The program that the last call compiled; empty if it was compiled already."""
        self.preparing = Preparing()
        """Runs while programs are compiled."""
        self.warm = False
        """Whether all declared programs have been compiled."""
        self.num_compiled = 0
        """Declared programs that have been compiled so far."""
        self._shapes_of_weights = {path: (x.shape, x.dtype) for path, x in flat_arrays(model.params).items()}
        first = jax.tree.leaves(model.params)[0]
        self._places = weight_places(model, mesh)
        self._layout = cache_layout(model.config, mesh)
        self._device = self._layout or next(iter(first.devices()))
        self._weights = self._placed(model.params)
        self._length = kernel_length(tokens_per_slot, kernel)
        self._dtype = first.dtype
        self._cache = self._empty_cache(num_slots, self._length)
        self._past: Cache | None = None
        self._past_size = (0, 0)
        self._seats = Seats()

    # -- weights ----------------------------------------------------------------------------------

    def check(self, policy: Policy) -> None:
        """Refuse weights of another structure. May be called from any thread.

        Raises:
            ConfigError: a parameter is missing, unknown or of another shape.
        """
        given = {path: x.shape for path, x in flat_arrays(policy.params).items()}
        wanted = {path: shape for path, (shape, _) in self._shapes_of_weights.items()}
        for path in sorted(given.keys() | wanted.keys(), key=repr):
            if given.get(path) != wanted.get(path):
                raise ConfigError(
                    f"Parameter {'.'.join(map(str, path))} of policy version {policy.version} must have shape "
                    f"{wanted.get(path, 'none (it is unknown)')}, got {given.get(path, 'no such parameter')}. "
                    "Publish full parameters of the structure of model.params, adapters merged."
                )

    def install(self, policy: Policy) -> None:
        """Run everything from now on under these weights. They are read, never donated."""
        with span("weight_sync", policy_version=policy.version):
            self._weights = jax.block_until_ready(self._placed(policy.params))
        self.version = policy.version
        self._past, self._past_size = None, (0, 0)

    def _placed(self, params: Any) -> tuple[jax.Array, ...]:
        flat = flat_arrays(params)
        ordered = (
            flat[path].astype(self._shapes_of_weights[path][1]) for path in programs.parameter_paths(self._config)
        )
        return tuple(jax.device_put(tuple(ordered), self._places))

    # -- plans ------------------------------------------------------------------------------------

    def prepare(self, count: int) -> Iterator[Program]:
        """Choose `shapes` for up to `count` sequences at once and compile what they lack; gives each program then.

        An engine that was not warmed up begins with few sizes: a request then waits for three programs, which are
        compiled together, and not for one size after another.
        """
        if not count:
            return
        if self.warm or self._dispatches >= FEW_DISPATCHES:
            self.shapes = self._shapes
            return
        few = self._shapes.fewest(count, self._few)
        if few != self._few:
            yield from self._compile([one for one in self._declared(few) if one[0] not in self._seen])
        self.shapes = self._few = few

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy prefixes between slots."""
        source, target = [c.source for c in copies], [c.target for c in copies]
        size = self._num_slots
        for at in range(0, len(copies), size):
            some = slice(at, at + size)
            with self._executing("prefill", copies=len(source[some])):
                self._copy(_column(source[some], size, 0), _column(target[some], size, 0), len(source[some]))

    def prefill(self, plan: Plan) -> list[tuple[Chunk, int, float]]:
        """Run the chunks of a plan: for each, the token that follows it and its log-probability."""
        size = self.shapes.prefill_rows_for(len(plan.chunks), plan.chunk_size)
        generations = [c.generation for c in plan.chunks]
        starts = [len(g.cached) for g in generations]
        in_place = size == self._num_slots
        rows = [g.slot.index for g in generations if g.slot] if in_place else list(range(len(generations)))
        tokens = np.zeros((size, plan.chunk_size), np.int32)
        start, count, slot = (np.full(size, padding, np.int32) for padding in (0, 1, 0))
        for row, begin, chunk in zip(rows, starts, plan.chunks, strict=True):
            generation = chunk.generation
            assert generation.slot is not None
            tokens[row, : chunk.length] = generation.tokens[begin : begin + chunk.length]
            start[row], count[row], slot[row] = begin, chunk.length, generation.slot.index
        real = _column(rows, size, 0), np.int32(len(generations))
        batch = PrefillRows(tokens, start, count, slot, *real)
        reach = max(begin + chunk.length for begin, chunk in zip(starts, plan.chunks, strict=True))
        context = None if in_place else self.shapes.prefill_context_for(reach)
        sampling = _sampling(rows, generations, size)
        num_tokens = sum(c.length for c in plan.chunks)
        with self._executing(
            "prefill", num_sequences=len(generations), tokens=num_tokens, rows=size, context=context or self._length
        ):
            token, logprob = self._prefill(batch, sampling, context)
        return list(zip(plan.chunks, token[rows].tolist(), logprob[rows].tolist(), strict=True))

    def decode(self, plan: Plan, limits: Sequence[int]) -> list[tuple[Generation, list[int], list[float]]]:
        """Run the decode steps of a plan: for each generation its new tokens and log-probabilities."""
        generations = plan.decoded
        size = self.shapes.rows_for(len(generations))
        context = self._make_room(size, max(len(g.cached) for g in generations))
        rows, stale = self._seated(generations, size)
        batch = self._decode_rows(rows, stale, generations, limits, size)
        sampling = _sampling(rows, generations, size)
        with self._executing("decode", num_sequences=len(generations), rows=size, context=context) as timed:
            tokens, logprobs, counts = self._decode(batch, sampling, plan.num_steps)
            lengths = counts[rows].tolist()
            timed.tag(tokens=sum(lengths))
        if self._past is not None:
            for row, generation, length in zip(rows, generations, lengths, strict=True):
                self._seats.hold(row, generation, len(generation.cached) + length)
        if not self._compiled:
            self.step_ns = (timed.end_ns - timed.start_ns) // max(lengths)
        table = zip(generations, tokens[rows].tolist(), logprobs[rows].tolist(), lengths, strict=True)
        return [(g, row[:length], values[:length]) for g, row, values, length in table]

    def _decode_rows(
        self,
        rows: Sequence[int],
        stale: Sequence[int],
        generations: Sequence[Generation],
        limits: Sequence[int],
        size: int,
    ) -> DecodeRows:
        stops = np.full((size, NUM_STOPS), -1, np.int32)
        token, start, limit = (np.zeros(size, np.int32) for _ in range(3))
        slot = np.full(size, self._num_slots, np.int32)
        for row, generation, most in zip(rows, generations, limits, strict=True):
            assert generation.slot is not None
            ids = [*self._stop_token_ids, *generation.request.sampling.stop_token_ids][:NUM_STOPS]
            stops[row, : len(ids)] = ids
            token[row], start[row] = generation.tokens[-1], len(generation.cached)
            limit[row], slot[row] = most, generation.slot.index
        real, changed = _column(rows, size, 0), _column(stale, size, 0)
        return DecodeRows(token, start, limit, slot, stops, real, np.int32(len(rows)), changed, np.int32(len(stale)))

    def _seated(self, generations: Sequence[Generation], size: int) -> Seating:
        """Rows of generations; in place each sits in the row of its slot where there is one for every slot."""
        if not self._in_place(size):
            return self._seats.seat(generations)
        if size == self._num_slots:
            return Seating([g.slot.index for g in generations if g.slot], [])
        return Seating(list(range(len(generations))), [])

    def _in_place(self, rows: int) -> bool:
        """Whether a decode of so many rows reads the cache itself: all slots are rows, each its own."""
        return rows == self._num_slots or self._kernel != "xla"

    def _make_room(self, rows: int, length: int) -> int:
        """Have a past for so many rows of so many tokens, and give its context.

        A past of another size forgets all that its rows have read. There is none where decode is in place.
        """
        in_place = self._in_place(rows)
        context = self._length if in_place else self.shapes.context_for(rows, length)
        if self._past_size != (rows, context):
            self._past, self._past_size = None, (rows, context)
            self._seats.clear(rows)
            if not in_place:
                self._past = self._empty_cache(rows, context)
        return context

    @contextlib.contextmanager
    def _executing(self, stage: Stage, **tags: Any) -> Iterator[span]:
        """A span from the call of a program to its results on the host; of compilation where it was compiled."""
        self._compiled = ""
        with span(stage, policy_version=self.version, **tags) as timed:
            yield timed
            if self._compiled:
                timed.becomes("compile", program=self._compiled)
        self.busy_ns += 0 if self._compiled else timed.end_ns - timed.start_ns

    # -- programs ---------------------------------------------------------------------------------

    def warm_up(self) -> Iterator[Program]:
        """Compile all declared programs, some at once; gives each when it is compiled.

        None of them is run; only what holds the pasts is made once. Compilations after it are faults.
        """
        for program in self._compile(list(self._declared(self._shapes))):
            self.num_compiled += 1
            yield program
        self.warm = True

    def _compile(self, declared: list[tuple[Program, Callable[[], Lowered]]]) -> Iterator[Program]:
        """Compile programs, some at once, and what makes the pasts of those that have one."""
        jobs = [functools.partial(_compile_one, *one) for one in declared]
        with self.preparing, ahead(jobs, name="agentlab-compile") as compiled:
            for (program, _), _ in zip(declared, compiled, strict=True):
                if program[0] == "decode" and not self._in_place(program[1]):
                    self._empty_cache(*program[1:])
                trim_memory()
                self._seen.add(program)
                yield program

    @functools.cached_property
    def num_declared(self) -> int:
        """How many programs `warm_up` compiles."""
        return len(list(self._declared(self._shapes)))

    def _declared(self, shapes: Shapes) -> Iterator[tuple[Program, Callable[[], Lowered]]]:
        """The programs, each with what traces it for the arguments that it will have."""
        nothing, slots = np.int32(0), self._num_slots
        none = _column([], slots, 0)
        cache = self._abstract_cache(slots, self._length)
        shared: dict[str, Any] = {"config": self._config, "kernel": self._kernel, "layout": self._layout}
        yield ("copy", slots), lambda: programs.copy.lower(cache, none, none, nothing, layout=self._layout)

        def decode(rows: int, context: int) -> Lowered:
            past = None if self._in_place(rows) else self._abstract_cache(rows, context)
            filled = self._decode_rows([], [], [], [], rows), _sampling([], [], rows), nothing
            return programs.decode.lower(self._weights, cache, past, *filled, **shared, max_steps=self._max_dispatch)

        def prefill(rows: int, chunk: int, context: int | None) -> Lowered:
            zeros, ones = _column([], rows, 0), _column([], rows, 1)
            batch = PrefillRows(np.zeros((rows, chunk), np.int32), zeros, ones, zeros, zeros, nothing)
            filled = batch, _sampling([], [], rows)
            return programs.prefill.lower(self._weights, cache, *filled, **shared, context=context)

        for rows in shapes.decode_rows:
            for context in (self._length,) if self._in_place(rows) else shapes.contexts_for(rows):
                yield ("decode", rows, context), functools.partial(decode, rows, context)
        for size in shapes.prefill:
            for context in (None,) if size.rows == slots else shapes.prefill_contexts:
                yield ("prefill", *size, context or self._length), functools.partial(prefill, *size, context)

    def _empty_cache(self, num_slots: int, length: int) -> Cache:
        return empty_cache(self._config, num_slots, length, self._dtype, kernel=self._kernel, device=self._device)

    def _abstract_cache(self, num_slots: int, length: int) -> Cache:
        return abstract_cache(self._config, num_slots, length, self._dtype, kernel=self._kernel, device=self._device)

    def _copy(self, source: np.ndarray, target: np.ndarray, num_copies: int) -> None:
        with self._watched("copy", len(source)):
            self._cache = programs.copy(self._cache, source, target, np.int32(num_copies), layout=self._layout)

    def _prefill(
        self, batch: PrefillRows, sampling: SamplingRows, context: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        with self._watched("prefill", *batch.tokens.shape, context or self._length):
            self._cache, token, logprob = programs.prefill(
                self._weights,
                self._cache,
                batch,
                sampling,
                config=self._config,
                context=context,
                kernel=self._kernel,
                layout=self._layout,
            )
        return jax.device_get((token, logprob))

    def _decode(
        self, batch: DecodeRows, sampling: SamplingRows, num_steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with self._watched("decode", *self._past_size):
            self._cache, self._past, *sampled = programs.decode(
                self._weights,
                self._cache,
                self._past,
                batch,
                sampling,
                np.int32(num_steps),
                config=self._config,
                max_steps=self._max_dispatch,
                kernel=self._kernel,
                layout=self._layout,
            )
        return jax.device_get(tuple(sampled))

    @contextlib.contextmanager
    def _watched(self, *program: Any) -> Iterator[None]:
        """Notice when a program is compiled in the body, and count the dispatch."""
        traces: list[bool] = []

        def begin() -> None:
            traces.append(True)
            self.preparing.begin()

        try:
            with _on_trace(begin):
                yield
        finally:
            if traces:
                self.preparing.end()
        if traces:
            trim_memory()
            self._compiled = " ".join(map(str, program))
            self.compilations += self.warm or program in self._seen
        self._seen.add(program)
        self._dispatches += 1


@contextlib.contextmanager
def _on_trace(notice: Callable[[], None]) -> Iterator[None]:
    """Have a function called when a program is traced in the body; it is compiled then, and only then."""
    token = programs.on_trace.set(notice)
    try:
        yield
    finally:
        programs.on_trace.reset(token)


def _compile_one(program: Program, lower: Callable[[], Lowered]) -> None:
    """Trace and compile a program, where later calls find it. A span tells so where the process had not done it."""
    with contextlib.ExitStack() as opened:

        def begin() -> None:
            opened.enter_context(span("compile", program=" ".join(map(str, program))))

        with _on_trace(begin):
            lower().compile()


def weight_places(model: Model, mesh: Mesh | None) -> tuple[Any, ...]:
    """Where each parameter lies, in the order of `parameter_paths`: on one device, or its share of a mesh."""
    paths = programs.parameter_paths(model.config)
    if mesh is None:
        return (next(iter(jax.tree.leaves(model.params)[0].devices())),) * len(paths)
    shardings = param_shardings(model.config, mesh, paths)
    return tuple(shardings[path] for path in paths)


def cache_layout(config: DecoderConfig, mesh: Mesh | None) -> NamedSharding | None:
    """Key/value heads split over the axis "tensor" where they can be, else copied."""
    if mesh is None:
        return None
    split = mesh.shape.get("tensor", 1)
    heads = "tensor" if split > 1 and config.num_kv_heads % split == 0 else None
    return NamedSharding(mesh, PartitionSpec(None, heads))


def _column(values: Sequence[int], rows: int, padding: int) -> np.ndarray:
    column = np.full(rows, padding, np.int32)
    column[: len(values)] = values
    return column


def _sampling(rows: Sequence[int], generations: Sequence[Generation], size: int) -> SamplingRows:
    """How the rows of a batch of this size are sampled; padding rows are greedy."""
    temperature, top_p = np.zeros(size, np.float32), np.ones(size, np.float32)
    top_k, index, seed = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros((size, 2), np.uint32)
    min_p = np.zeros(size, np.float32)
    for row, generation in zip(rows, generations, strict=True):
        params = generation.request.sampling
        temperature[row], top_p[row], top_k[row] = params.temperature, params.top_p, params.top_k
        min_p[row], index[row] = params.min_p, generation.num_sampled
        seed[row] = (params.seed >> 32) & 0xFFFFFFFF, params.seed & 0xFFFFFFFF
    return SamplingRows(temperature, top_k, top_p, min_p, seed, index)
