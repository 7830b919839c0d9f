"""Number games: guess a number by higher and lower; reach a target with given numbers."""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.environments.reasoning import tagged_answer
from agentlab.environments.task import answer_of
from agentlab.errors import ConfigError, ToolError
from agentlab.numerals import last_integer
from agentlab.tools.calculator import evaluate, is_number, number, tokenize
from agentlab.types import EnvStepResult, Task

TOO_LARGE = 10**18
OPERATORS = r"\-+*/×÷·−–"
FORMULA = re.compile(rf"(?<![^\W\d_])[^\W\d_]*+[\d.(+−–√^\-][\d\s().,^%!√{OPERATORS}]*(?:(?<!\s)[^\W\d_])?")
"""All that could be part of a formula, so that none is a fragment of another; and letters that touch it."""
BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+(?=\S)")


class GuessNumber(BaseTaskEnv):
    """Says to each guess whether the number is higher or lower; reward 1 when it is found, 0 otherwise.

    The guess is the last number in the text, read as by `rewards.same_number`; if it is not whole it takes a turn.

    Args:
        task: A task of `al.tasks.guess_number`, with `data["number"]`.
        max_turns: Guesses.

    Raises:
        ConfigError: the task has no number.
    """

    def __init__(self, task: Task, max_turns: int = 8) -> None:
        super().__init__(task, max_turns=max_turns)
        self.number: int = task.data.get("number", "")
        if not isinstance(self.number, int):
            raise ConfigError(f"GuessNumber needs task.data['number']; task {task.id!r} has {sorted(task.data)}.")

    def _initial_observation(self) -> str:
        return self.task.prompt

    def _step_impl(self, action: Any) -> EnvStepResult:
        guess = last_integer(answer_of(action))
        if guess is None:
            return EnvStepResult("I see no number. Guess a whole number.", 0.0, False)
        if abs(guess) >= TOO_LARGE:
            return EnvStepResult("That number is too long.", 0.0, False)
        if guess == self.number:
            return EnvStepResult("Right.", 1.0, True)
        return EnvStepResult(f"My number is {'higher' if self.number > guess else 'lower'} than {guess}.", 0.0, False)


class Countdown(BaseTaskEnv):
    """Asks for a formula of given numbers that makes a target; reward 1 if it does, 0 otherwise.

    The formula is what stands in the last <answer>…</answer>, or else the last one in the text, up
    to an equals sign. It is worked out exactly, and without `eval`.

    Args:
        task: A task of `al.tasks.countdown`, with `data["numbers"]` and `data["target"]`.
        max_turns: Formulas that may be tried.

    Raises:
        ConfigError: the task has no numbers or no target.
    """

    def __init__(self, task: Task, max_turns: int = 3) -> None:
        super().__init__(task, max_turns=max_turns)
        if not {"numbers", "target"} <= set(task.data):
            raise ConfigError(
                f"Countdown needs task.data['numbers'] and ['target']; task {task.id!r} has {sorted(task.data)}."
            )
        self.numbers: Sequence[int] = task.data["numbers"]
        self.target: int = task.data["target"]

    def _initial_observation(self) -> str:
        return self.task.prompt

    def _step_impl(self, action: Any) -> EnvStepResult:
        problem = problem_with(formula_in(answer_of(action)), self.numbers, self.target)
        return EnvStepResult(problem, 0.0, False) if problem else EnvStepResult("Right.", 1.0, True)


def formula_in(text: str) -> str:
    """The formula of an answer; empty if there is none."""
    answer = tagged_answer(text)
    parts = [BULLET.sub("", line.split("=")[0]) for line in answer.splitlines()]
    found = [match.strip().rstrip(",!. ") for part in parts for match in FORMULA.findall(part)]
    formulas = [match for match in found if re.search(rf"[\d)][\s!]*[{OPERATORS}^%]", match)]
    return formulas[-1] if formulas else ""


def problem_with(formula: str, numbers: Sequence[int], target: int) -> str:
    """Why a formula does not make the target of the numbers; empty if it does."""
    if not formula:
        return f"I see no formula. Write one of the numbers {', '.join(map(str, numbers))}, with + - * / and ( )."
    try:
        used = Counter(number(token) for token in tokenize(formula) if is_number(token))
        value = evaluate(formula)
    except ToolError as error:
        return f"{formula} cannot be worked out: {error}"
    if extra := used - Counter(map(Fraction, numbers)):
        return f"{formula} uses {next(iter(extra))} more often than it is given."
    return "" if value == target else f"{formula} makes {value}, not {target}."
