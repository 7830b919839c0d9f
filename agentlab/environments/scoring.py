"""Reward functions and async user code, called from an environment's own step."""

import asyncio
import inspect
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from agentlab.environments.parts import part
from agentlab.errors import EnvironmentError_, EpisodeError, RewardError
from agentlab.files import shown
from agentlab.rewards import LoopReward, Reward, RewardFn, as_reward
from agentlab.types import Task


def score(reward_fn: RewardFn, task: Task, answer: str) -> Reward | Awaitable[Reward]:
    """The reward of an answer; an awaitable of it where the function is a `LoopReward`.

    Raises:
        RewardError: the function raised, or its value is not a finite number.
    """
    name = getattr(reward_fn, "__name__", type(reward_fn).__name__)
    if isinstance(reward_fn, LoopReward):
        return _score_later(reward_fn, task, answer, name)
    with part("reward", name), _reward_errors(name):
        value = resolved(reward_fn(task, answer))
    return as_reward(value, name)


async def _score_later(reward_fn: LoopReward, task: Task, answer: str, name: str) -> Reward:
    with part("reward", name), _reward_errors(name):
        value = await reward_fn(task, answer)
    return as_reward(value, name)


@contextmanager
def _reward_errors(name: str) -> Iterator[None]:
    """Whatever a reward function raises becomes a RewardError."""
    try:
        yield
    except EpisodeError:
        raise
    except (Exception, SystemExit) as error:  # user code: whatever it raises, the reward is missing
        raise RewardError(f"{name} raised {type(error).__name__}: {shown(error, str)}") from error


def resolved(value: Any) -> Any:
    """The value, awaited here if it must be: steps run on a worker thread, which has no loop of its own.

    Raises:
        EnvironmentError_: this thread runs an event loop.
    """
    if not inspect.isawaitable(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(value))
    if inspect.iscoroutine(value):
        value.close()
    raise EnvironmentError_(
        "An async tool or reward cannot be awaited inside a step that runs on an event loop. "
        "Step the environment on a thread: `await asyncio.to_thread(env.step, action)`."
    )


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
