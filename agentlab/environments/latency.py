"""An environment that takes real time, as a remote one would."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentlab.tools.slow import check_delay, drawn_delay
from agentlab.types import Task


class Latency:
    """Makes environments whose every step takes longer; itself usable as an `env_class`.

    A stand-in for a remote environment or tool: the time is real, the work is not.

    Args:
        env_class: A class or any callable that makes the environment.
        seconds: Mean time that a step takes beyond its own.
        jitter: Largest deviation from it, in seconds, drawn evenly.
        seed: The same steps of the same task under the same seed take the same time.

    Raises:
        ConfigError: the times are negative, not finite, or jitter exceeds seconds.
    """

    def __init__(self, env_class: Callable[..., Any], seconds: float, *, jitter: float = 0.0, seed: int = 0) -> None:
        check_delay(seconds, jitter)
        self.env_class = env_class
        self.seconds, self.jitter, self.seed = seconds, jitter, seed
        self.__name__ = f"Latency({getattr(env_class, '__name__', 'environment')})"
        self.__signature__ = inspect.signature(env_class)

    def __call__(self, task: Task, **env_kwargs: Any) -> "DelayedEnvironment":
        environment = self.env_class(task, **env_kwargs)
        return DelayedEnvironment(environment, lambda turn: self._delay(task, turn))

    def _delay(self, task: Task, turn: int) -> float:
        return drawn_delay(self.seconds, self.jitter, self.seed, getattr(task, "id", task), turn)


class DelayedEnvironment:
    """One environment with a wait in each step; owned by whoever steps it."""

    def __init__(self, environment: Any, delay_s: Callable[[int], float]) -> None:
        self.environment = environment
        self._delay_s = delay_s
        self._turn = 0

    def reset(self) -> Any:
        self._turn = 0
        return self.environment.reset()

    def step(self, action: Any) -> Any:
        delay_s = self._delay_s(self._turn)
        self._turn += 1
        result = self.environment.step(action)
        if inspect.isawaitable(result):
            return self._later(result, delay_s)
        time.sleep(delay_s)
        return result

    async def _later(self, result: Awaitable[Any], delay_s: float) -> Any:
        await asyncio.sleep(delay_s)
        return await result

    def close(self) -> Any:
        return self.environment.close()
