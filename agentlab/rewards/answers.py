"""Rewards that compare the final text with `task.data["answer"]`."""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from agentlab.errors import ConfigError, RewardError
from agentlab.rewards.score import RewardFn
from agentlab.types import Task

NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d])")
"""A decimal number, perhaps with a sign, thousands separators or a fraction."""
DECIMAL = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\d])")
"""The same, perhaps with an exponent."""


def exact(task: Task, answer: str) -> float:
    """1 where the answer is `task.data["answer"]`, spaces at the ends apart; else 0.

    Raises:
        RewardError: the task has no answer.
    """
    return float(answer.strip() == str(expected(task)).strip())


def same_number(task: Task, answer: str) -> float:
    """1 where the last number in the answer equals `task.data["answer"]`; else 0.

    1,234.50 equals 1234.5. An answer without a number earns 0.

    Raises:
        RewardError: the task has no answer, or it is not a number.
    """
    wanted = expected(task)
    try:
        number = Decimal(str(wanted).strip().replace(",", ""))
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise RewardError(f'same_number needs a number as task.data["answer"], task {task.id!r} has {wanted!r:.80}.')
    return float(last_number(answer) == number)


def numeric(*, relative: float = 1e-6, absolute: float = 0.0) -> RewardFn:
    """A reward function: 1 where the last number in the answer is near `task.data["answer"]`; else 0.

    Numbers may have thousands separators, a fraction and an exponent. An answer without one earns 0.

    Args:
        relative: Largest deviation as a share of the right number.
        absolute: Largest deviation in its own unit; the larger of the two counts.

    Raises:
        ConfigError: a tolerance is negative or not finite.
    """
    for name, value in (("relative", relative), ("absolute", absolute)):
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} must be at least 0 and finite, got {value!r}.")

    def near(task: Task, answer: str) -> float:
        wanted = expected(task)
        try:
            number = float(str(wanted).strip().replace(",", ""))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise RewardError(f'numeric needs a number as task.data["answer"], task {task.id!r} has {wanted!r:.80}.')
        found = DECIMAL.findall(answer)
        said = float(found[-1].replace(",", "")) if found else math.nan
        return float(abs(said - number) <= max(relative * abs(number), absolute))

    return near


def last_number(text: str) -> Decimal | None:
    """The last decimal number in a text; None if there is none."""
    found = NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def expected(task: Task) -> Any:
    """What `task.data["answer"]` holds.

    Raises:
        RewardError: it is missing.
    """
    answer = task.data.get("answer")
    if answer is None:
        raise RewardError(f'Task {task.id!r} must have data["answer"] for this reward, it has {sorted(task.data)}.')
    return answer
