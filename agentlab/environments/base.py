"""What every environment is: reset, step and close, checked once here for all of them."""

import abc
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from agentlab.errors import ConfigError, EnvironmentError_
from agentlab.rewards import Reward, as_reward
from agentlab.types import EnvStepResult, Task


class BaseTaskEnv(abc.ABC):
    """An environment for one episode of one task, owned by whoever steps it.

    Subclasses write `_initial_observation()` and `_step_impl(action)`, plainly or as `async def`,
    and `close()` if they hold something. `reset` and `step` then answer plainly or with an
    awaitable, as the subclass does.

    Args:
        task: What to do; never changed.
        max_turns: Steps after which the episode is cut, with info["truncation"] = "max_turns".
            None leaves that to the rollout.

    Raises:
        ConfigError: max_turns is below 1.
    """

    def __init__(self, task: Task, *, max_turns: int | None = None) -> None:
        BaseTaskEnv.check_options(max_turns=max_turns)
        self.task = task
        self.max_turns = max_turns
        self.turn = 0
        """Steps taken before the current one."""
        self._done: bool | None = None

    @classmethod
    def check_options(cls, *, max_turns: int | None = None, **_: Any) -> None:
        """Refuse keyword arguments with which no task could be played: told when a learner is made, before any task.

        Raises:
            ConfigError: one is impossible.
        """
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1):
            raise ConfigError(
                f"max_turns must be a whole number of at least 1, or None for no limit, got {max_turns!r}."
            )

    # -- what subclasses write --------------------------------------------------------------------

    @abc.abstractmethod
    def _initial_observation(self) -> Any:
        """What the agent sees first; (observation, info) works, too, as a Gymnasium reset answers."""

    @abc.abstractmethod
    def _step_impl(self, action: Any) -> Any:
        """What comes of an `Action`, as an `EnvStepResult`."""

    def close(self) -> Any:
        """Give back what the environment holds; called once, whatever happened. Sync or async."""
        return None

    # -- what callers call ------------------------------------------------------------------------

    def reset(self) -> Any:
        """Begin the episode: (observation, info), or an awaitable of it."""
        self.turn = 0
        self._done = None
        return self._then(self._initial_observation(), self._begin)

    def step(self, action: Any) -> Any:
        """Take one step: an `EnvStepResult`, or an awaitable of it.

        Where `_step_impl` answered with a `Reward` that has parts, they are in info["reward_parts"].

        Raises:
            EnvironmentError_: not reset, over already, or `_step_impl` answered with something else.
            RewardError: the reward is not a finite number.
        """
        if self._done is None:
            raise EnvironmentError_(f"{type(self).__name__} must be reset before it is stepped. Call reset() first.")
        if self._done:
            raise EnvironmentError_(f"The episode of {type(self).__name__} is over. Call reset() before another step.")
        return self._then(self._step_impl(action), self._finish)

    @property
    def is_last_turn(self) -> bool:
        """Whether the current step is the last that max_turns allows."""
        return self.max_turns is not None and self.turn + 1 >= self.max_turns

    def _then(self, value: Any, after: Callable[[Any], Any]) -> Any:
        return self._await_then(value, after) if inspect.isawaitable(value) else after(value)

    async def _await_then(self, value: Awaitable[Any], after: Callable[[Any], Any]) -> Any:
        return after(await value)

    def _begin(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self._done = False
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            first, info = observation
            if "role" not in info:
                return first, dict(info)
        return observation, {}

    def _finish(self, result: Any) -> EnvStepResult:
        if not isinstance(result, EnvStepResult):
            raise EnvironmentError_(
                f"{type(self).__name__}._step_impl must return EnvStepResult(observation, reward, done, info), "
                f"got {type(result).__name__}: {result!r:.80}."
            )
        if not isinstance(result.info, Mapping):
            raise EnvironmentError_(
                f"The info of {type(self).__name__} must be a dictionary, got {type(result.info).__name__}. "
                "Return {} if there is nothing to say."
            )
        reward: Reward = as_reward(result.reward, f"{type(self).__name__}.step")
        done, info = bool(result.done), dict(result.info)
        if reward.parts:
            info["reward_parts"] = dict(reward.parts)
        if self.is_last_turn and not done:
            done, info["truncation"] = True, "max_turns"
        self.turn += 1
        self._done = done
        return replace(result, reward=reward.value, done=done, info=info)


def check_environment_options(env_class: Any, options: Mapping[str, Any]) -> None:
    """Refuse options of an environment of ours with which no task could be played; what is wrapped is looked into.

    A class with a constructor of a user's own may mean something else by a name, and is not asked.

    Raises:
        ConfigError: one is impossible.
    """
    if isinstance(env_class, functools.partial):
        check_environment_options(env_class.func, {**env_class.keywords, **options})
    elif isinstance(env_class, type):
        maker = next(kind for kind in env_class.__mro__ if "__init__" in vars(kind))
        if issubclass(maker, BaseTaskEnv) and maker.__module__.startswith(f"{__package__}."):
            maker.check_options(**options)
    elif isinstance(inner := getattr(env_class, "env_class", None), type):
        check_environment_options(inner, options)
