"""What the tracer records: the stages, a span of one stage, a reading of one counter."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from agentlab.errors import ConfigError, nearest

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
