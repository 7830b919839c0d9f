"""Tools around tools: a time limit, retries, a rate, and a memory of answers; sync and async alike."""

import abc
import asyncio
import collections
import copy
import dataclasses
import enum
import inspect
import json
import math
import queue
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, final

from agentlab.concurrency import GivenUp, LimitedCalls
from agentlab.errors import ConfigError, ToolError
from agentlab.tools.base import FunctionTool, Tool, as_tool
from agentlab.types import Task, ToolSpec


class Wrapped(Tool):
    """A tool around another: described as that one, and bound to a task with it.

    Subclasses write `__call__`, which may answer plainly or with an awaitable, as the inner tool does.

    Args:
        tool: A tool as in a `tool_map`.
    """

    def __init__(self, tool: Any) -> None:
        self.tool = as_tool(tool)

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the inner tool, with what is around it."""

    def spec(self, name: str) -> ToolSpec:
        return self.tool.spec(name)

    def checked_arguments(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.tool.checked_arguments(spec, arguments)

    def bind(self, task: Task) -> Tool:
        """Itself, unless the inner tool has one of its own for this task: then a copy around that one."""
        bound = self.tool.bind(task)
        return self if bound is self.tool else self._around(bound)

    def close(self) -> Any:
        return self.tool.close()

    def _around(self, tool: Tool) -> Tool:
        """The same around another tool; what is remembered of answers begins anew."""
        made = copy.copy(self)
        made.tool = tool
        return made


def is_async(tool: Tool) -> bool:
    """Whether calling the tool gives an awaitable."""
    inner = tool
    while isinstance(inner, Wrapped):
        inner = inner.tool
    called = inner.function if isinstance(inner, FunctionTool) else inner.__call__
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None))  # noqa: B004


@final
class Timeout(Wrapped):
    """Gives a call up after a time, and tells the model so; the episode goes on.

    A call of an `async def` tool is cancelled. A plain function cannot be stopped by anybody: it runs on
    by itself, on a thread of its own, and what it does later is lost. Let code that may run for ever
    run in a sandbox (al.tools.Python) instead.

    Args:
        tool: A tool as in a `tool_map`.
        seconds: What a call may take.
        max_left: Calls of a plain function that may be left running by all episodes together; while there
            are as many, further calls fail at once.

    Raises:
        ConfigError: seconds is not above 0, or max_left is below 1.
    """

    def __init__(self, tool: Any, seconds: float, *, max_left: int = 32) -> None:
        super().__init__(tool)
        if not (math.isfinite(seconds) and seconds > 0):
            raise ConfigError(f"seconds must be finite and above 0, got {seconds}.")
        if max_left < 1:
            raise ConfigError(f"max_left must be at least 1, got {max_left}.")
        self.seconds = seconds
        self._calls = LimitedCalls(max_left)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_async(self.tool):
            return self._later(args, kwargs)
        try:
            return self._calls.call(self.seconds, self.tool, *args, **kwargs)
        except GivenUp as error:
            raise ToolError(str(error)) from error

    async def _later(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                return await self.tool(*args, **kwargs)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ToolError(f"It took longer than {self.seconds:g} s and was given up.") from error


@final
class Retry(Wrapped):
    """Calls again when a call fails by an error that may pass, waiting longer each time.

    Args:
        tool: A tool as in a `tool_map`.
        attempts: Calls at most.
        wait_s: Seconds before the second call; each further wait is twice as long.
        on: Errors that are worth another call. A `ToolError` outside of these is final.

    Raises:
        ConfigError: an option is impossible.
    """

    def __init__(
        self,
        tool: Any,
        attempts: int = 3,
        *,
        wait_s: float = 0.5,
        on: tuple[type[Exception], ...] = (ConnectionError, TimeoutError, OSError),
    ) -> None:
        super().__init__(tool)
        if attempts < 1 or not (math.isfinite(wait_s) and wait_s >= 0):
            raise ConfigError(f"attempts must be at least 1 and wait_s 0 or more, got {attempts} and {wait_s}.")
        kinds = on if isinstance(on, tuple) else (on,)
        if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise ConfigError(f"on must be a tuple of classes of errors, got {on!r:.80}.")
        self.attempts, self.wait_s, self.on = attempts, wait_s, kinds

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_async(self.tool):
            return self._later(args, kwargs)
        for attempt in range(1, self.attempts):
            try:
                return self.tool(*args, **kwargs)
            except self.on:
                time.sleep(self.wait_s * 2 ** (attempt - 1))
        return self.tool(*args, **kwargs)

    async def _later(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        for attempt in range(1, self.attempts):
            try:
                return await self.tool(*args, **kwargs)
            except self.on:
                await asyncio.sleep(self.wait_s * 2 ** (attempt - 1))
        return await self.tool(*args, **kwargs)


@final
class RateLimit(Wrapped):
    """Lets calls begin no more often than a service allows; the others wait their turn. All episodes share it.

    Args:
        tool: A tool as in a `tool_map`.
        per_second: Calls that may begin in a second, evenly spaced.

    Raises:
        ConfigError: per_second is not above 0.
    """

    def __init__(self, tool: Any, per_second: float) -> None:
        super().__init__(tool)
        if not (math.isfinite(per_second) and per_second > 0):
            raise ConfigError(f"per_second must be finite and above 0, got {per_second}.")
        self.per_second = per_second
        self._next: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._next.put(0.0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wait_s = self._reserve()
        if is_async(self.tool):
            return self._later(wait_s, args, kwargs)
        time.sleep(wait_s)
        return self.tool(*args, **kwargs)

    async def _later(self, wait_s: float, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        await asyncio.sleep(wait_s)
        return await self.tool(*args, **kwargs)

    def _reserve(self) -> float:
        """Take the next free moment; seconds until it comes."""
        now = time.monotonic()
        begin = max(now, self._next.get())
        self._next.put(begin + 1 / self.per_second)
        return begin - now


@final
class Cache(Wrapped):
    """Remembers what a tool answered, and answers the same call again without it. Errors are not remembered.

    Only for tools whose answer depends on their arguments alone. All episodes share it, unless the
    tool answers from a task's data: then each episode has its own.

    Args:
        tool: A tool as in a `tool_map`.
        size: Answers that are kept; the one that was not asked for longest goes first.

    Raises:
        ConfigError: size is below 1.
    """

    def __init__(self, tool: Any, size: int = 1024) -> None:
        super().__init__(tool)
        if size < 1:
            raise ConfigError(f"size must be at least 1, got {size}.")
        self.size = size
        self.hits = 0
        self._kept: queue.SimpleQueue[collections.OrderedDict[str, Any]] = queue.SimpleQueue()
        self._kept.put(collections.OrderedDict())

    def __call__(self, **arguments: Any) -> Any:
        key = key_of(arguments)
        found = self._use(lambda kept: (kept[key], kept.move_to_end(key)) if key in kept else None)
        if found is not None:
            self.hits += 1
            return _ready(found[0]) if is_async(self.tool) else found[0]
        return then(self.tool(**arguments), lambda answer: self._keep(key, answer))

    def _around(self, tool: Tool) -> Tool:
        return Cache(tool, self.size)

    def _keep(self, key: str, answer: Any) -> Any:
        def put(kept: collections.OrderedDict[str, Any]) -> None:
            kept[key] = answer
            kept.move_to_end(key)
            if len(kept) > self.size:
                kept.popitem(last=False)

        self._use(put)
        return answer

    def _use(self, do: Callable[[collections.OrderedDict[str, Any]], Any]) -> Any:
        """Do something with what is kept, one thread at a time."""
        kept = self._kept.get()
        try:
            return do(kept)
        finally:
            self._kept.put(kept)


def key_of(arguments: Mapping[str, Any]) -> str:
    """Arguments as text: the same for the same arguments in any order."""
    return json.dumps(as_json(arguments), sort_keys=True, ensure_ascii=False)


def as_json(value: Any) -> Any:
    """A value as JSON has it, the same in every process: what was made of an argument is turned back."""
    if value is None or (isinstance(value, str | int | float | bool) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(as_json(key)): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(as_json, value), key=lambda item: json.dumps(item, sort_keys=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    from pydantic import BaseModel
    from pydantic_core import to_jsonable_python

    if isinstance(value, BaseModel):
        return {name: as_json(item) for name, item in value}
    return to_jsonable_python(value, fallback=repr)


def then(value: Any, after: Callable[[Any], Any]) -> Any:
    """`after(value)`, now or when the value is awaited."""
    return _await_then(value, after) if inspect.isawaitable(value) else after(value)


async def _await_then(value: Awaitable[Any], after: Callable[[Any], Any]) -> Any:
    return after(await value)


async def _ready(value: Any) -> Any:
    return value
