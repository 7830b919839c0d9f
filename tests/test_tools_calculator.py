"""The calculator: exact, bounded, and never at a loss for words."""

import contextlib
import random
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import ToolError
from agentlab.tools import Calculator
from agentlab.tools.calculator import evaluate

calculator = Calculator()
numbers = st.integers(0, 999).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
    ),
    max_leaves=8,
)


@given(expression=expressions)
def test_it_agrees_with_pythons_own_arithmetic_on_fractions(expression):
    in_fractions = "".join(f"Fraction({part})" if part.isdigit() else part for part in split_digits(expression))
    try:
        wanted = eval(in_fractions, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="Division by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression) == wanted


def split_digits(text: str) -> list[str]:
    parts = [""]
    for character in text:
        if parts[-1] and character.isdigit() != parts[-1][-1].isdigit():
            parts.append("")
        parts[-1] += character
    return parts


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * 11", "132"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("10 - 4 - 3", "3"),
        ("2 ** 3 ** 2", "512"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("2^10", "1024"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3", "0.3333333333"),
        ("6 / 3", "2"),
        ("2 ** 0.5", "1.414213562"),
        ("1,234 + 1", "1235"),
        ("47 × 36 =", "1692"),
        ("8 ÷ 2 − 1", "3"),
        ("1\u202f234⋅2 ‑ 8", "2460"),
        ("1e3 / 4 + .5", "250.5"),
        ("0 ** 0", "1"),
        ("1 ** 99999999999", "1"),
        ("(-1) ** 99999999999", "-1"),
        ("123456789123456789 * 10", "1234567891234567890"),
    ],
)
def test_it_works_out(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "is empty"),
        ("2 +", "ends where a number is needed"),
        ("(1 + 2", "closing parenthesis is missing"),
        ("1 + 2)", "Unexpected '\\)'"),
        ("3 4", "Unexpected '4'"),
        ("1,23 + 1", "Cannot read ',23"),
        ("1234,567", "Cannot read ',567"),
        ("12,3456", "Cannot read ',3456"),
        ("1e9999", "too large"),
        ("* 3", "Unexpected '\\*'"),
        ("1 / 0", "Division by zero"),
        ("5 % (1 - 1)", "Division by zero"),
        ("0 ** -1", "Division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("10 ** 400", "too large"),
        ("2 ** 2000000", "too large"),
        ("9.5 ** 1000.5", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("__import__('os')", "Cannot read"),
        ("x + 1", "Cannot read 'x"),
        ("1" * 300, "at most 200 characters"),
    ],
)
def test_what_it_cannot_work_out_is_said_in_words(expression, says):
    with pytest.raises(ToolError, match=says):
        calculator(expression)


def test_no_text_makes_it_hang_or_raise_anything_else():
    rng = random.Random(0)
    start = time.process_time()
    for _ in range(5000):
        text = "".join(rng.choices([*"0123456789+-*/%^().,= x", "**", "//", "**9", "9" * 20], k=rng.randint(0, 60)))
        with contextlib.suppress(ToolError):
            assert isinstance(calculator(text), str)
    assert time.process_time() - start < 10


def test_parentheses_as_deep_as_the_limit_allows_are_read():
    assert calculator("(" * 99 + "1" + ")" * 99) == "1"
    assert calculator("-" * 199 + "1") == "-1"
