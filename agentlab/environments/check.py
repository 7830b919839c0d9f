"""Finds what people get wrong in an environment of their own, and says how to put it right."""

import asyncio
import copy
import inspect
import math
import numbers
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.options import described
from agentlab.tracing.blocking import apart, blocking_calls
from agentlab.tracing.trials import PLAYS, checked_limits, play_trials
from agentlab.types import Action, EnvStepResult, Task, ToolResult, check_kwargs

METHODS = ("reset", "step", "close")


@apart
def check_environment(
    env_class: Callable[..., Any],
    task: Task,
    *,
    actions: Sequence[Any] = ("",),
    env_kwargs: Mapping[str, Any] | None = None,
    instances: int = PLAYS,
    time_limit_s: float = 20.0,
) -> tuple[str, ...]:
    """All that is wrong with an environment, a sentence each with how to put it right; empty if nothing was found.

    Plays the actions in one environment, then in others, two at once, on a thread without an event loop.
    It finds: methods that are missing or answer with the wrong thing, a reward that is no number, an
    observation that is no text, a task that is changed, state that instances share or chance without a
    seed, errors, things that are opened and not closed, and calls that block in an async method.

    Args:
        env_class: A class or any callable, as it is given to a learner.
        task: A task it can play.
        actions: What is done in it, in turn, as long as it is not done; other things than an
            `Action` are put into one.
        env_kwargs: As they are given to a learner.
        instances: How many are played, at least 3. What goes wrong in one of ten is seen in 44 with probability 0.99.
        time_limit_s: Seconds after which no more are begun; then a warning says how many were played.

    Raises:
        ConfigError: env_kwargs do not fit, or a number is impossible.
    """
    options = dict(env_kwargs or {})
    check_kwargs(env_class, options, given_as="env_kwargs", reserved=1)
    limits = checked_limits(instances, time_limit_s)
    taken = [action if isinstance(action, Action) else Action(action) for action in actions]
    before = copy.deepcopy(task)
    findings: dict[str, str] = {}

    def compare(first: Played, other: Played) -> None:
        if other.seen != first.seen:
            findings["differs"] = (
                "The same actions were answered differently in another instance of the same task. Keep state on "
                "`self`, made in _initial_observation, and draw chance from a seed in task.data."
            )

    play_trials(lambda: Played(lambda: env_class(task, **options), taken, findings), compare, **limits)
    if task != before:
        findings["task"] = "It changed its task, which all its episodes share. Copy what you change: dict(task.data)."
    return tuple(findings.values())


