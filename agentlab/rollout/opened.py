"""An environment that is open: one call at a time, on a worker where it blocks, closed exactly once."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

from agentlab.concurrency import VirtualClockLoop, WorkerCall, WorkerPool
from agentlab.errors import EnvironmentError_, nearest
from agentlab.files import shown
from agentlab.rewards import as_parts, as_reward
from agentlab.types import EnvStepResult, Truncation

TRUNCATIONS: tuple[Truncation, ...] = get_args(Truncation)
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
    """What `reset` gave.

    Raises:
        EnvironmentError_: it is not an observation and a dictionary.
    """
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    raise EnvironmentError_(f"reset() must return (observation, info dictionary), got {shown(result):.80}.")


def step_result(result: Any) -> EnvStepResult:
    """What `step` gave, with plain values where the rollout reads them: reward, done, and of the info what it knows.

    Raises:
        EnvironmentError_: it is no `EnvStepResult`, or its info is no dictionary or has an unknown "truncation".
        RewardError: the reward, or a part of it, is no reward; see `rewards.finite`.
    """
    if not isinstance(result, EnvStepResult):
        kind = type(result).__name__
        raise EnvironmentError_(f"step() must return an EnvStepResult, got {kind}: {shown(result):.80}.")
    if not isinstance(result.info, Mapping):
        raise EnvironmentError_(f"The info of a step must be a dictionary, got {shown(result.info):.80}; return {{}}.")
    info, reward = dict(result.info), as_reward(result.reward, "step")
    if reward.parts or "reward_parts" in info:
        info["reward_parts"] = {**reward.parts, **as_parts(info.get("reward_parts", {}), "step")}
    if info.get("truncation") is not None:
        said = shown(info["truncation"], str)
        if said not in TRUNCATIONS:
            raise EnvironmentError_(f'info["truncation"] is unknown: {said!r}.{nearest(said, TRUNCATIONS)}')
        info["truncation"] = said
    return EnvStepResult(result.observation, reward.value, bool(result.done), info)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
