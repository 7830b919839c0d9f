"""The reader of numbers: every style by value, and no fragment of anything longer."""

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.numerals import MINUS_SIGNS, last_integer, last_number, numerals, only_number
from agentlab.rewards import numeric, same_number
from agentlab.types import Task

CASES = json.loads((Path(__file__).parent / "fixtures/numbers.json").read_text(encoding="utf-8"))
GROUPINGS = [",", " ", "\u00a0", "\u2009", "\u202f", "_", "'", "’", "{,}", "\\,", ""]
AROUND = [
    "{}", "The answer is {}.", "**{}**", "$x = {}$", "\\boxed{{{}}}", "\\[ y = {} \\]", "<answer>{}</answer>", "({})",
    "`{}`", '"{}"', "#### {}", "Answer:{}", "x={}", "= {} km/h", "6 * 7 = {}", "so\n\n* {}", "> {}",
    "It is {}, I think.",
    "{}!", '{{"answer": {}}}', "\\text{{It is }} {}", "in 2 steps: {}cm^2", "{}\\%", "on 2024-01-05 it was {}",
    "答案是{}。", "\\(\\displaystyle {}\\)", "(see x1) {} (see GPT-4)", "*{}*",
]  # fmt: skip


def scored(gold, answer):
    return {reward_fn(Task("t", "?", {"answer": gold}), answer) for reward_fn in (same_number, numeric())}


def grouped(digits, separator):
    return f"{int(digits):,}".replace(",", separator)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['gold']} for {case['answer']}")
def test_answers_seen_to_be_read_wrongly_are_read_right(case):
    assert scored(case["gold"], case["answer"]) == {case["reward"]}


@given(
    whole=st.integers(0, 10**15),
    fraction=st.sampled_from(["", ".5", ".25", ".000", ".123456789"]),
    sign=st.sampled_from(["", "+", *MINUS_SIGNS]),
    currency=st.sampled_from(["", "$", "€", "\\$"]),
    separator=st.sampled_from(GROUPINGS),
    around=st.sampled_from(AROUND),
)
def test_a_decimal_number_reads_back_in_any_style(whole, fraction, sign, currency, separator, around):
    text = around.format(sign + currency + grouped(str(whole), separator) + fraction)
    value = Fraction(f"{whole}{fraction}") * (-1 if sign and sign != "+" else 1)
    assert last_number(text) == value, text
    assert scored(str(whole) + fraction, text) == {float(value >= 0 or whole + Fraction(fraction or "0") == 0)}


@given(
    mantissa=st.integers(-999, 999),
    exponent=st.integers(-30, 30),
    form=st.sampled_from(
        ["{}e{}", "{}E{:+d}", "{}×10^{}", "{} × 10^{}", "{} \\times 10^{{{}}}", "{} \\cdot 10^{{ {} }}", "{}*10^{}",
         "{} x 10^{}", "{}⋅10^({})"],
    ),
    around=st.sampled_from(AROUND),
)  # fmt: skip
def test_an_exponent_is_part_of_the_number(mantissa, exponent, form, around):
    text = around.format(form.format(mantissa, exponent))
    assert last_number(text) == mantissa * Fraction(10) ** exponent, text


def test_a_raised_exponent_is_an_exponent_and_a_power_of_ten_needs_no_factor():
    assert [last_number(text) for text in ("3×10⁴", "2 × 10⁻³", "10^6", "-10^{-2}")] == [
        30_000, Fraction(1, 500), 10**6, Fraction(-1, 100),
    ]  # fmt: skip


