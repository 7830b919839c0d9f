"""The sizes for which the engine's programs are compiled: all of them, declared in advance."""

from collections.abc import Sequence
from typing import NamedTuple

from agentlab.errors import ConfigError
from agentlab.types import config

OVERHEAD_TOKENS = 24
"""What a prefill costs beside its tokens: reading the weights, in tokens computed in that time."""


class PrefillSize(NamedTuple):
    """Rows of one prefill, and tokens per row."""

    rows: int
    chunk: int


@config
class Shapes:
    """The declared sizes. Every batch is padded to the smallest that holds it."""

    decode_rows: tuple[int, ...] = (1, 8, 32)
    """Sequences of one decode; the largest holds all slots."""
    prefill: tuple[PrefillSize, ...] = (PrefillSize(1, 64), PrefillSize(8, 16), PrefillSize(8, 64), PrefillSize(32, 16))
    contexts: tuple[int, ...] = (256, 512)
    """Cached tokens that a decode reads; the largest holds a slot. One row alone always reads that: it is little
    beside the weights, and a program less."""
    prefill_contexts: tuple[int, ...] = (512,)
    """Tokens of a slot that a prefill reads, its own among them; the largest holds a slot. With a row for every slot
    the cache is read in place instead."""

    def __post_init__(self) -> None:
        for name in ("decode_rows", "prefill", "contexts", "prefill_contexts"):
            sizes = getattr(self, name)
            if not sizes or any(min(size) < 1 if isinstance(size, tuple) else size < 1 for size in sizes):
                raise ConfigError(f"{name} must hold one size or more, all at least 1, got {sizes!r}.")

    def check(self, num_slots: int, tokens_per_slot: int) -> None:
        """Refuse sizes that do not hold all slots, or a whole slot.

        Raises:
            ConfigError: naming the size that is missing.
        """
        if max(self.decode_rows) < num_slots:
            raise ConfigError(f"shapes.decode_rows must reach num_slots={num_slots}, got {self.decode_rows}; add it.")
        if max(size.chunk for size in self.prefill) > tokens_per_slot:
            raise ConfigError(
                f"A chunk of shapes.prefill must fit into tokens_per_slot={tokens_per_slot}, got {self.prefill}."
            )
        for name in ("contexts", "prefill_contexts"):
            contexts = getattr(self, name)
            if max(contexts) != tokens_per_slot:
                raise ConfigError(
                    f"The largest of shapes.{name} must be tokens_per_slot={tokens_per_slot}, got {contexts}."
                )

    def fewest(self, count: int, used: "Shapes | None" = None) -> "Shapes":
        """As few of these sizes as serve `count` sequences at once: those in use and what they lack, if anything."""
        rows, prefill = (used.decode_rows, used.prefill) if used else ((), ())
        if max(rows, default=0) < count:
            rows += (self.rows_for(count),)
        wanted = min(count, max(size.rows for size in self.prefill))
        if max((size.rows for size in prefill), default=0) < wanted:
            prefill += (min(size for size in self.prefill if size.rows >= wanted),)
        contexts, prefill_contexts = (max(self.contexts),), (max(self.prefill_contexts),)
        return Shapes(decode_rows=rows, prefill=prefill, contexts=contexts, prefill_contexts=prefill_contexts)

    def rows_for(self, count: int) -> int:
        """The smallest declared number of rows that holds `count` sequences."""
        return min(rows for rows in self.decode_rows if rows >= count)

    def prefill_rows_for(self, count: int, chunk: int) -> int:
        """The smallest declared number of rows of this chunk size that holds `count` sequences."""
        return min(size.rows for size in self.prefill if size.chunk == chunk and size.rows >= count)

    def contexts_for(self, rows: int) -> tuple[int, ...]:
        """The contexts of a decode of so many rows."""
        return self.contexts if rows > 1 else (max(self.contexts),)

    def context_for(self, rows: int, length: int) -> int:
        """The smallest of them that holds `length` cached tokens."""
        return min(context for context in self.contexts_for(rows) if context >= length)

    def prefill_context_for(self, length: int) -> int:
        """The same for a prefill, whose own tokens count."""
        return min(context for context in self.prefill_contexts if context >= length)

    def prefill_for(self, pending: Sequence[int]) -> PrefillSize:
        """The size that computes the most of these pending tokens, first come first, for its cost."""

        def worth(size: PrefillSize) -> tuple[float, int]:
            useful = sum(min(tokens, size.chunk) for tokens in pending[: size.rows])
            return useful / (size.rows * size.chunk + OVERHEAD_TOKENS), useful

        return max(self.prefill, key=worth)


def default_shapes(num_slots: int, tokens_per_slot: int, chunk: int) -> Shapes:
    """Few enough to be compiled in a minute, close enough that little is padding."""
    chunk = min(chunk, tokens_per_slot)
    rows = {size for size in (1, 8, 32, 128) if size < num_slots} | {num_slots}
    few, many, short = min(8, num_slots), min(32, num_slots), max(1, chunk // 4)
    sizes = {PrefillSize(1, chunk), PrefillSize(few, short), PrefillSize(many, short), PrefillSize(few, chunk)}
    return Shapes(
        decode_rows=tuple(sorted(rows)),
        prefill=tuple(sorted(sizes)),
        contexts=tuple(sorted({max(1, tokens_per_slot // 2), tokens_per_slot})),
        prefill_contexts=(tokens_per_slot,),
    )
