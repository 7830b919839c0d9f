"""Checks that both front doors make."""

from typing import Any

from agentlab.errors import ConfigError


def check_made(value: Any, kind: type, name: str, *, hint: str = "") -> None:
    """Refuse an argument that is not of its class.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}, got {type(value).__name__}: {value!r:.60}.{hint}")
