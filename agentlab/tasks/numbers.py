"""Arithmetic to be worked out."""

import operator
import random
from collections.abc import Callable, Sequence

from agentlab.errors import ConfigError
from agentlab.tasks.base import DrawnTasks, Split
from agentlab.types import Task

OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
STRENGTH = {"+": 1, "-": 1, "*": 2}


def arithmetic(
    seed: int = 0,
    count: int | None = None,
    *,
    split: Split = "train",
    digits: int | tuple[int, int] = 2,
    operators: str | Sequence[str] = "+-*",
    terms: int = 2,
    prompt: str = "What is {expression}?",
) -> DrawnTasks:
    """Tasks such as "What is 47 * 36?", with the answer in `data["answer"]`.

    Args:
        seed: The same seed draws the same tasks.
        count: How many; None for no end.
        split: "eval" asks only what "train" never asks.
        digits: Digits of each number, or the fewest and the most.
        operators: Which of + - * occur.
        terms: Numbers in an expression.
        prompt: How it is asked; must contain {expression}.

    Raises:
        ConfigError: an option is impossible.
    """
    fewest, most = (digits, digits) if isinstance(digits, int) else digits
    if not 1 <= fewest <= most <= 12:
        raise ConfigError(f"digits must lie in 1 to 12, the fewest first, got {digits}.")
    if not operators or any(symbol not in OPERATIONS for symbol in operators):
        raise ConfigError(f"operators must be some of + - *, got {operators!r}.")
    if not 2 <= terms <= 10:
        raise ConfigError(f"terms must lie in 2 to 10, got {terms}.")
    if "{expression}" not in prompt:
        raise ConfigError(f"prompt must contain {{expression}}, got {prompt!r}.")

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Task]]:
        numbers = [_number(rng, rng.randint(fewest, most)) for _ in range(terms)]
        symbols = [rng.choice(operators) for _ in range(terms - 1)]
        words = [str(numbers[0])] + [f"{symbol} {n}" for symbol, n in zip(symbols, numbers[1:], strict=True)]
        expression = " ".join(words)
        data = {"answer": str(value_of(numbers, symbols)), "expression": expression}
        return expression, lambda name: Task(name, prompt.replace("{expression}", expression), data)

    return DrawnTasks("arithmetic", draw, seed=seed, count=count, split=split)


def _number(rng: random.Random, digits: int) -> int:
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def value_of(numbers: Sequence[int], symbols: Sequence[str]) -> int:
    """The value of numbers with operators between them; * binds more strongly than + and -."""
    values, waiting = [numbers[0]], list[str]()
    for symbol, number in zip(symbols, numbers[1:], strict=True):
        while waiting and STRENGTH[waiting[-1]] >= STRENGTH[symbol]:
            _reduce(values, waiting)
        values.append(number)
        waiting.append(symbol)
    while waiting:
        _reduce(values, waiting)
    return values[0]


def _reduce(values: list[int], waiting: list[str]) -> None:
    right, left = values.pop(), values.pop()
    values.append(OPERATIONS[waiting.pop()](left, right))
