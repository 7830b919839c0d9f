"""Tools that run what the model writes, Python or bash, in a sandbox."""

import functools
from typing import final

from agentlab.errors import ConfigError
from agentlab.tools.base import Tool
from agentlab.tools.sandbox import Limits, Sandbox, SandboxPool, WallName

Place = Sandbox | SandboxPool | None
MAX_CHARS = 3000
"""Less than a `ToolEnvironment` shows, so that the end of an output, with the error, is never cut off."""


@functools.cache
def shared_pool(limits: Limits | None = None, walls: WallName = "auto") -> SandboxPool:
    """The pool of all tools and environments that were given no sandbox; it lasts as long as the process."""
    return SandboxPool(limits=limits, walls=walls)


def checked_place(sandbox: Place) -> Sandbox | SandboxPool:
    """The sandbox or pool that was given, or the one that all share.

    Raises:
        ConfigError: it is something else, or no sandbox works here.
    """
    if sandbox is None:
        return shared_pool()
    if not isinstance(sandbox, Sandbox | SandboxPool):
        raise ConfigError(f"sandbox must be a Sandbox, a SandboxPool or None, got {type(sandbox).__name__}.")
    return sandbox


def checked_max_chars(max_chars: int) -> int:
    """How many characters of an output are shown.

    Raises:
        ConfigError: fewer than 100.
    """
    if max_chars < 100:
        raise ConfigError(f"max_chars must be at least 100, got {max_chars}.")
    return max_chars


@final
class Python(Tool):
    """Runs a Python program and answers with what it prints; the value of a last expression is shown, too.

    Args:
        sandbox: Where it runs. A `Sandbox` keeps files from call to call; a `SandboxPool` gives every
            call an empty place. None: a pool that all such tools of this process share.
        max_chars: Of a longer output the model is shown the beginning and the end.

    Raises:
        ConfigError: an option is impossible, or no sandbox works on this machine.
    """

    def __init__(self, sandbox: Place = None, *, max_chars: int = MAX_CHARS) -> None:
        self.sandbox = checked_place(sandbox)
        self.max_chars = checked_max_chars(max_chars)

    def __call__(self, code: str) -> str:
        """Run it.

        Args:
            code: A complete program; nothing is remembered from earlier calls.
        """
        return self.sandbox.python(code).shown(self.max_chars)


@final
class Bash(Tool):
    """Runs a bash script and answers with what it prints.

    Args:
        sandbox: As of `Python`.
        max_chars: As of `Python`.

    Raises:
        ConfigError: an option is impossible, or no sandbox works on this machine.
    """

    def __init__(self, sandbox: Place = None, *, max_chars: int = MAX_CHARS) -> None:
        self.sandbox = checked_place(sandbox)
        self.max_chars = checked_max_chars(max_chars)

    def __call__(self, command: str) -> str:
        """Run it.

        Args:
            command: One or more lines of bash.
        """
        return self.sandbox.bash(command).shown(self.max_chars)
