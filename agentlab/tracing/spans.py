"""What the tracer records: the stages, a span of one stage, a reading of one counter."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from agentlab.errors import ConfigError, nearest
from agentlab.files import shown

Stage = Literal[
    "rollout",
    "queue",
    "train",
    "weight_sync",
    "evaluation",
    "checkpoint",
    "data",
    "compile",
    "load",
    "model_call",
    "queueing",
    "prefill",
    "decode",
    "reset",
    "step",
    "tool",
    "reward",
    "agent",
    "close",
    "advantage",
    "pack",
    "forward_backward",
    "optimizer",
]
"""What a span of time was spent on. prefill, decode, forward_backward, optimizer and weight_sync are device work."""

STAGES: frozenset[str] = frozenset(get_args(Stage))


class Span(NamedTuple):
    """A stretch of time that one thread or task spent on one stage; times are `now_ns()` readings."""

    stage: str
    start_ns: int
    end_ns: int
    thread: str = ""
    tags: Mapping[str, Any] = {}

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


_PLAIN = frozenset({int, float, bool, str, type(None)})


MOST_DEEP = 16
"""Lists in each other that a tag keeps as such."""


def plain_tag(value: Any, depth: int = 0) -> Any:
    """A tag as what can be kept and read anywhere: a number, a text, a tuple of these.

    Anything else becomes the text that `str` shows of it, and so does what lies deeper than MOST_DEEP.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if (kind is tuple or kind is list) and depth < MOST_DEEP:
        return tuple([plain_tag(item, depth + 1) for item in value])
    return shown(value, str)


def flat(tags: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tags as they are kept: all names, then all values.

    The collector of garbage would look at a dictionary again and again for as long as it is kept, at
    a tuple of numbers and texts only once.
    """
    return (*tags, *tags.values())


def tags_of(context: Sequence[Any], mine: Sequence[Any]) -> dict[str, Any]:
    """Flat tags of a context and of a span in it, which win, as a dictionary of plain ones."""
    size = len(context) // 2
    tags = dict(zip(context[:size], context[size:], strict=True))
    if mine:
        size = len(mine) // 2
        tags.update(zip(mine[:size], mine[size:], strict=True))
    for value in tags.values():
        if type(value) not in _PLAIN:
            return {name: plain_tag(value) for name, value in tags.items()}
    return tags


class Reading(NamedTuple):
    """The value of a counter at one moment."""

    name: str
    time_ns: int
    value: float


def check_stage(stage: str) -> None:
    """Refuse an unknown stage.

    Raises:
        ConfigError: names the nearest stage.
    """
    if stage not in STAGES:
        raise ConfigError(f"A span's stage must be one of tracing.Stage, got {stage!r}.{nearest(str(stage), STAGES)}")
