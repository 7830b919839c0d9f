"""Number games: guess a number by higher and lower; reach a target with given numbers."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.environments.reasoning import tagged_answer
from agentlab.environments.task import answer_of
from agentlab.errors import ConfigError, ToolError
from agentlab.numerals import last_integer
from agentlab.tools.calculator import SPELLINGS, evaluate, is_number, number, tokenize
from agentlab.types import EnvStepResult, Task

TOO_LARGE = 10**18
OPERATORS = r"\-+*/"
FORMULA = re.compile(rf"(?<![^\W\d_])[^\W\d_]*+[\d.(+√^\-][\d\s().,^%!√{OPERATORS}]*(?:(?<!\s)[^\W\d_])?")
"""All that could be part of a formula, so that none is a fragment of another; and letters that touch it."""
WORD = re.compile(r"[^\W\d_]*[.,!\s]*")
"""What ends a sentence, and no formula."""
BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+(?=\S)")
EQUALS = re.compile(r"(?<![-=~])[-=~]++>|[=≈→⇒⟹]+")
BETWEEN = re.compile(
    r"\s*(?:[^\W\d_]|\\[a-zA-Z]+|[^\w\s,;:.!?\"'`|]+|:(?!\s)|of|by|mod|modulo|over|times|plus|minus|"
    r"to the power(?: of)?|(?:multiplied|divided) by|added to|subtracted from|squared|cubed)?\s*",
    re.IGNORECASE,
)
"""What may join two parts of a formula that cannot be worked out."""
AFTER = re.compile(
    r"\s*(?:squared|cubed|factorial|percent|mod(?:ulo)?|times|plus|minus|over|divided|multiplied)\b", re.IGNORECASE
)
DANGLING = re.compile(rf"[\d)]\s{{0,3}}[{OPERATORS}^]\s{{0,3}}$")
OPERAND_END, OPERAND_BEGIN = r"(?<=[\d)])", r"(?=[-+]?[\d.(])"
STYLES = [
    (re.compile(r"\\\\"), "\n"),
    (re.compile(r"\\[()\[\]]|\\[,;:! ]|\\(?:left|right|[bB]igg?[lr]?|displaystyle|q?quad)(?![a-zA-Z])|[$&]|\\\$"), " "),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:approx|to|(?:[lL]ong)?[rR]ightarrow|implies|equiv)(?![a-zA-Z])"), "="),
    (re.compile(r"\\([{}%])"), r"\1"),
]
"""How formulas are written in LaTeX, in the calculator's spelling."""
GROUP = re.compile(r"\\(?:boxed|fbox|text[a-z]*|math[a-z]+)\s*\{([^{}]*)\}")
FRACTION = re.compile(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
BRACES = re.compile(r"(?<![\w\\}])\{([^{}]*)\}")
MAX_DEPTH = 10
"""LaTeX groups in each other; in deeper ones there is no formula."""
WORDED = [
    (re.compile(rf"{OPERAND_END}\s*(?:[xX]|(?<=\s)(?:times|multiplied by)(?=\s))\s*{OPERAND_BEGIN}"), "*"),
    (re.compile(rf"{OPERAND_END}\s+plus\s+{OPERAND_BEGIN}"), "+"),
    (re.compile(rf"{OPERAND_END}\s+minus\s+{OPERAND_BEGIN}"), "-"),
    (re.compile(rf"{OPERAND_END}\s+(?:divided by|over)\s+{OPERAND_BEGIN}"), "/"),
    (re.compile(rf"{OPERAND_END}( ?):\1{OPERAND_BEGIN}"), "/"),
]
"""Operators in letters and words, and the colon of divisions."""
EMPHASIS = re.compile(r"(?<![\w)*])(\*{1,3})(?=[^\s*])([^\n]{0,200}?[^\s*])\1(?![\d(*]| ?[\d(-])")
REMARK = re.compile(r"(?<=[\d)])[ \t]\([^()\n]{2,200}\)(?=\s*(?:$|[.,;!=\n]|[^\W\d_]{2}))")
IN_WORDS = re.compile(r"\s\([^\d()]*(?:[^\W\d_]{2}|=)")
"""How a remark in parentheses begins."""


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

    The formula is what stands in the last <answer>…</answer>, or else the last one in the text, before or behind an
    equals sign; it may be written in LaTeX, and with × ÷ · x : and any brackets. It is taken as a whole or not at all,
    and worked out exactly, without `eval`.

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
    """The formula of an answer, in the calculator's spelling; empty if there is none.

    The last one is taken, with what it is said to equal left out; as a whole, with all that could be part of it.
    """
    formulas = [formula for line in _spelled(text).splitlines() for formula in _formulas(BULLET.sub("", line))]
    return formulas[-1] if formulas else ""


def _spelled(text: str) -> str:
    """The answer in a text, with operators and brackets as the calculator has them."""
    text = html.unescape(tagged_answer(text))
    for pattern, instead in STYLES:
        text = pattern.sub(instead, text)
    for _ in range(MAX_DEPTH if "{" in text else 0):
        before = text
        text = BRACES.sub(r"(\1)", FRACTION.sub(r"((\1)/(\2))", GROUP.sub(r" \1 ", text)))
        if text == before:
            break
    text = text.translate(SPELLINGS).translate({ord("{"): "(", ord("}"): ")"})
    for pattern, instead in WORDED:
        text = pattern.sub(instead, text)
    text = EMPHASIS.sub(r"\2", text)
    text = re.sub(rf"(?<=[\d)])( ?[{OPERATORS}] ?)\n\s*(?=[\d(])", r"\1", text)
    return REMARK.sub(lambda remark: " " if IN_WORDS.match(remark[0]) else remark[0], text)


def _formulas(line: str) -> Iterator[str]:
    """The formulas of a line. Of a chain of equations it is the first side; the others only work it out."""
    in_chain, last_closing, side_begin = False, line.rfind(")"), 0
    for side in EQUALS.split(line):
        start, opening, end = len(side) - len(side.lstrip()), side.find("("), 0
        for begin, end, joined in _parts(side):
            formula = side[begin:end].strip().rstrip(",!. ")
            surplus = formula.count("(") - formula.count(")")
            if surplus == -1 and 0 <= opening < begin:
                formula = formula.removesuffix(")")
            elif surplus == 1 and last_closing >= side_begin + end:
                formula = formula.removeprefix("(")
            if joined or re.search(rf"[\d)][\s!]*[{OPERATORS}^%]", formula):
                if not (in_chain and begin == start):
                    yield formula
                in_chain = True
        in_chain = in_chain and not re.search(r"[^\W\d_]", side[end:])
        side_begin += len(side)


def _parts(side: str) -> Iterator[tuple[int, int, bool]]:
    """Where the parts of a side begin and end that could be formulas, and whether something unknown joins them."""
    begin, end, joined = -1, 0, False
    for match in FORMULA.finditer(side):
        if WORD.fullmatch(match[0]):
            continue
        if begin >= 0 and (
            BETWEEN.fullmatch(side, end, match.start()) or DANGLING.search(side, max(begin, end - 9), end)
        ):
            joined = True
        else:
            if begin >= 0:
                yield begin, end, joined
            begin, joined = match.start(), False
        end = match.end()
    if begin >= 0:
        after = AFTER.match(side, end)
        yield begin, after.end() if after else end, joined or bool(after)


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
