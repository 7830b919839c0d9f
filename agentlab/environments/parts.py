"""Parts of a step that take time of their own, told to whoever watches, so that each has a deadline."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal, get_args

from agentlab.errors import ConfigError, nearest
from agentlab.files import shown
from agentlab.tracing import span

StepPart = Literal["tool", "reward"]
PARTS: tuple[StepPart, ...] = get_args(StepPart)
Watch = Callable[[StepPart, str], Callable[[], Any]]
"""Told of a part and its name as it begins, on the thread that does it; gives what to call at its end."""

_watch: ContextVar[Watch | None] = ContextVar("agentlab_step_watch", default=None)


@contextlib.contextmanager
def part(kind: StepPart, name: str) -> Iterator[None]:
    """Do a tool call or a reward in the body: traced, and under the deadline that the rollout has for it.

    For environments that call tools or rewards themselves; works on any thread and in async code.

    Args:
        kind: Which deadline holds: `tool_timeout_s` or `reward_timeout_s`.
        name: Of the tool or reward function, for traces and messages.

    Raises:
        ConfigError: there is no such kind of part.
    """
    if kind not in PARTS:
        raise ConfigError(f"There is no part of a step of the kind {kind!r}.{nearest(str(kind), PARTS)}")
    name = shown(name, str)
    watch = _watch.get()
    end = None if watch is None else watch(kind, name)
    try:
        with span(kind, **{kind: name}):
            yield
    finally:
        if end is not None:
            end()


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Tell `watch` of every part that begins in the body, also on threads and tasks started there."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
