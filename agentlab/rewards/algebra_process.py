"""Runs in a process of its own: compares mathematical expressions with math-verify, one after the other.

A comparison can take for ever, and the library's own time limits work on a main thread only. So they are off here, and
whoever asks ends this process when it takes too long. One line of JSON in, one out; it ends when its input does.
"""

import contextlib
import json
import logging
import re
import sys
from typing import Any

MAX_BYTES = 4 << 30
"""Address space; a power of powers would take all there is."""
MAX_CHARACTERS = 2000
"""Of an answer; a longer one is no expression that anybody reads."""
MAX_DIGITS, MAX_POWER, MAX_COUNT = 20_000, 300, 2000
"""Of a power of numbers; of a power of symbols; of what a factorial, a sum or a product counts to."""
TOLERANCE, NEAR = 1e-6, 0.01
"""Relative: of an equation between numbers, and of what is said to be nearly equal."""

SPACE = r"(?:\\[,;: ]|\s|~|\\q?quad(?![a-zA-Z]))"
NAMED = r"(?:text[a-z]*|mbox|math(?:rm|bf|it|sf))"
SPELLINGS = [
    (re.compile(r"\\operatorname\s*\{a(?:rc)?(sin|cos|tan)\}"), r"\\arc\1 "),
    (
        re.compile(r"\\operatorname\s*\{(sinh?|cosh?|tanh?|cot|sec|csc|log|ln|exp|max|min|gcd|lcm)\}"),
        r"\\\1 ",
    ),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\degree(?![a-zA-Z])|°"), r"^\\circ "),
    (re.compile(rf"\\{NAMED}\{{\s*([-+]?\d+(?:\.\d+)?)\s*\}}"), r"\1"),
    (re.compile(r"\A\s*[a-zA-Z]'+\s*(?:\([a-zA-Z]\))?\s*="), ""),
    (re.compile(r"\A(\s*[a-zA-Z]\s*)(?:\\approx(?![a-zA-Z])|≈)"), r"\1="),
    (
        re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{(\d+)\}"),
        lambda match: _repeating(match[1], match[2], match[3]),
    ),
    (
        re.compile(rf"(?<![\d.,_^])[1-9]\d{{0,2}}(?:{SPACE}\d{{3}})+(?!\d)"),
        lambda match: re.sub(SPACE, "", match[0]),
    ),
]
ARGUMENT = re.compile(
    r"(\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|exp)h?(?:\s*[_^]\s*(?:\{[^{}]*\}|\w))*)\s*"
    r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}(?!\s*\^)"
)
"""A function and its argument in braces; math-verify would take what is multiplied behind them for a part of it."""
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))")
PARTIAL = re.compile(
    rf"'|′|\\prime|\\phantom|\\[lc]?dots|…|\.\.\.|(?<![\d_^.])\d[\d.]*{SPACE}+\d|[\d)\]]\s*_|\d\}}\s*_"
    r"|\\(?:gcd|lcm)\s*(?:\\left)?\([^()]*[a-zA-Z]|\\(?:cot|sec|csc)h(?![a-zA-Z])"
)
"""Of which math-verify drops or misreads a part: primes, dots, bases, numbers side by side, coth as cot of h."""
TEXT = re.compile(rf"\\{NAMED}\{{[^{{}}]*\}}")
DENIED = re.compile(
    r"(?<![\\a-zA-Z])(?:not|no|wrong|incorrect|false|more|less|fewer|greater|larger|smaller|least|most|above|below|over"
    r"|under|except|than|mod|base)(?![a-zA-Z])",
    re.IGNORECASE,
)
"""Words after which a number is not the answer; math-verify takes them for units."""


