"""Maps of frozen lakes to be crossed."""

import random
from collections import deque
from collections.abc import Callable, Sequence

from agentlab.errors import ConfigError
from agentlab.tasks.base import DrawnTasks, Split
from agentlab.types import Task

MOVES: dict[str, tuple[int, int]] = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""Row and column steps, in the order in which Gymnasium numbers them."""
MAX_TRIES = 1000


def frozen_lake(
    seed: int = 0,
    count: int | None = None,
    *,
    split: Split = "train",
    size: int = 4,
    holes: float = 0.2,
    prompt: str = "Cross the frozen lake to the goal without falling into a hole. Answer left, right, up or down.",
) -> DrawnTasks:
    """Tasks with a map each in `data["map"]`, whose goal can be reached, and the shortest way's length.

    Args:
        seed: The same seed draws the same maps.
        count: How many; None for no end.
        split: "eval" has only maps that "train" never has.
        size: Rows and columns.
        holes: Share of the fields that are holes.
        prompt: What the task is; the environment shows it with its first observation.

    Raises:
        ConfigError: an option is impossible.
    """
    check_lake(size, holes)

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Task]]:
        lake = draw_map(rng, size, holes)
        data = {"map": lake, "steps": len(shortest_way(lake, (0, 0)) or ()), "seed": rng.getrandbits(31)}
        return "\n".join(lake), lambda name: Task(name, prompt, data)

    return DrawnTasks("frozen_lake", draw, seed=seed, count=count, split=split)


def lake_map(seed: int, size: int = 4, holes: float = 0.2) -> tuple[str, ...]:
    """The map that a seed draws: rows of S (start), F (ice), H (hole) and G (goal).

    Raises:
        ConfigError: an option is impossible.
    """
    check_lake(size, holes)
    return draw_map(random.Random(f"lake/{seed}"), size, holes)


def check_lake(size: int, holes: float) -> None:
    """Refuse a lake that cannot be.

    Raises:
        ConfigError: it is too small or too large, or has too many holes.
    """
    if not 2 <= size <= 32:
        raise ConfigError(f"size must lie in 2 to 32, got {size}.")
    if not 0 <= holes <= 0.5:
        raise ConfigError(f"holes must lie in 0 to 0.5, got {holes}.")


def draw_map(rng: random.Random, size: int, holes: float) -> tuple[str, ...]:
    """A map with a way from the start, top left, to the goal, bottom right.

    Raises:
        ConfigError: none was found.
    """
    for _ in range(MAX_TRIES):
        fields = ["H" if rng.random() < holes else "F" for _ in range(size * size)]
        fields[0], fields[-1] = "S", "G"
        lake = tuple("".join(fields[row * size : (row + 1) * size]) for row in range(size))
        if shortest_way(lake, (0, 0)) is not None:
            return lake
    raise ConfigError(f"No map of size {size} with {holes:.0%} holes can be crossed. Lower holes.")


def shortest_way(lake: Sequence[str], start: tuple[int, int]) -> tuple[str, ...] | None:
    """The moves of a shortest way from a field to the goal, around the holes; None if there is none."""
    ways: dict[tuple[int, int], tuple[str, ...]] = {start: ()}
    waiting = deque([start])
    while waiting:
        row, column = waiting.popleft()
        if lake[row][column] == "G":
            return ways[row, column]
        for move, (down, right) in MOVES.items():
            field = (row + down, column + right)
            inside = 0 <= field[0] < len(lake) and 0 <= field[1] < len(lake[0])
            if inside and field not in ways and lake[field[0]][field[1]] != "H":
                ways[field] = (*ways[row, column], move)
                waiting.append(field)
    return None
