"""Puzzles of reasoning-gym, judged by its own judges."""

from collections.abc import Callable
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.environments.task import answer_of
from agentlab.errors import ConfigError
from agentlab.numerals import without_reasoning
from agentlab.tasks.reasoning import reasoning_gym
from agentlab.types import EnvStepResult, Task

OPEN, CLOSE = "<answer>", "</answer>"


class Reasoning(BaseTaskEnv):
    """Shows a puzzle and rewards the answer as reasoning-gym does, from 0 to 1.

    The answer is what stands in the last <answer>…</answer>, or else the whole text but <think>…</think>.

    Args:
        task: A task of `al.tasks.reasoning`.
        max_turns: Answers that may be given; one that does not earn everything may be tried again.

    Raises:
        ConfigError: the task is another, or reasoning-gym is not installed.
    """

    def __init__(self, task: Task, max_turns: int = 1) -> None:
        super().__init__(task, max_turns=max_turns)
        if not {"dataset", "entry"} <= set(task.data):
            raise ConfigError(
                f"Reasoning needs tasks of al.tasks.reasoning(...); task {task.id!r} has {sorted(task.data)}."
            )
        self._judge: Callable[..., Any] = reasoning_gym().get_score_answer_fn(task.data["dataset"])

    def _initial_observation(self) -> str:
        return self.task.prompt

    def _step_impl(self, action: Any) -> EnvStepResult:
        reward = float(self._judge(tagged_answer(answer_of(action)), dict(self.task.data["entry"])))
        done = reward >= 1 or self.is_last_turn
        return EnvStepResult(None if done else "That is not right. Try again.", reward if done else 0.0, done)


def tagged_answer(text: str) -> str:
    """What stands in the last <answer>…</answer>, or else the whole text, without reasoning and spaces at its ends."""
    text = without_reasoning(text)
    end = text.rfind(CLOSE)
    begin = text.rfind(OPEN, 0, max(end, 0))
    return (text[begin + len(OPEN) : end] if begin >= 0 else text).strip()
