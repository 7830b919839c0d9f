"""Tasks drawn from a seed: the same again on every pass, held-out ones apart from training."""

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from agentlab.errors import ConfigError, nearest
from agentlab.types import Task

Split: TypeAlias = Literal["train", "eval"]
SPLITS = ("train", "eval")
HELD_OUT_SHARE = 0.2
"""Share of all possible tasks that only the "eval" split draws."""
MAX_DRAWS = 20_000
"""Draws in a row without a usable task after which a split counts as exhausted."""

Draw: TypeAlias = Callable[[random.Random], tuple[str, Callable[[str], Task]]]
"""Draws a task: the key that says what it asks, and how it is made under an id."""


class DrawnTasks:
    """Tasks that a seed draws one after the other. Iterating again gives the same tasks again.

    Which split a task belongs to is a matter of what it asks, not of the seed: whatever is asked in
    "eval" is never asked in "train", in any process. In "eval" no task is asked twice.

    Args:
        name: Beginning of every id.
        draw: Draws one task.
        seed: The same seed draws the same tasks in every process.
        count: How many; None for no end.
        split: "train" or "eval".

    Raises:
        ConfigError: the split is unknown, or count is below 1.
    """

    def __init__(self, name: str, draw: Draw, *, seed: int, count: int | None, split: Split) -> None:
        if split not in SPLITS:
            raise ConfigError(f"There is no split {split!r}.{nearest(str(split), SPLITS)}")
        if count is not None and count < 1:
            raise ConfigError(f"count must be at least 1, or None for no end, got {count}.")
        self.name, self.seed, self.count, self.split = name, seed, count, split
        self._draw = draw

    def __iter__(self) -> Iterator[Task]:
        """The tasks.

        Raises:
            ConfigError: there are no more different ones.
        """
        rng = random.Random(f"{self.name}/{self.split}/{self.seed}")
        asked: set[str] = set()
        number = 0
        while self.count is None or number < self.count:
            make = self._next(rng, asked)
            yield make(f"{self.name}/{self.split}/{self.seed}/{number}")
            number += 1

    def __repr__(self) -> str:
        count = "endless" if self.count is None else self.count
        return f"<{self.name} tasks, {self.split}, {count}, seed {self.seed}>"

    def _next(self, rng: random.Random, asked: set[str]) -> Callable[[str], Task]:
        for _ in range(MAX_DRAWS):
            key, make = self._draw(rng)
            if is_held_out(f"{self.name}/{key}") != (self.split == "eval") or key in asked:
                continue
            if self.split == "eval":
                asked.add(key)
            return make
        raise ConfigError(
            f"{self!r} has no more tasks: {len(asked)} different ones were found. "
            "Lower count, or allow more tasks (more digits, items, prices or a larger size)."
        )


def is_held_out(key: str) -> bool:
    """Whether what this key asks is kept for evaluation; the same in every process."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64
