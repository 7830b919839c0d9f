"""Number games: a number to be guessed, and a target to be reached with given numbers."""

import operator
import random
from collections.abc import Callable

from agentlab.errors import ConfigError
from agentlab.tasks.base import DrawnTasks, Split
from agentlab.types import Task

STEPS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MAX_TRIES = 1000


def guess_number(
    seed: int = 0,
    count: int | None = None,
    *,
    split: Split = "train",
    low: int = 1,
    high: int = 100,
    prompt: str = "I think of a whole number from {low} to {high}. Guess it; I say whether mine is higher or lower.",
) -> DrawnTasks:
    """Tasks for `al.environments.GuessNumber`, with the number in `data["number"]`.

    Args:
        seed: The same seed draws the same numbers.
        count: How many; None for no end.
        split: "eval" has only numbers that "train" never has.
        low: The smallest number.
        high: The largest.
        prompt: How it is asked; {low} and {high} are filled in.

    Raises:
        ConfigError: an option is impossible.
    """
    if not low < high:
        raise ConfigError(f"low must be below high, got {low} and {high}.")
    text = prompt.replace("{low}", str(low)).replace("{high}", str(high))

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Task]]:
        number = rng.randint(low, high)
        data = {"low": low, "high": high, "number": number}
        return f"{low} {high} {number}", lambda name: Task(name, text, data)

    return DrawnTasks("guess_number", draw, seed=seed, count=count, split=split)


def countdown(
    seed: int = 0,
    count: int | None = None,
    *,
    split: Split = "train",
    numbers: int = 4,
    largest: int = 25,
    targets: tuple[int, int] = (10, 100),
    prompt: str = "Use each of the numbers {numbers} at most once, with + - * / and parentheses, to make {target}.",
) -> DrawnTasks:
    """Tasks for `al.environments.Countdown`; each can be solved, and one way is in `data["solution"]`.

    Args:
        seed: The same seed draws the same tasks.
        count: How many; None for no end.
        split: "eval" asks only what "train" never asks.
        numbers: How many numbers are given.
        largest: The largest of them; the smallest is 1.
        targets: The smallest and the largest target.
        prompt: How it is asked; must contain {numbers} and {target}.

    Raises:
        ConfigError: an option is impossible.
    """
    if not 2 <= numbers <= 8 or largest < 2:
        raise ConfigError(f"numbers must lie in 2 to 8 and largest be at least 2, got {numbers} and {largest}.")
    if not 1 <= targets[0] <= targets[1]:
        raise ConfigError(f"targets must be the smallest and the largest, both at least 1, got {targets}.")
    if "{numbers}" not in prompt or "{target}" not in prompt:
        raise ConfigError(f"prompt must contain {{numbers}} and {{target}}, got {prompt!r}.")

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Task]]:
        given, target, solution = _solvable(rng, numbers, largest, targets)
        shown = ", ".join(map(str, given))
        text = prompt.replace("{numbers}", shown).replace("{target}", str(target))
        data = {"numbers": tuple(given), "target": target, "solution": solution}
        return f"{sorted(given)} {target}", lambda name: Task(name, text, data)

    return DrawnTasks("countdown", draw, seed=seed, count=count, split=split)


def _solvable(rng: random.Random, count: int, largest: int, targets: tuple[int, int]) -> tuple[list[int], int, str]:
    for _ in range(MAX_TRIES):
        given = [rng.randint(1, largest) for _ in range(count)]
        parts = [(number, str(number)) for number in rng.sample(given, rng.randint(2, count))]
        while len(parts) > 1:
            (left, said_left), (right, said_right) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
            symbol = rng.choice(list(STEPS))
            parts.append((STEPS[symbol](left, right), f"({said_left} {symbol} {said_right})"))
        target, solution = parts[0]
        if targets[0] <= target <= targets[1] and target not in given:
            return given, target, solution[1:-1]
    raise ConfigError(f"No targets in {targets} were found with {count} numbers up to {largest}. Widen targets.")
