"""Who runs next, in which slot, from which cached prefix. Pure Python: it knows no arrays."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from agentlab.inference.shapes import Shapes
from agentlab.inference.stopping import stop_string_end
from agentlab.types import FinishReason, GenerationRequest

MIN_SHARED = 8
"""Tokens of another slot's prefix below which computing them again is cheaper than sharing them."""


@dataclass(eq=False)
class Generation:
    """A request on its way to a completion. Owned by the engine's thread."""

    ticket: int
    request: GenerationRequest
    submitted_ns: int = 0
    tokens: list[int] = field(default_factory=list)
    """Prompt and sampled tokens."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    slot: "Slot | None" = None
    continues: bool = False
    """Whether the slot holds an earlier turn of the same session."""
    begun: bool = False
    """Whether it has its cached prefix, or knows that there is none."""
    num_cached: int = 0
    """Prompt tokens found in the cache."""
    begun_ns: int = 0
    first_token_ns: int = 0
    reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def sampled(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_sampled(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def pending(self) -> int:
        """Tokens not yet in the cache; 1 means ready to decode."""
        return len(self.tokens) - len(self.cached)

    @property
    def cached(self) -> list[int]:
        assert self.slot is not None, "a generation without a slot has no cache"
        return self.slot.cached


@dataclass(eq=False)
class Slot:
    """A row of the cache, which is also an entry of the prefix cache. Owned by the engine's thread."""

    index: int
    cached: list[int] = field(default_factory=list)
    """The tokens whose keys and values it holds, in order."""
    fresh: bool = True
    """Whether all of them were computed under the installed policy."""
    session: str | None = None
    """The conversation it belongs to, until that is released."""
    generation: Generation | None = None
    used: int = 0
    """Clock of its last use."""


