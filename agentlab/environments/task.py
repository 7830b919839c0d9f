"""Environments in which an answer is given, with and without tools on the way to it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.environments.parts import part
from agentlab.environments.scoring import resolved, score
from agentlab.errors import AgentError, ConfigError, ToolError, nearest
from agentlab.files import shown
from agentlab.rewards import Reward, RewardFn
from agentlab.tools import Tool, as_text, as_tools, specs_of
from agentlab.types import EnvStepResult, Task, ToolCall, ToolResult, checked_option


class TaskEnvironment(BaseTaskEnv):
    """Shows the task's prompt and scores the answer.

    Args:
        task: What to do.
        reward_fn: `reward_fn(task, answer)`, sync or async.
        max_turns: Answers that may be given. With more than one, an answer that earns nothing may
            be tried again.
        feedback: What the model reads after such an answer.
    """

    def __init__(
        self,
        task: Task,
        reward_fn: RewardFn,
        max_turns: int = 1,
        *,
        feedback: str = "That is not right. Try again.",
    ) -> None:
        super().__init__(task, max_turns=max_turns)
        self.reward_fn = checked_reward_fn(reward_fn)
        self.feedback = feedback

    @classmethod
    def check_options(cls, *, reward_fn: Any, **options: Any) -> None:
        """See `BaseTaskEnv.check_options`."""
        super().check_options(**options)
        checked_reward_fn(reward_fn)

    def _initial_observation(self) -> str:
        return self.task.prompt

    def _step_impl(self, action: Any) -> Any:
        return self._then(score(self.reward_fn, self.task, answer_of(action)), self._judged)

    def _judged(self, reward: Reward) -> EnvStepResult:
        done = self.is_last_turn or reward.value > 0
        info = {"reward_parts": dict(reward.parts)} if reward.parts else {}
        return EnvStepResult(None if done else self.feedback, reward.value, done, info)


class ToolEnvironment(BaseTaskEnv):
    """Shows the task's prompt, runs the tools that are called, and scores the final text.

    An action with tool calls is answered by a tuple of `ToolResult`, in the order of the calls. A
    call that cannot be run, and a tool that raises, are answered by text that says why. An action
    that is text ends the episode with `reward_fn(task, text)`. Where `max_turns` ends it, the
    answer is empty text.

    info["tool_calls"] and info["tool_failures"] count this step's calls. One that failed by another
    error than `ToolError`, and so perhaps by a fault of the tool, is told in info["tool_errors"].

    Args:
        task: What to do.
        tool_map: Tools by name. A class is instantiated for each episode; an instance is shared.
        reward_fn: `reward_fn(task, answer)`, sync or async.
        max_turns: Model calls after which the episode is cut.
        max_result_chars: Characters of a tool's result that the model is shown.
    """

    def __init__(
        self,
        task: Task,
        tool_map: Mapping[str, Any],
        reward_fn: RewardFn,
        max_turns: int = 8,
        *,
        max_result_chars: int = 4000,
    ) -> None:
        super().__init__(task, max_turns=max_turns)
        self.check_options(reward_fn=reward_fn, max_result_chars=max_result_chars)
        self.reward_fn = reward_fn
        self.max_result_chars = max_result_chars
        self.tools: dict[str, Tool] = {name: tool.bind(task) for name, tool in as_tools(tool_map).items()}
        self._own = [tool for name, tool in self.tools.items() if tool is not tool_map[name]]
        self.specs = {spec.name: spec for spec in specs_of(self.tools)}

    @classmethod
    def check_options(cls, *, reward_fn: Any, max_result_chars: Any = 1, **options: Any) -> None:
        """See `BaseTaskEnv.check_options`."""
        super().check_options(**options)
        checked_reward_fn(reward_fn)
        if checked_option("max_result_chars", max_result_chars, int) < 1:
            raise ConfigError(f"max_result_chars must be at least 1, got {max_result_chars}.")

    def _initial_observation(self) -> str:
        return self.task.prompt

    def close(self) -> None:
        """Close the tools that were made or bound for this episode; shared ones stay open."""
        for tool in self._own:
            resolved(tool.close())

    def _step_impl(self, action: Any) -> Any:
        calls = calls_of(action)
        if not calls:
            return self._end(None, answer_of(action), {})
        errors: list[str] = []
        results = tuple(self._run(call, errors) for call in calls)
        info: dict[str, Any] = {"tool_calls": len(calls), "tool_failures": sum(r.failed for r in results)}
        if errors:
            info["tool_errors"] = tuple(errors)
        if self.is_last_turn:
            return self._end(results, "", {**info, "truncation": "max_turns"})
        return EnvStepResult(results, 0.0, False, info)

    def _end(self, observation: Any, answer: str, info: dict[str, Any]) -> Any:
        def ended(reward: Reward) -> EnvStepResult:
            parts = {"reward_parts": dict(reward.parts)} if reward.parts else {}
            return EnvStepResult(observation, reward.value, True, {**info, **parts})

        return self._then(score(self.reward_fn, self.task, answer), ended)

    def _run(self, call: ToolCall, errors: list[str]) -> ToolResult:
        """Run one call; whatever goes wrong becomes text for the model."""
        start = time.perf_counter()
        try:
            text, failed = self._call(call), False
        except ToolError as error:
            text, failed = f"Error: {error}", True
        except (Exception, SystemExit) as error:  # user code: the model reads what went wrong, as it would elsewhere
            told = f"{type(error).__name__}: {shown(error, str)}"
            text, failed = f"Error: {told}", True
            errors.append(f"{call.name}: {told}")
        return ToolResult(call.name, self._cut(text), failed, time.perf_counter() - start)

    def _call(self, call: ToolCall) -> str:
        if call.error is not None:
            raise ToolError(call.error)
        tool = self.tools.get(call.name)
        if tool is None:
            raise ToolError(f"There is no tool {call.name!r}.{nearest(call.name, self.tools)}")
        arguments = tool.checked_arguments(self.specs[call.name], call.arguments)
        with part("tool", call.name):
            return as_text(resolved(tool(**arguments)))

    def _cut(self, text: str) -> str:
        if len(text) <= self.max_result_chars:
            return text
        return f"{text[: self.max_result_chars]}… (cut; {len(text)} characters in all)"


def calls_of(action: Any) -> Sequence[ToolCall]:
    """The tool calls of an action; empty if it is something else."""
    value = action.value if hasattr(action, "value") else action
    if isinstance(value, ToolCall):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(item, ToolCall) for item in value):
        return tuple(value)
    return ()


def answer_of(action: Any) -> str:
    """The text of an action.

    Raises:
        AgentError: the action is not text.
    """
    value = action.value if hasattr(action, "value") else action
    if not isinstance(value, str):
        raise AgentError(
            f"The action must be text or tool calls here, got {type(value).__name__}: {value!r:.80}. "
            "Return Action(text) from update_from_model, or use an environment that takes such actions."
        )
    return value


def checked_reward_fn(reward_fn: RewardFn) -> RewardFn:
    """The reward function.

    Raises:
        ConfigError: it cannot be called.
    """
    if not callable(reward_fn):
        raise ConfigError(f"reward_fn must be a function of (task, answer), got {type(reward_fn).__name__}.")
    return reward_fn