class Played:
    """One environment that is played; used by one thread.

    Args:
        make: Makes the environment.
        actions: What is done in it.
        findings: What is wrong, by kind, of all that are played; the first of a kind is kept.
    """

    def __init__(self, make: Callable[[], Any], actions: Sequence[Action], findings: dict[str, str]):
        self.playable = True
        self.seen: list[Any] = []
        """What it answered, as JSON."""
        self._make, self._actions, self._findings = make, actions, findings

    def moves(self) -> Iterator[None]:
        """Play it as the rollout does."""
        environment = self._tried("__init__", self._make)
        if environment is _RAISED or not self._has_methods(environment):
            return
        over = not self._reset(environment)
        self._check_close(environment)
        for action in self._actions:
            if over:
                break
            yield
            over = self._step(environment, action)
        yield
        self._tried("close", environment.close)
        self._check_closed(environment)

    def _has_methods(self, environment: Any) -> bool:
        for method in METHODS:
            if not callable(getattr(environment, method, None)):
                self.playable = False
                self._find(f"no {method}", f"It has no method {method}(). Derive it from BaseTaskEnv.")
        return self.playable

    def _reset(self, environment: Any) -> bool:
        """Begin the episode; whether it can be played on."""
        answer = self._tried("reset", environment.reset, blames="_initial_observation")
        if answer is _RAISED:
            return False
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
            self._find(
                "reset", f"reset() must return (observation, info), got {answer!r:.80}. Derive it from BaseTaskEnv."
            )
            return True
        self._check_observation(answer[0], "The first observation")
        if answer[0] is None:
            self._find(
                "nothing first",
                "The first observation is None, so the model has nothing to go on. Return task.prompt.",
            )
        self.seen.append(_shown(answer[0]))
        return True

    def _step(self, environment: Any, action: Action) -> bool:
        """Take an action; whether the episode is over."""
        result = self._tried("step", lambda: environment.step(action), blames="_step_impl")
        if result is _RAISED:
            return True
        if not isinstance(result, EnvStepResult):
            self._find(
                "step", f"step() must return EnvStepResult(observation, reward, done, info), got {result!r:.80}."
            )
            return True
        self._check_observation(result.observation, "An observation")
        if not isinstance(result.reward, numbers.Real) or not math.isfinite(result.reward):
            self._find(
                "reward",
                f"A reward must be a finite number, got {result.reward!r:.80}. Return 0.0 where nothing is earned.",
            )
        if not result.done and result.observation is None:
            self._find("nothing", "An observation is None although the episode goes on. Say what came of the action.")
        self.seen.append([_shown(result.observation), _shown(result.reward), bool(result.done)])
        return bool(result.done)

    def _tried(self, method: str, call: Callable[[], Any], *, blames: str = "") -> Any:
        """What a method of the environment gives, awaited where it must be; _RAISED if it raised."""
        blocked: list[str] = []
        try:
            answer = call()
            if inspect.isawaitable(answer):
                answer = asyncio.run(_watched(answer, blocked))
        except Exception as error:  # user code: whatever it raises is what is to be found
            self.seen.append(["raised", type(error).__name__])
            self._find(
                f"raised {type(error).__name__} in {method}",
                f"It raised {type(error).__name__} in {method}: {error}. See the traceback by playing it by hand.",
            )
            answer = _RAISED
        if blocked:
            self._find(
                f"blocks in {method}",
                f"The async method {blames or method} blocks the loop that all episodes share: {blocked[0]}. Write it "
                "without `async` (it then runs on a worker), or await something that does not block, e.g. "
                "asyncio.sleep.",
            )
        return answer

    def _check_close(self, environment: Any) -> None:
        """Whether it has a close() of its own, where it holds something that must be closed."""
        held = [name for name, value in _attributes(environment).items() if _must_be_closed(value)]
        if held and isinstance(environment, BaseTaskEnv) and type(environment).close is BaseTaskEnv.close:
            closing = "; ".join(f"self.{name}.close()" for name in held)
            self._find(
                "no close", f"It holds {', '.join(held)} but has no close(). Write `def close(self): {closing}`."
            )

    def _check_closed(self, environment: Any) -> None:
        left = [name for name, value in _attributes(environment).items() if getattr(value, "closed", None) is False]
        if left:
            self._find(
                "left open", f"close() left {', '.join(left)} open. Close {'it' if len(left) == 1 else 'them'} there."
            )

    def _check_observation(self, observation: Any, what: str) -> None:
        if observation is None or isinstance(observation, str | ToolResult):
            return
        items = observation if isinstance(observation, list | tuple) else [observation]
        if not all(isinstance(item, ToolResult) or (isinstance(item, Mapping) and "role" in item) for item in items):
            self._find(
                what,
                f"{what} is no text but {type(observation).__name__}, and the model reads {str(observation)!r:.60}. "
                "Write in _initial_observation and _step_impl what the model should read.",
            )

    def _find(self, kind: str, finding: str) -> None:
        self._findings.setdefault(kind, finding)


_RAISED = object()


def _attributes(environment: Any) -> Mapping[str, Any]:
    return getattr(environment, "__dict__", {})


def _must_be_closed(value: Any) -> bool:
    held = callable(getattr(value, "close", None)) and not isinstance(value, type)
    return (held or isinstance(value, subprocess.Popen)) and not inspect.isgenerator(value)


def _shown(observation: Any) -> Any:
    """An observation as JSON, without the times in it."""
    if isinstance(observation, ToolResult):
        return [observation.name, observation.text]
    if isinstance(observation, list | tuple):
        return [_shown(item) for item in observation]
    return described(observation, inside=True)


async def _watched(answer: Awaitable[Any], blocked: list[str]) -> Any:
    with blocking_calls(blocked):
        return await answer
