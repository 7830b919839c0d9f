"""User code played again and again, alone and two at once, so that a checker sees what differs."""

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from agentlab.errors import ConfigError
from agentlab.options import checked_option


class Trial(Protocol):
    """One instance of a user's class that is played; used by one thread."""

    playable: bool
    """False where it lacks what every other move needs."""

    def moves(self) -> Iterator[None]:
        """Plays it; each step of the iterator is a move, between which others may be played. Raises nothing."""
        ...


T = TypeVar("T", bound=Trial)


def plays_to_see(chance: float, certainty: float) -> int:
    """Plays after which something of this chance in each has shown itself at least once, with this certainty."""
    return math.ceil(math.log(1 - certainty) / math.log(1 - chance))


PLAYS = plays_to_see(0.1, 0.99)
"""What goes wrong in one play of ten is seen in so many with a probability of 0.99."""


def checked_limits(instances: Any, time_limit_s: Any) -> dict[str, Any]:
    """The options by which a checker is bounded, for `play_trials`.

    Raises:
        ConfigError: a number is impossible.
    """
    if checked_option("instances", instances, int) < 3:
        raise ConfigError(f"instances must be at least 3: one alone, and two at once. Got {instances}.")
    if not checked_option("time_limit_s", time_limit_s, float) > 0:
        raise ConfigError(f"time_limit_s must be more than 0 seconds, got {time_limit_s}.")
    return {"instances": int(instances), "time_limit_s": float(time_limit_s)}


def play_trials(make: Callable[[], T], compare: Callable[[T, T], None], *, instances: int, time_limit_s: float) -> None:
    """Play one instance alone, then others two at once, in step or one a move behind, and compare each with the first.

    At least three are played. Where the time does not suffice for all, a warning says how many were.

    Args:
        make: Makes an instance.
        compare: Given the first and each other one, when both have been played.
        instances: How many to play.
        time_limit_s: Seconds after which no more are begun.
    """
    began_s = time.monotonic()
    first = make()
    for _ in first.moves():
        pass
    if not first.playable:
        return
    played = 1
    while played < 3 or (played < instances and time.monotonic() - began_s < time_limit_s):
        pair = make(), make()
        _interleave(*(one.moves() for one in pair), lead=played // 2 % 2)
        for one in pair:
            compare(first, one)
        played += 2
    if played < instances:
        warnings.warn(
            f"Only {played} of {instances} instances were played within time_limit_s={time_limit_s:g}, so a fault that "
            "shows itself now and then may have stayed hidden. Raise time_limit_s, or give cheaper options.",
            stacklevel=4,
        )


def _interleave(one: Iterator[None], other: Iterator[None], *, lead: int) -> None:
    """Run both to their ends by turns; `one` is so many moves ahead."""
    for _ in itertools.islice(one, lead):
        pass
    for _ in itertools.zip_longest(one, other):
        pass
