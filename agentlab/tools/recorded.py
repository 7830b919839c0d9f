"""Answers of a tool recorded in a file, and played again for training that can be repeated."""

import collections
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, final

from agentlab.errors import ConfigError, ToolError, nearest
from agentlab.options import id_of_json
from agentlab.tools.base import Tool, as_text
from agentlab.tools.wrapped import Wrapped, is_async, key_of
from agentlab.types import Task, TaskId

ON_MISSING = ("raise", "call", "record")
Line = Mapping[str, Any]


@final
class Record(Wrapped):
    """Calls a tool and writes every call with its answer, or its error, to a file of JSON lines.

    Args:
        tool: A tool as in a `tool_map`.
        path: The file; calls are appended to what is there.

    Raises:
        ConfigError: the folder does not exist.
    """

    def __init__(self, tool: Any, path: str | Path) -> None:
        super().__init__(tool)
        self.path = checked_path(path)
        self._task: TaskId = ""

    def bind(self, task: Task) -> Tool:
        made = Record(self.tool.bind(task), self.path)
        made._task = task.id
        return made

    def __call__(self, **arguments: Any) -> Any:
        if is_async(self.tool):
            return self._later(arguments)
        try:
            answer = self.tool(**arguments)
        except Exception as error:  # written down, whatever it is, and raised again
            self._write(arguments, error=error)
            raise
        return self._write(arguments, answer)

    async def _later(self, arguments: Mapping[str, Any]) -> Any:
        try:
            answer = await self.tool(**arguments)
        except Exception as error:  # as above
            self._write(arguments, error=error)
            raise
        return self._write(arguments, answer)

    def _write(self, arguments: Mapping[str, Any], answer: Any = None, *, error: Exception | None = None) -> Any:
        line: dict[str, Any] = {"task": self._task, "arguments": json.loads(key_of(arguments))}
        if error is None:
            line["answer"] = as_text(answer)
        else:
            line |= {"error": str(error), "kind": type(error).__name__}
        data = (json.dumps(line, ensure_ascii=True) + "\n").encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, data)  # one write: lines of several threads do not mix
        finally:
            os.close(handle)
        return answer


@final
class Replay(Wrapped):
    """Answers as a recorded tool did, without calling it.

    The n-th time an episode makes the same call it gets the n-th answer recorded for its task, and
    the last one from then on. Where a task has none for this call, any other task's is taken, in
    the order of the file.

    Args:
        tool: The tool that was recorded; it describes itself, and is called only as `on_missing` says.
        path: A file that `Record` wrote.
        on_missing: What to do for a call that was never recorded: "raise" a ToolError that the model
            reads; "call" the tool; or call it and "record" the answer in the same file.

    Raises:
        ConfigError: the file is missing or malformed, or on_missing is unknown.
    """

    def __init__(
        self, tool: Any, path: str | Path, *, on_missing: Literal["raise", "call", "record"] = "raise"
    ) -> None:
        super().__init__(tool)
        if on_missing not in ON_MISSING:
            raise ConfigError(f"There is no on_missing {on_missing!r}.{nearest(str(on_missing), ON_MISSING)}")
        self.path, self.on_missing = checked_path(path), on_missing
        if on_missing != "record" and not self.path.is_file():
            raise ConfigError(f"There is no recording {str(self.path)!r}. Make it with al.tools.Record(tool, path).")
        self.lines: Mapping[tuple[TaskId, str], tuple[Line, ...]] = read_recording(self.path)
        self._task: TaskId = ""
        self._asked: collections.Counter[str] = collections.Counter()

    def bind(self, task: Task) -> Tool:
        made = self._around(self.tool.bind(task))
        assert isinstance(made, Replay)
        made._task, made._asked = task.id, collections.Counter()
        return made

    def __call__(self, **arguments: Any) -> Any:
        key = key_of(arguments)
        lines = self.lines.get((self._task, key)) or self.lines.get(("", key))
        if lines is None:
            return self._missing(arguments)
        line = lines[min(self._asked[key], len(lines) - 1)]
        self._asked[key] += 1
        if "error" in line:
            raise ToolError(line["error"])
        return _ready(line["answer"]) if is_async(self.tool) else line["answer"]

    def _missing(self, arguments: Mapping[str, Any]) -> Any:
        if self.on_missing == "raise":
            raise ToolError(f"This call was never recorded: {key_of(arguments):.200}.")
        if self.on_missing == "call":
            return self.tool(**arguments)
        recorder = Record(self.tool, self.path)
        recorder._task = self._task
        return recorder(**arguments)


def read_recording(path: Path) -> dict[tuple[TaskId, str], tuple[Line, ...]]:
    """The lines of a recording by task and arguments, and by arguments alone under the task "".

    Raises:
        ConfigError: a line is malformed.
    """
    found: dict[tuple[TaskId, str], list[Line]] = collections.defaultdict(list)
    for number, text in enumerate(_lines(path), 1):
        try:
            line = json.loads(text)
            key = key_of(line["arguments"])
            line["answer" if "answer" in line else "error"]
            for task in {id_of_json(line["task"]), ""}:
                found[task, key].append(line)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"Line {number} of the recording {str(path)!r} is malformed: {error!r}.") from error
    return {key: tuple(lines) for key, lines in found.items()}


def _lines(path: Path) -> Iterable[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()


def checked_path(path: str | Path) -> Path:
    """Where a recording is, or will be.

    Raises:
        ConfigError: its folder does not exist.
    """
    found = Path(path).expanduser().resolve()
    if not found.parent.is_dir() or found.is_dir():
        raise ConfigError(f"path must be a file in an existing folder, got {str(path)!r}.")
    return found


async def _ready(value: Any) -> Any:
    return value
