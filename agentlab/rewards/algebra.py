"""A reward for answers in LaTeX: equal as mathematics, whatever their form, as the library math-verify judges."""

import importlib.util
import json
import queue
import re
import subprocess
import sys
import weakref
from collections.abc import Mapping
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

from agentlab.concurrency import GivenUp, LimitedCalls
from agentlab.errors import ConfigError, RewardError
from agentlab.numerals import last_number, only_number, without_reasoning
from agentlab.rewards.answers import expected
from agentlab.rewards.score import RewardFn
from agentlab.types import Task, checked_option

PROGRAM = Path(__file__).with_name("algebra_process.py")
START_S = 120.0
"""What a process may take to start and import SymPy on a machine that is busy."""
END_S = 5.0
MENTIONS = re.compile(r"[`$\s]*(?:means|denotes|indicates|marks|stands for|is (?:a )?(?:notation|the command))\b")
UNFINISHED = re.compile(
    r"\d\s*'(?!\d{3})|…|\.\.\.|(?<!\\)!|\||\d\s*_"
    r"|\\(?![dtc]?frac|text|mbox|math|times|cdot|circ|degree|left|right|q?quad|displaystyle)[a-zA-Z]"
)
"""A number that goes on, or is something made from a number."""
MAX_LEFT = 1000
"""Threads whose process was ended a moment ago and that have not seen it yet; there is no bound to keep."""
DIGITS = 2100
"""Of a decimal number, exactly: twice what is read, and more."""
INLINE = re.compile(r"\$(?!\s)([^$]+)(?<!\s)\$(?!\d)")
DELIMITERS = (("\\(", "\\)"), ("\\[", "\\]"))
WORD = re.compile(r"(?<!\S)[A-Za-z]{2,}[.,:;]?(?!\S)")
STATES = re.compile(r"\b(?:answer|result)\b[^.\n$]{0,40}?(?:\bis\b|[:=])|####")
CLAUSE_ENDS = re.compile(r"[;\n]|(?<=\S)\s\(|\.(?=\s|$)|,(?=\s+[a-z]{2})|\s(?:since|because|as|where|when|so)\s")
ALIGNED = re.compile(r"\\begin\{(align|aligned|gather|gathered|equation)\*?\}(.*?)\\end\{\1\*?\}", re.DOTALL)
NEW_LINE = "\\\\"
PARTIAL = re.compile(r"\A\s*(?:[<>≤≥≠=]|\\(?:n?[lg]eq?(?:slant)?|neq?|not|neg)\b)|\d\s*_")
"""Of which math-verify reads no more than a number."""
LEADS = re.compile(r"=|:|\b(?:is|are|equals)\b")


def math_equal(*, timeout_s: float = 5.0, processes: int = 2) -> RewardFn:
    r"""A reward function: 1 where the answer equals `task.data["answer"]` as mathematics; else 0.

    `\frac{1}{2}`, 0.5 and 1/2 are equal; so are (x-1)(x+1) and x^2-1, `\{1,2\}` and `\{2,1\}`, and x = 5 and 5.
    What is compared is what stands in the last `\boxed{}`; or else what the answer states in words ("the answer is …",
    "#### …"); or else the last `$…$`, `\(…\)` or `\[…\]`, unless a number follows it in the prose, which is it then; or
    else all of the answer; and of an answer in prose the expression that it ends with. Reasoning in tags is no answer.
    Numbers are read as by `same_number`; what is no number is judged by math-verify, which takes decimals as equal that
    agree to 6 digits. A relation with nothing on its left (`>5`) and a number with an index (`12_3`) equal only
    themselves, since that library would read the number alone.

    Needs the extra "math". Safe on any thread: comparisons run in processes of their own, which are ended when one
    takes too long. The answer earns 0 then, and also where it is too large to calculate, if the right answer can be
    compared with itself in that time; if not, that is an error, never a 0.

    Args:
        timeout_s: Seconds that a comparison may take.
        processes: Comparisons that run at once; others wait. Each holds some 80 MB from its first use on.

    Raises:
        ConfigError: math-verify is not installed, or an option is impossible.
    """
    if not 0 < checked_option("timeout_s", timeout_s, float) < float("inf"):
        raise ConfigError(f"timeout_s must be above 0 and finite, got {timeout_s}.")
    if checked_option("processes", processes, int) < 1:
        raise ConfigError(f"processes must be at least 1, got {processes}.")
    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError(
            "math_equal needs math-verify, which is not installed. Install it: pip install 'agentlab[math]'."
        )
    comparers = Comparers(timeout_s, processes)

    def equal(task: Task, answer: str) -> float:
        wanted = str(expected(task)).strip()
        right, given = math_in(wanted) or wanted, math_in(answer)
        if not given or PARTIAL.search(given) or PARTIAL.search(right):
            return float(bool(given) and given == right)
        right, given = plain_math(right), plain_math(given)
        if given == right:
            return 1.0
        reply = comparers.ask({"right": right, "given": given})
        if "unreadable" in reply:
            raise RewardError(
                f'math_equal needs an expression as task.data["answer"], task {task.id!r} has {wanted!r:.80}.'
            )
        return float(reply["equal"])

    equal.__name__ = "math_equal"
    return equal


