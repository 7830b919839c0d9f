"""Checks that both front doors make."""

from typing import Any

from agentlab.errors import ConfigError
from agentlab.types import checked_option


def check_made(value: Any, kind: type, name: str, *, hint: str = "") -> None:
    """Refuse an argument that is not of its class.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}, got {type(value).__name__}: {value!r:.60}.{hint}")


def check_steps(steps: int) -> None:
    """Refuse a number of updates that is none.

    Raises:
        ConfigError: it is below 1.
    """
    if checked_option("steps", steps, int) < 1:
        raise ConfigError(f"steps must be at least 1, got {steps}.")
