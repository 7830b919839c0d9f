"""Finds what people get wrong in an environment of their own, and says how to put it right."""

import asyncio
import copy
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentlab.types import Action, EnvStepResult, Task, ToolResult, check_kwargs

METHODS = ("reset", "step", "close")


def check_environment(
    env_class: Callable[..., Any],
    task: Task,
    *,
    actions: Sequence[Any] = ("",),
    env_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """What is wrong with an environment, a sentence each with how to put it right; empty if nothing was found.

    Plays the actions in one environment, and again in two at once, on a thread without an event loop.

    Args:
        env_class: A class or any callable, as it is given to a learner.
        task: A task it can play.
        actions: What is done in it, in turn, as long as it is not done; other things than an
            `Action` are put into one.
        env_kwargs: As they are given to a learner.

    Raises:
        ConfigError: env_kwargs do not fit.
    """
    options = dict(env_kwargs or {})
    check_kwargs(env_class, options, given_as="env_kwargs", reserved=1)
    taken = [action if isinstance(action, Action) else Action(action) for action in actions]
    before = copy.deepcopy(task)
    findings: list[str] = []
    try:
        alone = _play([env_class(task, **options)], taken, findings)[0]
        if findings:
            return tuple(dict.fromkeys(findings))
        together = _play([env_class(task, **options) for _ in range(2)], taken, findings)
    except Exception as error:  # user code: whatever it raises is what is to be found
        return (*findings, f"It raised {type(error).__name__}: {error}. See the traceback by playing it by hand.")
    if task != before:
        findings.append("It changed its task, which all its episodes share. Copy what you change: dict(task.data).")
    if any(seen != alone for seen in together):
        findings.append(
            "The same actions were answered differently in another instance of the same task. Keep state on `self`, "
            "made in _initial_observation, and draw chance from a seed in task.data."
        )
    return tuple(dict.fromkeys(findings))


def _play(environments: list[Any], actions: list[Action], findings: list[str]) -> list[list[str]]:
    """Play the same actions in all environments in turns; what each of them showed."""
    for method in METHODS:
        if not callable(getattr(environments[0], method, None)):
            findings.append(f"It has no method {method}(). Derive it from BaseTaskEnv.")
    if findings:
        return [[] for _ in environments]
    seen = [_reset(environment, findings) for environment in environments]
    over = [bool(findings)] * len(environments)
    for action in actions:
        for index, environment in enumerate(environments):
            if not over[index]:
                over[index] = _step(environment, action, seen[index], findings)
    for environment in environments:
        _awaited(environment.close())
    return seen


def _reset(environment: Any, findings: list[str]) -> list[str]:
    answer = _awaited(environment.reset())
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
        findings.append(f"reset() must return (observation, info), got {answer!r:.80}. Derive it from BaseTaskEnv.")
        return []
    _check_observation(answer[0], "The first observation", findings)
    if answer[0] is None:
        findings.append("The first observation is None, so the model has nothing to go on. Return task.prompt.")
    return [repr(answer[0])]


def _step(environment: Any, action: Action, seen: list[str], findings: list[str]) -> bool:
    result = _awaited(environment.step(action))
    if not isinstance(result, EnvStepResult):
        findings.append(f"step() must return EnvStepResult(observation, reward, done, info), got {result!r:.80}.")
        return True
    _check_observation(result.observation, "An observation", findings)
    if not isinstance(result.reward, numbers.Real) or not math.isfinite(result.reward):
        findings.append(f"A reward must be a finite number, got {result.reward!r}. Return 0.0 where nothing is earned.")
    if not result.done and result.observation is None:
        findings.append("An observation is None although the episode goes on. Say what came of the action.")
    seen.append(repr((_shown(result.observation), result.reward, result.done)))
    return bool(result.done)


def _shown(observation: Any) -> Any:
    """An observation without the times in it."""
    if isinstance(observation, ToolResult):
        return observation.name, observation.text
    return [_shown(item) for item in observation] if isinstance(observation, list | tuple) else observation


def _check_observation(observation: Any, what: str, findings: list[str]) -> None:
    if observation is None or isinstance(observation, str | ToolResult):
        return
    items = observation if isinstance(observation, list | tuple) else [observation]
    if not all(isinstance(item, ToolResult) or (isinstance(item, Mapping) and "role" in item) for item in items):
        findings.append(
            f"{what} is no text but {type(observation).__name__}, and the model reads {str(observation)!r:.60}. "
            "Write in _initial_observation and _step_impl what the model should read."
        )


def _awaited(value: Any) -> Any:
    if not inspect.isawaitable(value):
        return value

    async def wait(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    return asyncio.run(wait(value))
