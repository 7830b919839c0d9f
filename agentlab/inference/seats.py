"""Who sits in which row of a decode, so that what a row has read from the cache stays read."""

from collections.abc import Sequence
from typing import NamedTuple

from agentlab.inference.scheduler import Generation


class Seating(NamedTuple):
    """Rows of the generations of one decode."""

    rows: list[int]
    """Row of each generation."""
    stale: list[int]
    """Those rows whose slot must be read from the cache again."""


class Seats:
    """Rows of the current decode size. Owned by the engine's thread."""

    def __init__(self) -> None:
        self._seated: list[tuple[Generation, int] | None] = []

    def clear(self, num_rows: int) -> None:
        """Empty rows, this many: nothing has been read."""
        self._seated = [None] * num_rows

    def seat(self, generations: Sequence[Generation]) -> Seating:
        """Keep those who sit where they sit, and give the others free rows, which are stale."""
        kept = {entry[0]: row for row, entry in enumerate(self._seated) if entry is not None}
        taken = {kept[generation] for generation in generations if generation in kept}
        free = iter([row for row in range(len(self._seated)) if row not in taken])
        rows = [kept[generation] if generation in kept else next(free) for generation in generations]
        pairs = list(zip(rows, generations, strict=True))
        stale = [row for row, generation in pairs if self._seated[row] != (generation, len(generation.cached))]
        self._seated = [None] * len(self._seated)
        return Seating(rows, stale)

    def hold(self, row: int, generation: Generation, length: int) -> None:
        """Note that the row now holds this many cached tokens of the generation."""
        self._seated[row] = generation, length
