"""A tool that takes real time, as a remote service would."""

import math
import random
import time
from collections.abc import Mapping
from typing import Any, final

from agentlab.errors import ConfigError
from agentlab.tools.base import Tool, as_tool
from agentlab.tools.wrapped import as_json
from agentlab.types import Task, ToolSpec


@final
class Slow(Tool):
    """Stands in for a remote tool: waits, then calls the tool that it wraps.

    Args:
        tool: A tool as in a `tool_map`.
        seconds: Mean time that a call takes beyond the tool's own.
        jitter: Largest deviation from it, in seconds, drawn evenly.
        seed: The same arguments under the same seed take the same time.

    Raises:
        ConfigError: the times are negative, not finite, or jitter exceeds seconds.
    """

    def __init__(self, tool: Any, seconds: float, *, jitter: float = 0.0, seed: int = 0) -> None:
        check_delay(seconds, jitter)
        self.tool = as_tool(tool)
        self.seconds, self.jitter, self.seed = seconds, jitter, seed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(drawn_delay(self.seconds, self.jitter, self.seed, args, sorted(as_json(kwargs).items())))
        return self.tool(*args, **kwargs)

    def spec(self, name: str) -> ToolSpec:
        return self.tool.spec(name)

    def checked_arguments(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.tool.checked_arguments(spec, arguments)

    def bind(self, task: Task) -> Tool:
        bound = self.tool.bind(task)
        return self if bound is self.tool else Slow(bound, self.seconds, jitter=self.jitter, seed=self.seed)


def check_delay(seconds: float, jitter: float) -> None:
    """Refuse a delay that cannot be.

    Raises:
        ConfigError: it is negative, not finite, or jitter exceeds seconds.
    """
    if not (math.isfinite(seconds) and 0 <= jitter <= seconds):
        raise ConfigError(
            f"seconds must be finite with 0 <= jitter <= seconds, got seconds={seconds}, jitter={jitter}."
        )


def drawn_delay(seconds: float, jitter: float, *what: Any) -> float:
    """A delay in seconds, the same for the same things in every process."""
    return seconds + jitter * random.Random(repr(what)).uniform(-1, 1) if jitter else seconds
