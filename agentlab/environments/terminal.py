"""A bash terminal in a sandbox of its own, judged by the files that are left in the end."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.environments.task import ToolEnvironment
from agentlab.errors import ConfigError, ToolError, nearest
from agentlab.rewards import Reward
from agentlab.tools import Bash, Limits, Python, Sandbox, Tool, Workspace
from agentlab.tools.code import shared_pool
from agentlab.tools.sandbox import WallName
from agentlab.types import EnvStepResult, Task

TOOLS: Mapping[str, Callable[[Sandbox], Tool]] = {"bash": Bash, "python": Python, "files": Workspace}


class Terminal(BaseTaskEnv):
    """Gives the agent a terminal in a sandbox that is its own for the episode.

    Tool calls are answered by what they print; text ends the episode. Then each of `data["checks"]`
    is held against the sandbox (see `al.tasks.terminal`); the reward is 1 if all hold. Give the agent
    the same tools, e.g. `ToolAgent(tool_map={"bash": al.tools.Bash})`.

    Args:
        task: A task with `data["files"]` and `data["checks"]`.
        tools: Which of "bash", "python" and "files" (an `al.tools.Workspace`) can be called.
        max_turns: Model calls after which the episode is cut, and judged.
        partial: Reward the share of checks that hold, not only all of them.
        limits: What each command may use.
        walls: As of an `al.tools.Sandbox`.
        max_result_chars: Characters of a command's output that the model is shown.

    Raises:
        ConfigError: an option is impossible, the task has no checks, or no sandbox works here.
    """

    def __init__(
        self,
        task: Task,
        tools: Sequence[str] = ("bash",),
        max_turns: int = 8,
        *,
        partial: bool = False,
        limits: Limits | None = None,
        walls: WallName = "auto",
        max_result_chars: int = 4000,
    ) -> None:
        super().__init__(task, max_turns=max_turns)
        self.tools = checked_tools(tools)
        self.checks = checked_checks(task)
        self.partial, self.max_result_chars = partial, max_result_chars
        self._pool = shared_pool(limits, walls)
        self._open = contextlib.ExitStack()
        self._inner: ToolEnvironment | None = None

    @classmethod
    def check_options(cls, *, tools: Any = ("bash",), **options: Any) -> None:
        """See `BaseTaskEnv.check_options`."""
        super().check_options(**options)
        checked_tools(tools)

    def _initial_observation(self) -> Any:
        self._open.close()
        sandbox = self._open.enter_context(self._pool.lend())
        sandbox.write(self.task.data.get("files", {}))
        self._inner = ToolEnvironment(
            self.task,
            {name: TOOLS[name](sandbox) for name in self.tools},
            lambda task, answer: self._judge(sandbox),
            self.max_turns or 1,
            max_result_chars=self.max_result_chars,
        )
        return self._inner.reset()

    def _step_impl(self, action: Any) -> EnvStepResult:
        assert self._inner is not None
        return self._inner.step(action)

    def close(self) -> None:
        self._open.close()

    def _judge(self, sandbox: Sandbox) -> Reward:
        share = sum(holds(sandbox, check) for check in self.checks) / len(self.checks)
        solved = float(share == 1)
        return Reward(share if self.partial else solved, {"solved": solved, "checks": share})


def holds(sandbox: Sandbox, check: Mapping[str, Any]) -> bool:
    """Whether a check holds in a sandbox: what should be there never enters it."""
    if "python" in check:
        return sandbox.run("python", check["python"]).output.strip() == check["prints"].strip()
    wanted = [check["is"]] if isinstance(check["is"], str) else check["is"]
    try:
        return sandbox.read(check["file"]).strip() in {text.strip() for text in wanted}
    except ToolError:
        return False


def checked_tools(tools: Sequence[str]) -> tuple[str, ...]:
    """Names of tools.

    Raises:
        ConfigError: there are none, or one is unknown.
    """
    if isinstance(tools, str) or not tools:
        raise ConfigError(f"tools must be a list of some of {', '.join(TOOLS)}, got {tools!r}.")
    for name in tools:
        if name not in TOOLS:
            raise ConfigError(f"The terminal has no tool {name!r}.{nearest(str(name), TOOLS)}")
    return tuple(tools)


def checked_checks(task: Task) -> tuple[Mapping[str, Any], ...]:
    """The checks of a task.

    Raises:
        ConfigError: there are none, or one is malformed.
    """
    checks = task.data.get("checks")
    if not isinstance(checks, Sequence) or not checks:
        raise ConfigError(f"Terminal needs task.data['checks']; task {task.id!r} has {sorted(task.data)}.")
    for check in checks:
        if not isinstance(check, Mapping) or set(check) not in ({"file", "is"}, {"python", "prints"}):
            raise ConfigError(
                f"A check must be {{'file': path, 'is': text}} or {{'python': program, 'prints': text}}, "
                f"task {task.id!r} has {check!r:.80}."
            )
    return tuple(checks)
