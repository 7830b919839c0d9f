"""What a reward is: a finite number that can be averaged, perhaps with the parts it was summed from."""

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentlab.concurrency import as_error
from agentlab.errors import ConfigError, EpisodeError, RewardError
from agentlab.files import shown
from agentlab.types import Task

LARGEST_REWARD = 1e15
"""Neither rewards nor their parts, nor the sums of either over an episode, may lie further from 0: their
squares, added over a batch, must still be numbers in the 32 bits in which losses and gradients are computed,
and below it whole numbers are exact."""


@dataclass(frozen=True)
class Reward:
    """A reward with the parts it was made of; each part becomes a metric."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LoopReward:
    """An async reward function that is awaited on the loop that plays the episode, not on a worker:
    it waits for what lives there, such as the engine. It must never block."""

    function: "Callable[[Task, str], Awaitable[float | Reward]]"
    __name__: str = "reward"

    def __call__(self, task: Task, answer: str) -> "Awaitable[float | Reward]":
        return self.function(task, answer)


RewardFn: TypeAlias = Callable[[Task, str], float | Reward | Awaitable[float | Reward]]


def as_reward(value: Any, source: str = "the reward function") -> Reward:
    """The value as a reward: a finite number, never a stand-in for one.

    Args:
        value: What a reward function or an environment answered.
        source: Who answered it, for the error.

    Raises:
        RewardError: it is missing, a bool, text, NaN, infinite, beyond `LARGEST_REWARD` or otherwise no number.
    """
    if type(value) is float:
        return Reward(finite(value, source))
    with _reading(source):
        if isinstance(value, Reward):
            return Reward(finite(value.value, source), as_parts(value.parts, source))
        return Reward(finite(value, source))


def as_parts(parts: Any, source: str) -> dict[str, float]:
    """The parts of a reward by name; the rule for each is that for the reward.

    Raises:
        RewardError: they are no mapping, or one of them is no reward.
    """
    with _reading(source):
        if not isinstance(parts, Mapping):
            raise RewardError(f"The parts of the reward of {source} must be numbers by name, got {shown(parts):.80}.")
        named = [(shown(name, str), part) for name, part in parts.items()]
        return {name: finite(part, f"part {name!r} of {source}") for name, part in named}


def finite(value: Any, source: str) -> float:
    """The value as a float that can be averaged: the one rule for whatever is a reward, or part of one.

    Python's numbers, `Decimal`, `Fraction`, NumPy's scalars and arrays of no dimension are numbers; bools are
    none, since they often are a comparison that was meant to be counted.

    Args:
        value: What was given as a reward.
        source: Who gave it, for the error.

    Raises:
        RewardError: it is not a finite real number, or beyond `LARGEST_REWARD`.
    """
    if type(value) is float and abs(value) <= LARGEST_REWARD:
        return value
    with _reading(source):
        number = _number(value, source)
    if not math.isfinite(number):
        raise RewardError(f"The reward of {source} must be finite, got {number}. Check its logarithms and divisions.")
    if abs(number) > LARGEST_REWARD:
        raise RewardError(
            f"The reward of {source} must lie within {LARGEST_REWARD:g} of 0, got {number:g}: beyond that, means and "
            "spreads of a group cannot be computed. Scale it down, or clip it."
        )
    return number


def _number(value: Any, source: str) -> float:
    if inspect.isawaitable(value):
        raise RewardError(f"The reward of {source} was never awaited: return `await ...`, or declare it `async def`.")
    if value is None:
        raise RewardError(f"The reward of {source} must be a finite number, got None. Is a `return` missing?")
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        raise RewardError(f"The reward of {source} must be a number, got {value}. Return float(...) of it.")
    if not isinstance(value, numbers.Real) and not hasattr(value, "__float__"):
        kind = type(value).__name__
        raise RewardError(f"The reward of {source} must be a finite number, got {kind}: {shown(value):.80}.")
    if getattr(value, "ndim", 0):
        raise RewardError(f"The reward of {source} must be one number, got an array: {shown(value):.80}.")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RewardError(f"The reward of {source} must be one number, got {shown(value):.80} ({error}).") from error


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Whatever a value raises when it is looked at becomes a RewardError."""
    try:
        yield
    except EpisodeError:
        raise
    except Exception as error:  # of a class of a user's own
        raise RewardError(
            f"The reward of {source} cannot be read: {type(error).__name__}: {shown(error, str)}"
        ) from error


def combine(parts: Mapping[str, tuple[float, RewardFn]]) -> RewardFn:
    """A weighted sum of reward functions that keeps each one's own value as a part.

    Each part becomes a metric of the run, "reward/<name>". Async parts are awaited together.

    Args:
        parts: {"answer": (1.0, exact), "format": (0.1, one_call)}: weight and function by name.

    Raises:
        ConfigError: there are no parts, or a weight is not a finite number.
    """
    if not parts:
        raise ConfigError('combine needs at least one part, e.g. {"answer": (1.0, exact)}, got none.')
    for name, part in parts.items():
        if not (isinstance(part, tuple) and len(part) == 2 and callable(part[1])):
            raise ConfigError(f"Part {name!r} must be (weight, reward function), got {part!r:.80}.")
        if not isinstance(part[0], numbers.Real) or not math.isfinite(part[0]):
            raise ConfigError(f"The weight of part {name!r} must be a finite number, got {part[0]!r}.")
    if any(isinstance(function, LoopReward) for _, function in parts.values()):
        return LoopReward(_combine_async(parts), "combined")
    if any(_is_async(function) for _, function in parts.values()):
        return _combine_async(parts)

    def combined(task: Task, answer: str) -> Reward:
        return _weigh(parts, {name: function(task, answer) for name, (_, function) in parts.items()})

    return combined


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _combine_async(
    parts: Mapping[str, tuple[float, RewardFn]],
) -> Callable[[Task, str], Awaitable[Reward]]:
    async def value_of(function: RewardFn, task: Task, answer: str) -> Any:
        try:
            value = function(task, answer)
            return await value if inspect.isawaitable(value) else value
        except (SystemExit, KeyboardInterrupt) as error:  # in a task they would end the loop, and with it the run
            raise as_error(error) from error

    async def combined(task: Task, answer: str) -> Reward:
        given = await asyncio.gather(*(value_of(function, task, answer) for _, function in parts.values()))
        return _weigh(parts, dict(zip(parts, given, strict=True)))

    return combined


def _weigh(parts: Mapping[str, tuple[float, RewardFn]], values: Mapping[str, Any]) -> Reward:
    made = {name: as_reward(value, f"part {name!r}").value for name, value in values.items()}
    return Reward(float(sum(parts[name][0] * value for name, value in made.items())), made)
