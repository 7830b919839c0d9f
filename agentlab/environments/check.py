"""Finds what people get wrong in an environment of their own, and says how to put it right."""

import asyncio
import copy
import inspect
import math
import numbers
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.tracing.blocking import apart, blocking_calls
from agentlab.types import Action, EnvStepResult, Task, ToolResult, check_kwargs

METHODS = ("reset", "step", "close")


@apart
def check_environment(
    env_class: Callable[..., Any],
    task: Task,
    *,
    actions: Sequence[Any] = ("",),
    env_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """What is wrong with an environment, a sentence each with how to put it right; empty if nothing was found.

    Plays the actions in one environment, and again in two at once, on a thread without an event loop.
    It finds: methods that are missing or answer with the wrong thing, a reward that is no number, an
    observation that is no text, a task that is changed, state that instances share or chance without a
    seed, things that are opened and not closed, and calls that block in an async method.

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
    _check_close(environments[0], findings)
    over = [bool(findings)] * len(environments)
    for action in actions:
        for index, environment in enumerate(environments):
            if not over[index]:
                over[index] = _step(environment, action, seen[index], findings)
    for environment in environments:
        _awaited(environment.close(), "close", findings)
        _check_closed(environment, findings)
    return seen


def _check_close(environment: Any, findings: list[str]) -> None:
    """Whether it has a close() of its own, where it holds something that must be closed."""
    held = [name for name, value in vars(environment).items() if _must_be_closed(value)]
    if held and isinstance(environment, BaseTaskEnv) and type(environment).close is BaseTaskEnv.close:
        closing = "; ".join(f"self.{name}.close()" for name in held)
        findings.append(f"It holds {', '.join(held)} but has no close(). Write `def close(self): {closing}`.")


def _check_closed(environment: Any, findings: list[str]) -> None:
    left_open = [name for name, value in vars(environment).items() if getattr(value, "closed", None) is False]
    if left_open:
        findings.append(
            f"close() left {', '.join(left_open)} open. Close {'it' if len(left_open) == 1 else 'them'} there."
        )


def _must_be_closed(value: Any) -> bool:
    held = callable(getattr(value, "close", None)) and not isinstance(value, type)
    return (held or isinstance(value, subprocess.Popen)) and not inspect.isgenerator(value)


def _reset(environment: Any, findings: list[str]) -> list[str]:
    answer = _awaited(environment.reset(), "_initial_observation", findings)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
        findings.append(f"reset() must return (observation, info), got {answer!r:.80}. Derive it from BaseTaskEnv.")
        return []
    _check_observation(answer[0], "The first observation", findings)
    if answer[0] is None:
        findings.append("The first observation is None, so the model has nothing to go on. Return task.prompt.")
    return [repr(answer[0])]


def _step(environment: Any, action: Action, seen: list[str], findings: list[str]) -> bool:
    result = _awaited(environment.step(action), "_step_impl", findings)
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


def _awaited(value: Any, method: str, findings: list[str]) -> Any:
    """The value, awaited where it must be; what blocks meanwhile is a finding."""
    if not inspect.isawaitable(value):
        return value
    blocked: list[str] = []

    async def wait(awaitable: Awaitable[Any]) -> Any:
        with blocking_calls(blocked):
            return await awaitable

    answer = asyncio.run(wait(value))
    if blocked:
        findings.append(
            f"The async method {method} blocks the loop that all episodes share: {blocked[0]}. Write it without "
            "`async` (it then runs on a worker), or await something that does not block, e.g. asyncio.sleep."
        )
    return answer