def math_in(answer: str) -> str:
    """The expression that an answer gives, without what delimits it; empty if there is none."""
    text = without_reasoning(answer)
    if boxed := _last_boxed(text):
        return _last_line(boxed)
    text = _last_line(text.replace("$$", "$"))
    if stated := _stated(text):
        return stated
    delimited = [(match.end(), match[1]) for match in INLINE.finditer(text)]
    for begin, end in DELIMITERS:
        before, closed, _ = text.rpartition(end)
        _, opened, inside = before.rpartition(begin)
        delimited += [(len(before), inside)] if closed and opened else []
    if delimited:
        end, inside = max(delimited)
        after = last_number(text[end:])
        return inside.strip() if after is None else str(after)
    text = text.strip().rstrip(".")
    if not WORD.search(text):
        return text
    tail = LEADS.split(text.rpartition("\n")[2])[-1].strip()
    if tail and not WORD.search(tail):
        return tail
    number = last_number(text)
    return "" if number is None else str(number)


def _stated(text: str) -> str:
    """What an answer says that the answer is, as far as the clause goes; empty if it does not."""
    leads = list(STATES.finditer(text))
    if not leads:
        return ""
    rest = text[leads[-1].end() :].strip(" *")
    for sign in (sign for pair in DELIMITERS for sign in pair):
        rest = rest.replace(sign, "$")
    if formula := INLINE.match(rest):
        return formula[1].strip()
    clause = CLAUSE_ENDS.split(rest, maxsplit=1)[0]
    if formulas := INLINE.findall(clause):
        return formulas[-1].strip()
    clause = clause.strip().strip("*").strip()
    if not WORD.search(clause):
        return clause
    number = last_number(clause)
    return "" if number is None else str(number)


def _last_line(text: str) -> str:
    """The text with each aligned display as what its last line gives: `x &= 7` is x = 7."""
    return (
        ALIGNED.sub(lambda found: f"${found[2].strip().removesuffix(NEW_LINE).split(NEW_LINE)[-1]}$", text).replace(
            "&", ""
        )
        if "\\begin{" in text
        else text
    )


def plain_math(text: str) -> str:
    """An expression as math-verify should read it: a number by its value, and nothing that would end it early."""
    number = None if UNFINISHED.search(text) else only_number(text)
    if number is None:
        return text.replace("$", "").strip()
    decimal = "." in text and "/" not in text and "frac" not in text
    with localcontext(prec=DIGITS):
        return f"{Decimal(number.numerator) / number.denominator:f}" if decimal else str(number)


def _last_boxed(answer: str) -> str:
    """What stands in the last `\\boxed{}` that is closed and not merely mentioned; empty if the last is not closed."""
    before, opened, after = answer.rpartition("\\boxed{")
    depth, escaped = 1, False
    for index, character in enumerate(after if opened else ""):
        depth += 0 if escaped else (character == "{") - (character == "}")
        escaped = character == "\\" and not escaped
        if depth == 0:
            mentioned = MENTIONS.match(after, index + 1) is not None
            return _last_boxed(before) if mentioned else after[:index].strip()
    return ""


class Comparers:
    """Processes that compare; made when they are needed. Any thread may ask: it waits for its turn, then for an answer.

    Args:
        timeout_s: Seconds for one comparison.
        processes: How many there may be.
    """

    def __init__(self, timeout_s: float, processes: int):
        self.timeout_s = timeout_s
        self._calls = LimitedCalls(max_left=MAX_LEFT)
        self._turns: queue.SimpleQueue[Comparer | None] = queue.SimpleQueue()
        for _ in range(processes):
            self._turns.put(None)

    def ask(self, request: Mapping[str, str]) -> Mapping[str, Any]:
        """The answer of one of them; not equal where it is the given expression's fault that there is none.

        Raises:
            RewardError: the right expression, compared with itself, took longer than it may, too, or ended its process.
        """
        try:
            return self._asked(request)
        except RewardError as error:
            try:
                alone = self._asked({"right": request["right"], "given": request["right"]})
            except RewardError:
                raise error from None
            return {**alone, "equal": False}

    def _asked(self, request: Mapping[str, str]) -> Mapping[str, Any]:
        comparer, kept = self._turns.get(), None
        try:
            if comparer is None:
                comparer = self._started()
            reply = self._calls.call(self.timeout_s, comparer.ask, request)
            kept = comparer
            return reply
        except GivenUp:
            raise RewardError(
                f"math_equal took longer than timeout_s={self.timeout_s:g} for {request['given']!r:.80}."
            ) from None
        finally:
            if comparer is not None and kept is None:
                comparer.end()
            self._turns.put(kept)

    def _started(self) -> "Comparer":
        comparer = Comparer()
        try:
            self._calls.call(START_S, comparer.read)
        except BaseException as error:
            comparer.end()
            if isinstance(error, GivenUp):
                raise RewardError(f"math-verify could not be imported within {START_S:g} s.") from None
            raise
        return comparer


class Comparer:
    """One process that compares; owned by the thread whose turn it is."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,
        )
        self.end = weakref.finalize(self, _end, self._process)

    def ask(self, request: Mapping[str, str]) -> Mapping[str, Any]:
        """Put a question, and wait for the answer.

        Raises:
            RewardError: the process ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RewardError(f"The process that compares expressions has ended: {error}.") from error
        return self.read()

    def read(self) -> Mapping[str, Any]:
        """Wait for a line.

        Raises:
            RewardError: the process ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RewardError(
                "The process that compares expressions has ended: too little memory, or math-verify cannot be "
                "imported. Try: python -c 'import math_verify'."
            )
        return json.loads(line)


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(END_S)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was not written yet has no reader any more
                continue
