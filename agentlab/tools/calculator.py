"""A calculator with a parser of its own: exact, bounded, and without `eval`."""

import re
from fractions import Fraction

from agentlab.errors import ToolError
from agentlab.numerals import LITERAL, MINUS_SIGNS, SEPARATORS, SLASHES, SPACES, TIMES_SIGNS, literal_value
from agentlab.tools.base import Tool

MAX_CHARS = 200
MAX_BITS = 1024
"""Most bits a numerator or denominator may have, so that no expression takes long."""

TOKEN = re.compile(rf"\s*(?:({LITERAL})|(\*\*|//|[-+*/%^()]))", re.ASCII)
SPELLINGS = str.maketrans(
    dict.fromkeys(MINUS_SIGNS, "-")
    | dict.fromkeys(TIMES_SIGNS, "*")
    | dict.fromkeys(SLASHES + "÷", "/")
    | dict.fromkeys(SPACES, " ")
    | {"[": "(", "]": ")"}
)
BINARY = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4, "^": 4}
SIGN = 3
"""How strongly a sign binds: -2 ** 2 is -(2 ** 2)."""


class Calculator(Tool):
    """Works out an arithmetic expression of numbers, + - * / // % ** and parentheses."""

    def __call__(self, expression: str) -> str:
        """Work it out.

        Args:
            expression: What to work out, e.g. "(3 + 4) * 12".

        Raises:
            ToolError: it is no arithmetic expression, or its value is too large.
        """
        return shown(evaluate(expression))


def evaluate(expression: str) -> Fraction:
    """The exact value of an arithmetic expression.

    `**` and `^` are powers; a fractional power is rounded to a float's precision.

    Raises:
        ToolError: it is malformed, divides by zero, or grows too large.
    """
    if len(expression) > MAX_CHARS:
        raise ToolError(f"The expression must have at most {MAX_CHARS} characters, got {len(expression)}.")
    tokens = tokenize(expression)
    if not tokens:
        raise ToolError('The expression is empty. Write for example "3 + 4 * 12".')
    value, end = _parse(tokens, 0, 0)
    if end < len(tokens):
        raise ToolError(f"Unexpected {tokens[end]!r} in {expression!r}.")
    return value


def tokenize(expression: str) -> list[str]:
    """Numbers, operators and parentheses of an expression.

    Raises:
        ToolError: it contains something else.
    """
    text = expression.translate(SPELLINGS).rstrip().removesuffix("=").rstrip()
    tokens: list[str] = []
    begin = 0
    while begin < len(text):
        found = TOKEN.match(text, begin)
        if found is None:
            raise ToolError(
                f"Cannot read {text[begin:].strip()[:20]!r} in {expression!r}. "
                "Use numbers, + - * / // % ** and parentheses only."
            )
        tokens.append(found[1].translate(SEPARATORS) if found[1] else found[2])
        begin = found.end()
    return tokens


def _parse(tokens: list[str], begin: int, binding: int) -> tuple[Fraction, int]:
    """Precedence climbing: the value of what starts here and binds more strongly than `binding`."""
    value, end = _parse_operand(tokens, begin)
    while end < len(tokens) and (strength := BINARY.get(tokens[end], 0)) > binding:
        operator = tokens[end]
        right_associative = strength == BINARY["**"]
        right, end = _parse(tokens, end + 1, strength - 1 if right_associative else strength)
        value = _apply(operator, value, right)
    return value, end


def _parse_operand(tokens: list[str], begin: int) -> tuple[Fraction, int]:
    if begin >= len(tokens):
        raise ToolError("The expression ends where a number is needed.")
    token = tokens[begin]
    if token in "+-":
        value, end = _parse(tokens, begin + 1, SIGN)
        return (-value if token == "-" else value), end
    if token == "(":
        value, end = _parse(tokens, begin + 1, 0)
        if end >= len(tokens) or tokens[end] != ")":
            raise ToolError("A closing parenthesis is missing.")
        return value, end + 1
    if is_number(token):
        return number(token), begin + 1
    raise ToolError(f"Unexpected {token!r} where a number is needed.")


def is_number(token: str) -> bool:
    """Whether a token is a number, not an operator or a parenthesis."""
    return token[0].isdecimal() or token[0] == "."


def number(token: str) -> Fraction:
    """The value of a token that is a number.

    Raises:
        ToolError: it is too large.
    """
    try:
        return _bounded(literal_value(token))
    except OverflowError as error:
        raise _too_large() from error


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator in ("/", "//", "%") and right == 0:
        raise ToolError("Division by zero.")
    match operator:
        case "+":
            return _bounded(left + right)
        case "-":
            return _bounded(left - right)
        case "*":
            return _bounded(left * right)
        case "/":
            return _bounded(left / right)
        case "//":
            return Fraction(left // right)
        case "%":
            return left % right
    return _power(left, right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if base == 0 and exponent < 0:
        raise ToolError("Division by zero.")
    if exponent.denominator != 1:
        if base < 0:
            raise ToolError("A fractional power of a negative number is not a real number.")
        try:
            return Fraction(float(base) ** float(exponent))
        except OverflowError as error:
            raise _too_large() from error
    size = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
    if size > 1 and (size - 1) * abs(exponent) > MAX_BITS:
        raise _too_large()
    whole = int(exponent) if size > 1 else int(exponent % 2) or (0 if exponent == 0 else 2)
    return _bounded(base**whole)


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_BITS:
        raise _too_large()
    return value


def _too_large() -> ToolError:
    return ToolError("The value is too large for this calculator.")


def shown(value: Fraction) -> str:
    """A value as text: whole numbers in full, others with up to 10 significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.10g}"
    except OverflowError as error:
        raise _too_large() from error