@dataclass(frozen=True)
class Copy:
    """Copy the first `length` tokens of one slot to another."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Chunk:
    """Put `length` pending tokens of a generation into the cache."""

    generation: Generation
    length: int


@dataclass(frozen=True)
class Plan:
    """One step of the engine: copies, and then one prefill or one decode, or neither."""

    copies: tuple[Copy, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    """One row each of a prefill."""
    chunk_size: int = 0
    """Tokens per row of the compiled program that fits the chunks."""
    decoded: tuple[Generation, ...] = ()
    num_steps: int = 0


class Scheduler:
    """Slots, waiting requests and the prefix cache. Owned by the engine's thread.

    A request goes on in its session's slot when that is free, else it takes the slot that was least
    recently used, conversations in progress last. The longest prefix of its prompt that any slot
    holds is copied. While a running request is about to compute a longer one, it waits for that, so
    that a group's prompt is computed once.

    What other sessions computed is shared only if it was computed under the installed policy. A
    session's own conversation keeps its cache over a change of policy.

    Args:
        num_slots: Most requests in progress.
        tokens_per_slot: Most tokens of prompt and completion.
        shapes: Sizes of the compiled programs.
        max_dispatch: Most decode steps in one plan.
        stop_token_ids: End every completion.
        tokenizer: Decodes tokens for stop strings.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        tokens_per_slot: int,
        shapes: Shapes,
        max_dispatch: int,
        stop_token_ids: Sequence[int],
        tokenizer: Any,
    ):
        self.slots = tuple(Slot(index) for index in range(num_slots))
        self.waiting: deque[Generation] = deque()
        self.tokens_prefilled = 0
        self.tokens_cached = 0
        self.tokens_sampled = 0
        self._tokens_per_slot = tokens_per_slot
        self.shapes = shapes
        """Sizes that may be used now."""
        self._max_dispatch = max_dispatch
        self._stop_token_ids = frozenset(stop_token_ids)
        self._tokenizer = tokenizer
        self._running: dict[int, Generation] = {}
        self._clock = count(1)
        self._decode_next = False

    # -- what comes in ----------------------------------------------------------------------------

    @property
    def running(self) -> tuple[Generation, ...]:
        """Generations that hold a slot, oldest first."""
        return tuple(self._running.values())

    @property
    def has_work(self) -> bool:
        return bool(self._running or self.waiting)

    @property
    def num_served(self) -> int:
        """Requests that hold a slot or would if all of them were given out."""
        return min(len(self._running) + len(self.waiting), len(self.slots))

    def submit(self, generation: Generation) -> None:
        """Queue a request; its prompt must leave room for a token."""
        assert 0 < len(generation.tokens) < self._tokens_per_slot, "the prompt leaves no room in a slot"
        self.waiting.append(generation)

    def abort(self, ticket: int) -> None:
        """Forget a request wherever it is; nothing happens when it has ended."""
        if ticket in self._running:
            self._finish(self._running[ticket], "abort")
        self.waiting = deque(g for g in self.waiting if g.ticket != ticket)

    def release(self, session: str) -> None:
        """Let the session's slots be evicted first; what they hold can still be shared."""
        for slot in self.slots:
            if slot.session == session:
                slot.session = None

    def policy_changed(self, *, recompute: bool) -> None:
        """Nothing cached so far is shared any more; with `recompute` it is thrown away altogether."""
        for slot in self.slots:
            slot.fresh = not slot.cached
            if recompute:
                slot.cached, slot.fresh = [], True

    # -- schedule ---------------------------------------------------------------------------------

    def schedule(self, *, now_ns: int = 0, max_steps: int | None = None) -> Plan:
        """The next step; an empty plan when there is nothing to do.

        Prefill and decode take turns, so that a running sequence never waits more than one chunk.

        Args:
            now_ns: Written down as the end of the queueing of those that begin.
            max_steps: Most decode steps now, if fewer than `max_dispatch`.
        """
        self._admit()
        copies = self._begin(now_ns)
        begun = [g for g in self._running.values() if g.begun]
        prefilled = [g for g in begun if g.pending > 1]
        decoded = [g for g in begun if g.pending == 1]
        if prefilled and not (decoded and self._decode_next):
            self._decode_next = True
            return self._prefill(copies, prefilled)
        self._decode_next = False
        if not decoded:
            return Plan(copies)
        num_steps = min(max_steps or self._max_dispatch, max(map(self.room, decoded)), self._max_dispatch)
        if prefilled:
            num_steps = 1
        elif self.waiting:
            num_steps = min(num_steps, max(1, self._max_dispatch // 2))
        return Plan(copies, decoded=tuple(decoded), num_steps=num_steps)

    def room(self, generation: Generation) -> int:
        """Tokens that a generation may still sample."""
        in_slot = self._tokens_per_slot - len(generation.tokens)
        return min(generation.request.sampling.max_tokens - generation.num_sampled, in_slot)

    def _admit(self) -> None:
        while self.waiting and (slot := self._slot_for(self.waiting[0].request.session)):
            generation = self.waiting.popleft()
            generation.slot = slot
            generation.continues = slot.session == generation.request.session
            slot.generation, slot.session = generation, generation.request.session
            slot.used = next(self._clock)
            self._running[generation.ticket] = generation

    def _slot_for(self, session: str) -> Slot | None:
        free = [slot for slot in self.slots if slot.generation is None]
        own = [slot for slot in free if slot.session == session]
        by_worth = min(free, key=lambda s: (bool(s.cached), s.session is not None, s.fresh, s.used), default=None)
        return own[0] if own else by_worth

    def _begin(self, now_ns: int) -> tuple[Copy, ...]:
        """Give admitted generations the longest prefix that there is, unless a longer one is coming."""
        copies: list[Copy] = []
        for generation in self._running.values():
            if generation.begun:
                continue
            source, length = self._best_prefix(generation, {copy.target for copy in copies})
            coming, most = self._coming(generation), len(generation.tokens) - 1
            if coming >= length + (1 if coming == most else MIN_SHARED):
                continue
            target = generation.slot
            assert target is not None
            if source is not target:
                copies.append(Copy(source.index, target.index, length))
            target.cached = source.cached[:length]
            target.fresh = source.fresh or not length
            generation.begun, generation.begun_ns = True, now_ns
            generation.num_cached = length
            self.tokens_cached += length
        return tuple(copies)

    def _best_prefix(self, generation: Generation, written: set[int]) -> tuple[Slot, int]:
        """The slot that holds the longest prefix of the prompt, and its length; its own if in doubt.

        Args:
            written: Slots that this plan's copies overwrite; they hold nothing yet.
        """
        own = generation.slot
        assert own is not None
        most = len(generation.tokens) - 1
        usable = own.fresh or generation.continues
        best, length = own, min(most, common_prefix(own.cached, generation.tokens)) if usable else 0
        for slot in self.slots:
            if slot is own or not slot.fresh or slot.index in written or len(slot.cached) < length + MIN_SHARED:
                continue
            shared = min(most, common_prefix(slot.cached, generation.tokens))
            if shared >= length + MIN_SHARED:
                best, length = slot, shared
        return best, length

    def _coming(self, generation: Generation) -> int:
        """Length of the longest prefix of the prompt that a running prefill is about to compute."""
        providers = [g for g in self._running.values() if g.begun and g.pending > 1 and g.slot and g.slot.fresh]
        shared = (common_prefix(g.tokens, generation.tokens) for g in providers)
        return min(max(shared, default=0), len(generation.tokens) - 1)

    def _prefill(self, copies: tuple[Copy, ...], generations: list[Generation]) -> Plan:
        size = self.shapes.prefill_for([g.pending for g in generations])
        chunks = (Chunk(g, min(g.pending, size.chunk)) for g in generations[: size.rows])
        return Plan(copies, chunks=tuple(chunks), chunk_size=size.chunk)

    # -- postprocess ------------------------------------------------------------------------------

    def prefilled(self, chunk: Chunk, token: int, logprob: float, version: int) -> None:
        """A chunk is in the cache. Its sampled token counts if nothing of the sequence was left."""
        generation = chunk.generation
        whole = generation.pending == chunk.length
        begin = len(generation.cached)
        generation.cached.extend(generation.tokens[begin : begin + chunk.length])
        self.tokens_prefilled += chunk.length
        if whole:
            self._accept(generation, [token], [logprob], version)

    def decoded(self, generation: Generation, tokens: list[int], logprobs: list[float], version: int) -> None:
        """Tokens were sampled; all but the last of the sequence are in the cache."""
        self.tokens_prefilled += not generation.num_sampled
        generation.cached.extend([generation.tokens[-1], *tokens[:-1]])
        self._accept(generation, tokens, logprobs, version)

    def _accept(self, generation: Generation, tokens: list[int], logprobs: list[float], version: int) -> None:
        sampling = generation.request.sampling
        before = generation.num_sampled
        sampled = [*generation.sampled, *tokens]
        ends = self._stop_token_ids.union(sampling.stop_token_ids)
        by_token = next((before + n + 1 for n, token in enumerate(tokens) if token in ends), None)
        by_string = stop_string_end(sampled, sampling.stop, self._tokenizer, start=before) if sampling.stop else None
        end = min((n for n in (by_token, by_string) if n is not None), default=None)
        kept = len(tokens) if end is None else end - before
        generation.tokens += tokens[:kept]
        generation.logprobs += logprobs[:kept]
        generation.versions += [version] * kept
        del generation.cached[len(generation.tokens) :]
        self.tokens_sampled += kept
        if end is not None:
            self._finish(generation, "stop")
        elif generation.num_sampled >= sampling.max_tokens:
            self._finish(generation, "length")
        elif self.room(generation) < 1:
            self._finish(generation, "context")

    def _finish(self, generation: Generation, reason: FinishReason) -> None:
        generation.reason = reason
        del self._running[generation.ticket]
        assert generation.slot is not None
        generation.slot.generation = None
        generation.slot.used = next(self._clock)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    low = 0  # a[:low] == b[:low], and they differ before `length`
    while low + 1 < length:
        middle = (low + length) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            length = middle
    return low