@given(
    whole=st.integers(0, 99),
    top=st.integers(1, 98),
    bottom=st.integers(99, 999),
    minus=st.sampled_from(["", *MINUS_SIGNS]),
    form=st.sampled_from(["{}/{}", "{} / {}", "{}⁄{}", "\\frac{{{}}}{{{}}}", "\\dfrac{{ {} }}{{ {} }}"]),
    space=st.booleans(),
    around=st.sampled_from(AROUND),
)
def test_a_fraction_is_its_value_and_a_mixed_one_the_sum(whole, top, bottom, minus, form, space, around):
    fraction = form.format(top, bottom)
    mixed = whole and (fraction.startswith("\\") or " " not in fraction)
    between = " " if space or not fraction.startswith("\\") else ""
    text = around.format(minus + (f"{whole}{between}{fraction}" if mixed else fraction))
    value = (whole if mixed else 0) + Fraction(top, bottom)
    assert last_number(text) == (-value if minus else value), text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("½", Fraction(1, 2)), ("1½", Fraction(3, 2)), ("−2 ¾ cups", Fraction(-11, 4)), ("\\frac34", Fraction(3, 4)),
        ("3 million", 3 * 10**6), ("minus 5", -5), ("negative $5", -5), ("x = - 5", -5), ("− 5", -5),
        ("- Total: 5", 5), ("-> 5", 5), ("m > 3, so 5", 5), ("5 - right", 5), ("5—so it is", 5),
        ("٣", 3), ("４２", 42), ("&minus;5", -5), ("US$5", 5), ("90^\\circ", 90), ("9.8 m/s^2", Fraction(49, 5)),
        ("\\boxed{42}\\text{ cm}^2", 42), ("The area in m^2 is 42", 42), ("5. ", 5), ("3.14...", Fraction(157, 50)),
    ],
)  # fmt: skip
def test_what_people_write_is_read(text, value):
    assert last_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "10-7", "10 - 7", "3–5", "3 + 4", "6 * 7", "6 \\times 7", "2^10", "2^{10}", "2**10", "5²", "3x", "3 x", "x^2",
        "5 x^2", "2\\pi", "2π", "3 \\sqrt{2}", "\\sqrt2", "√2", "sqrt(2)", "log 5", "f(2)", "max(2, 3)",
        "\\binom{5}{2}",
        "\\frac{\\sqrt{3}}{2}", "\\frac{x}{4}", "\\frac{3}{4}x", "\\frac{3}{", "5 ± 0.1", "3+2i", "7/0", "x \\neq 5",
        "12:30", "3:4", "2024-01-05", "1/2/2024", "1.2.3", "v1.2", "GPT-4", "x5", "x_5", "A4", "H2O", "5th", "5k",
        "42-inch", "0x10", "5 cm x 3 cm", "1..5", "1...5", "1,23", "3,4", "0,125", "1.234,5", "12 345 67", "1 234,5",
        "1,234 567", "12,3456", "1234,567", "A - 5", "– 5", "- 5",
        "x-3", "5 - x", "5 - (2)", "x > 5", "x ≤ 5", "x \\leq 5", "3 < x < 5", "x >= 5", "5 t^2", "5C", "5t", "5s2",
        "1e3.5", "5万", "1e9999", "9" * 5000, "10 minus 3",
        "\\frac{" * 50 + "1}{2}",
    ],
)  # fmt: skip
def test_what_is_longer_than_a_number_or_reads_in_two_ways_is_none(text):
    assert last_number(text) is None, text
    assert last_number(f"It is {text}.") is None


@given(
    digits=st.from_regex(r"[1-9]\d{0,6}", fullmatch=True),
    before=st.from_regex(r"([a-zA-Z_][a-z0-9_]{0,4}[-._/^+*]?|\d[-+*^:]|\d\.\d+[.]|)", fullmatch=True),
    after=st.from_regex(
        r"([-+*^:]\d+|/[2-9]|[-.:/]\d+[-.:/]\d+|[b-fi-km-rt-z][a-z_]{3,5}\d|\(\d+\)|!\d|,\d{1,2}|,\d{4}|)",
        fullmatch=True,
    ),
    around=st.sampled_from(["{}", "It is {}.", "$ {} $", "\\boxed{{{}}}", "({})"]),
)
def test_digits_inside_a_longer_token_are_never_credited(digits, before, after, around):
    if before or after:
        read = last_number(around.format(before + digits + after))
        assert read is None or read != Fraction(digits), (before, digits, after)


PIECES = [
    *"012345678 9,.-−+*/^{}()[]$x%e_'½²₂√:!&;٣π\0\1\2\n", "\\frac", "\\sqrt", "\\text", "\\boxed", "\\times", "10^",
    "**", " million", "\\pm", "&#53;", "\\\\", "⁻³", "1e", "cm", " x ", "minus ", "1,234", " 567", "..", "--",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_text_is_read_without_an_error(text):
    assert last_number(text) == ([number.value for number in numerals(text)] or [None])[-1]


def test_a_whole_number_is_written_without_a_point_and_a_single_one_has_nothing_beside_it():
    assert [last_integer(text) for text in ("Move 3!", "−3", "1,000", "3.0", "3/1", "1e0", "x3", "2-3")] == [
        3, -3, 1000, None, None, None, None, None,
    ]  # fmt: skip
    assert [only_number(text) for text in (" 1,234.5 ", "3/4", "$5", "x = 5", "5 6", "many", "")] == [
        Fraction("1234.5"), Fraction(3, 4), 5, None, None, None, None,
    ]  # fmt: skip


def test_hostile_texts_are_read_in_time():
    pieces = (
        "1 ",
        "1,",
        "*a ",
        "\\frac{",
        "\\a{",
        "a(",
        "- ",
        ".",
        "1 2/3 ",
        "½",
        "-",
        "=",
        "<a ",
        "9",
        "x 1",
        "**1** ",
        "½",
        "(",
    )
    started = time.process_time()
    for piece in pieces:
        last_number((piece * 100_000)[:100_000])
    assert time.process_time() - started < 10