def main() -> None:
    """Say that it is ready, then answer."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits, macOS not this one
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    logging.disable()  # the library says for every text that its time limits are off
    answers, sys.stdout = sys.stdout, sys.stderr
    answer: dict[str, object] = {"ready": True}
    for line in _lines():
        if line is not None:
            answer = compared(**json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _lines():
    import math_verify  # noqa: F401, before the first comparison's time runs

    yield None
    yield from sys.stdin


def compared(right: str, given: str) -> dict[str, object]:
    """{"equal": whether they are}, or {"unreadable": True} where the right answer is no expression."""
    from math_verify import verify

    wanted = _parsed(right)
    if not wanted:
        return {"unreadable": True}
    read = _parsed(given) if len(given) <= MAX_CHARACTERS else []
    return {"equal": bool(read) and bool(verify(wanted, read, timeout_seconds=None, allow_set_relation_comp=True))}


def _repeating(whole: str, once: str, period: str) -> str:
    """A decimal with a period as a fraction."""
    top = int((whole or "0") + once + period) - int((whole or "0") + once)
    return rf"\frac{{{top}}}{{{(10 ** len(period) - 1) * 10 ** len(once)}}}"


def spelled(text: str) -> str:
    """An expression with what math-verify misreads in a spelling that it reads: degrees of an angle, 0.333…, names."""
    for pattern, instead in SPELLINGS:
        text = pattern.sub(instead, text)
    before = None
    while before != text:  # from the outermost to the innermost
        before, text = text, ARGUMENT.sub(r"\1\\left(\2\\right)", text)
    if ANGLE.search(text):
        text = DEGREES.sub(r"(\\frac{\1\\pi}{180})", text)
    return text.strip()


def _parsed(text: str) -> list:
    """What math-verify reads, where that is all of the text and small enough to calculate with; else nothing."""
    text = spelled(text)
    exact, *rounded = re.split(r"\\approx(?![a-zA-Z])|≈", text)
    if PARTIAL.search(text) or (DENIED.search(text) and re.search(r"\d", TEXT.sub("", text))):
        return []
    read = [expression for expression in map(_fair, _read(exact)) if expression is not None]
    if read and not all(_is_near(read[0], _read(other)) for other in rounded):
        return []
    return read


def _read(text: str) -> list:
    from math_verify import LatexExtractionConfig, parse

    return parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _fair(expression: Any) -> Any:
    """The expression; None where it is too large, or says that two different numbers are equal."""
    from sympy import And, Basic, Eq, Symbol

    if not isinstance(expression, Basic):
        entries = getattr(expression, "flat", list)()
        return expression if all(_is_bounded(entry) for entry in entries) else None
    if not _is_bounded(expression):
        return None
    for equation in [expression, *(expression.args if isinstance(expression, And) else ())]:
        if isinstance(equation, Eq) and not equation.free_symbols and not _is_true(equation):
            return None
    if isinstance(expression, Eq) and expression.lhs.is_number and isinstance(expression.rhs, Symbol):
        return Eq(expression.rhs, expression.lhs, evaluate=False)
    return expression


def _is_true(equation: Any) -> bool:
    left, right = _number(equation.lhs), _number(equation.rhs)
    return left is None or right is None or abs(left - right) <= TOLERANCE * max(1, abs(right))


def _is_near(exact: Any, rounded: list) -> bool:
    """Whether a number after an approximation's sign is one of what stands before."""
    from sympy import And, Eq

    if isinstance(exact, And):
        exact = exact.args[-1]
    if isinstance(exact, Eq):
        exact = exact.rhs
    left, right = _number(exact), _number(rounded[0]) if rounded else None
    return left is not None and right is not None and abs(left - right) <= NEAR * abs(left)


def _is_bounded(expression: Any) -> bool:
    """Whether no power, factorial, sum or product in it is larger than it is worth to calculate."""
    from sympy import Pow, gamma, log, postorder_traversal
    from sympy.concrete.expr_with_limits import ExprWithLimits
    from sympy.functions.combinatorial.factorials import CombinatorialFunction

    for node in postorder_traversal(expression):  # what is inside first: nothing unbounded is ever calculated
        if isinstance(node, Pow):
            exponent = _number(node.exp)
            base = _number(node.base)
            size = 1 if base is None else abs(float(log(abs(base) or 1, 10)))
            most = MAX_POWER if base is None else MAX_DIGITS
            if exponent is not None and not (abs(exponent) <= MAX_DIGITS and abs(exponent) * size <= most):
                return False
        elif isinstance(node, CombinatorialFunction | gamma):
            if any(abs(_number(argument) or 0) > MAX_COUNT for argument in node.args):
                return False
        elif isinstance(node, ExprWithLimits) and hasattr(node, "function"):
            ends = [_number(end) for limits in node.limits for end in tuple(limits)[1:]]  # pyright: ignore[reportArgumentType]
            if any(end is not None and end.is_finite and abs(end) > MAX_COUNT for end in ends):
                return False
    return True


def _number(expression: Any) -> Any:
    """The value of an expression without symbols, to 15 digits; None where it has none."""
    from sympy import Expr

    if not isinstance(expression, Expr) or expression.free_symbols:
        return None
    value = expression.evalf()
    return value if value.is_number and value.is_comparable else None


if __name__ == "__main__":
    main()
