"""Rewards that compare the final text with `task.data["answer"]`."""

import math
from fractions import Fraction
from typing import Any

from agentlab.errors import ConfigError, RewardError
from agentlab.numerals import last_number, only_number
from agentlab.rewards.score import RewardFn
from agentlab.types import Task


def exact(task: Task, answer: str) -> float:
    """1 where the answer is `task.data["answer"]`, spaces at the ends apart; else 0.

    Raises:
        RewardError: the task has no answer.
    """
    return float(answer.strip() == str(expected(task)).strip())


def same_number(task: Task, answer: str) -> float:
    """1 where the last number in the answer equals `task.data["answer"]`; else 0.

    Numbers are compared exactly and by value, however they are written: 1,234.50, 1 234.5 and `1{,}234.5` are
    equal; so are 0.75, 3/4 and `\\frac{3}{4}`, and 1000, 1e3 and 1×10^3; −5 and -$5 are below 0. A unit or a
    percent sign is not part of the number: 50% is 50. A fragment is no number: where the last thing with
    digits in it is an expression (10-7, 2π), a range, a date, a time, or may be read in two ways (1,23), the
    answer has no number and earns 0. After a plain = an expression's value is read (`\\sqrt{16}=4`), after ≠ or ≥
    none. Names with digits in them (x1, GPT-4), GSM8K's <<3+4=7>> and reasoning in <think>…</think> are passed over.

    Raises:
        RewardError: the task has no answer, or it is not a number.
    """
    return float(last_number(answer) == _wanted(task, "same_number"))


def numeric(*, relative: float = 1e-6, absolute: float = 0.0) -> RewardFn:
    """A reward function: 1 where the last number in the answer is near `task.data["answer"]`; else 0.

    Numbers are read as `same_number` reads them. An answer without one earns 0.

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
        number, answered = _as_float(_wanted(task, "numeric")), last_number(answer)
        if not math.isfinite(number):
            raise RewardError(f"numeric needs a number below 1e308, task {task.id!r} has a larger one.")
        deviation = math.inf if answered is None else abs(_as_float(answered) - number)
        return float(deviation <= max(relative * abs(number), absolute))

    return near


def expected(task: Task) -> Any:
    """What `task.data["answer"]` holds.

    Raises:
        RewardError: it is missing.
    """
    answer = task.data.get("answer")
    if answer is None:
        raise RewardError(f'Task {task.id!r} must have data["answer"] for this reward, it has {sorted(task.data)}.')
    return answer


def _wanted(task: Task, reward: str) -> Fraction:
    wanted = expected(task)
    number = only_number(str(wanted))
    if number is None:
        raise RewardError(f'{reward} needs a number as task.data["answer"], task {task.id!r} has {wanted!r:.80}.')
    return number


def _as_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
