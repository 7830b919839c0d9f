"""An environment that is open: one call at a time, on a worker where it blocks, closed exactly once."""

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

from agentlab.concurrency import VirtualClockLoop, WorkerCall, WorkerPool
from agentlab.errors import EnvironmentError_, RewardError, nearest
from agentlab.types import EnvStepResult, Truncation

Begin = Callable[[], None]
"""Told when a call begins, after any wait for a free worker: its deadline counts from there."""


class OpenEnvironment:
    """One environment: one call at a time, closed exactly once; owned by the loop.

    A synchronous call runs on a worker. If its deadline passes, nobody else touches the
    environment: the worker closes it when the call comes back. On a virtual clock, which is only
    for code without threads, it runs on the loop and takes no time.
    """

    def __init__(self, make: Callable[[], Any], pool: WorkerPool):
        self._make, self._pool = make, pool
        self._environment: Any = None
        self._call: WorkerCall[Any] | None = None
        self._closed = False

    async def reset(self, begin: Begin) -> Any:
        """Make the environment and reset it; like `step`, tells `begin` when a worker is free for it."""
        await self._invoke(begin, self._build)
        return await self._invoke(begin, self._environment.reset)

    async def step(self, begin: Begin, action: Any) -> Any:
        return await self._invoke(begin, self._environment.step, action)

    async def close(self, begin: Begin) -> None:
        """Close it, unless a late call still holds it: then the worker does. Never waits for a worker."""
        late = self._call is not None and self._call.abandoned
        if self._closed or late or self._environment is None:
            return
        self._closed = True
        await self._invoke(begin, self._environment.close, at_once=True)

    async def _invoke(self, begin: Begin, fn: Callable[..., Any], *args: Any, at_once: bool = False) -> Any:
        if inspect.iscoroutinefunction(fn) or isinstance(asyncio.get_running_loop(), VirtualClockLoop):
            begin()
            result = fn(*args)
        else:
            call = self._call = self._pool.prepare(fn, *args, on_late=self._close_late, at_once=at_once)
            try:
                result = await call.wait(begin)
            finally:
                if not call.abandoned:  # kept, it would make a cycle, and the episode's objects garbage that stays
                    self._call = None
        return await result if inspect.isawaitable(result) else result

    def _build(self) -> None:
        self._environment = self._make()

    def _close_late(self) -> None:
        if self._environment is None or self._closed:
            return
        self._closed = True
        closing = self._environment.close()
        if inspect.isawaitable(closing):
            asyncio.run(_awaited(closing))


def reset_result(result: Any) -> tuple[Any, Any]:
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    raise EnvironmentError_(f"reset() must return (observation, info dictionary), got {result!r:.80}.")


def step_result(result: Any) -> EnvStepResult:
    if not isinstance(result, EnvStepResult):
        raise EnvironmentError_(f"step() must return an EnvStepResult, got {type(result).__name__}: {result!r:.80}.")
    if not isinstance(result.info, Mapping):
        raise EnvironmentError_(f"The info of a step must be a dictionary, got {result.info!r:.80}; return {{}}.")
    parts = result.info.get("reward_parts", {})
    if not isinstance(parts, Mapping) or not all(isinstance(part, numbers.Real) for part in parts.values()):
        raise RewardError(f'info["reward_parts"] must be numbers by name, got {parts!r:.80}.')
    truncation = result.info.get("truncation")
    if truncation is not None and truncation not in get_args(Truncation):
        raise EnvironmentError_(
            f'info["truncation"] is unknown: {truncation!r}.{nearest(str(truncation), get_args(Truncation))}'
        )
    return result


def finite_reward(reward: Any) -> float:
    if isinstance(reward, numbers.Real) and math.isfinite(reward):
        return float(reward)
    raise RewardError(f"A reward must be a finite number, got {reward!r:.80}; return 0.0 for no reward.")


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
