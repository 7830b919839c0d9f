"""Which episode of which group is being played, for environments that several episodes share."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """An episode among those that are played at the same time."""

    rollout: int
    """Which rollout plays it: training and evaluation may play groups of the same name at once."""
    group: str
    episode: int


_place: ContextVar[Place | None] = ContextVar("agentlab_place", default=None)


def current_place() -> Place | None:
    """The episode in which this code runs, on the loop or on a worker; None outside of a rollout."""
    return _place.get()


@contextmanager
def playing(place: Place) -> Iterator[None]:
    """The body plays this episode."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)
