"""Tools that run what the model writes, Python or bash, in a sandbox."""

import functools
from typing import final

from agentlab.errors import ConfigError
from agentlab.tools.base import Tool
from agentlab.tools.sandbox import Limits, Sandbox, SandboxPool, WallName

Place = Sandbox | SandboxPool | None


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


@final
class Python(Tool):
    """Runs a Python program and answers with what it prints; the value of a last expression is shown, too.

    Args:
        sandbox: Where it runs. A `Sandbox` keeps files from call to call; a `SandboxPool` gives every
            call an empty place. None: a pool that all such tools of this process share.

    Raises:
        ConfigError: no sandbox works on this machine.
    """

    def __init__(self, sandbox: Place = None) -> None:
        self.sandbox = checked_place(sandbox)

    def __call__(self, code: str) -> str:
        """Run it.

        Args:
            code: A complete program; nothing is remembered from earlier calls.
        """
        return self.sandbox.python(code).text


@final
class Bash(Tool):
    """Runs a bash script and answers with what it prints.

    Args:
        sandbox: As of `Python`.

    Raises:
        ConfigError: no sandbox works on this machine.
    """

    def __init__(self, sandbox: Place = None) -> None:
        self.sandbox = checked_place(sandbox)

    def __call__(self, command: str) -> str:
        """Run it.

        Args:
            command: One or more lines of bash.
        """
        return self.sandbox.bash(command).text
