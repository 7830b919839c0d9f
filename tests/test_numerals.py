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
    "It is {}!", '{{"answer": {}}}', "\\text{{It is }} {}", "in 2 steps: {}cm^2", "{}\\%", "on 2024-01-05 it was {}",
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


STYLES = [
    ('$x=\\frac{20+4}{2}=12$', 12), ('$\\sqrt{256}=16$', 16), ('\\sqrt{3^2+4^2}=5', 5), ('x=\\sqrt{4}=2', 2),
    ('\\sqrt{25}= 5', 5), ('$\\theta=30^\\circ$', 30), ('\\lambda=3', 3), ('\\pi=3.14', Fraction(157, 50)),
    ('π=3.14', Fraction(157, 50)), ('3\\times\\frac{4+2}{2}=9', 9), ('2\\cdot\\pi=6.28', Fraction(157, 25)),
    ('\\binom{5}{2}=10', 10), ('\\frac{a}{b}=5', 5), ('\\cos\\theta=0.5', Fraction(1, 2)), ('x≥=5', None),
    ('x \\neq 5', None), ('x \\neq= 5', None), ('x != 5', None), ('x!=5', None), ('x \\not= 5', None),
    ('x /= 5', None), ('x \\le5', None), ('x ≠ 5', None), ('48+24 = <<48+24=72>>72 clips', 72),
    ('5*3=<<5*3=15>>15', 15), ('5*3=<<5*3=15>>15>>15', 15), ('= <<5*3=15>>15', 15), ('$<<5*3=15>>15.00', 15),
    ('= $<<9*2=18>>18 every day', 18), ('<<3-1=2>>2 left', 2), ('5*3=$<<5*3=15>>15', 15),
    ('I had 5 <<5*3=15>>', None), ('She has 5*3 <<5*3=15>> = 15', 15), ('= <<5-8=-3>>-3', -3), ('共12个苹果', 12),
    ('12元', 12), ('12个', 12), ('5人', 5), ('5円', 5), ('5개', 5),
    ('答：5元。', 5), ('정답은 5입니다', 5), ('答えは5です。', 5),
    ('“5”', 5), ('«5»', 5), ('„5“', 5), ('5✅', 5), ('**5**✅', 5), ('✔5', 5), ('5️⃣', 5), ('1️⃣2️⃣', 12),
    ('答案是**5**个', 5), ('3个加5个等于8个', 8), ('3加5', None), ('10除以2', None),
    ('3分之1', None), ('2024年1月5日', None),
    ('5万', None), ('5 万', None), ('5个半', None), ('3点5', None),
    ('第3题答案是5', 5), ('5👍🏽', 5), ('5㎡', 5), ('25℃', 25),
    ('5割', None), ('小明有3个苹果，小红有5个', 5), ('5บาท', 5), ('x→5', 5), ('\\color{red}{5}', 5),
    ('\\colorbox{yellow}{5}', 5), ('{\\Large{5}}', 5), ('\\bf{5}', 5), ('\\hbox{5}', 5), ('\\framebox{5}', 5),
    ('\\boxed{5~000}', 5000), ('\\textcolor{blue}{\\mathbf{5}}', 5), ('{\\color{red} 5}', 5),
    ('\\fcolorbox{red}{white}{5}', 5), ('\\boxed{{5}}', 5), ('\\SI{5}{\\meter\\per\\second}', 5),
    ('x=5 \\tag{1}', 5), ('\\boxed{5}\\checkmark', 5), ('5\\hspace{1cm}', 5), ('\\framebox[2cm]{5}', 5),
    ('\\boldsymbol{5}', 5), ('5 \\text{ million}', 5000000), ('3 Million', 3000000), ('\\log_2 5', None),
    ('\\log_25', None), ('{5 \\choose 2}', None), ('\\arctan 2', None), ('\\cot 45', None), ('|-5|', None),
    ('\\left|-5\\right|', None), ('$|-5|$', None), ('\\lvert -5\\rvert', None), ('\\lfloor 5.5 \\rfloor', None),
    ('⌊ 5.5 ⌋', None), ('x \\equiv 3 \\pmod 7', None), ('x \\equiv 3 \\pmod{7}', None), ('3 (mod 7)', None),
    ('10 mod 3', None), ('2 thousand 5 hundred', None), ('2 million 500 thousand', None),
    ('2 thousand and 5', None), ('2 hundred thousand', None), ('10 divided by 2', None), ('3 point 5', None),
    ('5!', None), ('$5!$', None), ('\\boxed{5!}', None), ('x = 5!', None), ('It is 5!', 5),
    ('The answer is 5!', 5), ('see page 3 100', None), ('It is 3 100', 3100), ('5! = 120', 120), ('|-5| = 5', 5),
    ('|-5|=5', 5), ('\\log_2 8=3', 3), ('\\log_2 8 = 3', 3), ('5 lakh', None), ('3 tenths', None),
    ('3 out of 5', None), ('arctan 2', None), ('log_2 5', None), ('square root of 16', None), ('10% of 50', None),
    ('3 squared', None), ('2\\sqrt{x}', None), ('5\\overline{3}', None), ('0.\\overline{3}', None),
    ('\\overline{AB}=5', 5), ('\\lim_{x \\to 5} f', None), ('\\operatorname{arctan} 2', None),
    ('\\text{lcm}(4,6,9)', None), ('\\sqrt{{5}}', None), ('\\sqrt{\\sqrt{16}}', None),
    ('\\alpha \\text{ is } 5', 5), ('\\mathop{foo} 5', 5), ('\\foo 5', None), ('5 \\foo', None),
    ('\\foo{x}5', None), ('\\sum_{i=1}^{5} i = 15', 15), ('\\sum_{i=1}^{5} i', None), ('\\left.5\\right|', None),
    ('5\\textsuperscript{2}', None), ('answer:\\n5', 5), ('<think>\nLet me see, 3+4 = 7', None),
    ("<think>7</think>I don't know", None), ('<think>41?</think>42', 42), ('so 41</think>42', 42),
    ('<think>a</think>5<think>6', 5), ('[THINK]3[/THINK]4', 4), ('<thinking>3</thinking>', None),
    ('| x | -5 |', -5), ('|a|b|\n|---|---|\n| 5 | 6 |', 6), ('In 2024, 5 people came', 5), ('it costs $5!', 5),
    ('5 times', 5), ("It's 5 percent", 5), ('5 over', 5), ('x >= 5', None),
    ('The angle is $30^{\\circ}\\text{C}$', 30), ('-5', -5), ('2 dozen', 24),
    ("3 and a half", None), ("1 and 1/2", None), ("5 \\, \\text{units}^2", 5), ("5\\text{ meters}^2", 5), ("5千克", 5),
    ("5千", None), ("5조각", 5), ("5조", None), ("n \\mapsto 5", 5), ("\\boxed{\\$18}", 18), ("5<|eot_id|>", 5),
    ("the area is $25\\pi \\approx 78.5$", Fraction(157, 2)), ("\\gcd(12, 18) = 6", 6), ("10 mod 3 = 1", 1),
]  # fmt: skip
"""What models write around a number, and what only contains one."""


@pytest.mark.parametrize(("text", "value"), STYLES)
def test_a_number_is_read_in_every_style_and_a_fragment_in_none(text, value):
    assert last_number(text) == value


@pytest.mark.parametrize("gold", ["12个", "12元", "12 개", "12✅", "“12”", "\\text{12}", "$12$", "**12**"])
def test_a_right_answer_may_be_written_with_a_counter_or_in_quotes(gold):
    assert scored(gold, "so it is 12") == {1.0}


ALONE = ["{}", "{}个", "“{}”", "{}✅", "{{\\Large {}}}", "\\color{{red}}{{{}}}", "$<<9*2=18>>{}", "<think>1</think>{}"]
LEFT = [
    "\\sqrt{{{}}}", "\\frac{{{}+1}}{{2}}", "{} \\times 3", "\\theta", "\\binom{{{}}}{{2}}", "\\log_2 {}", "|-{}|", "π",
    "\\lfloor {} \\rfloor", "{}!", "2^{{{}}}", "\\unknown{{{}}}", "\\sin {}^\\circ", "{} \\pmod 7", "{} \\bmod 7",
    "{{{} \\choose 2}}", "{} divided by 3", "{} point 5", "2 thousand {} hundred", "\\sum_{{i=1}}^{{{}}} i",
]  # fmt: skip


@given(
    left=st.sampled_from(LEFT),
    inside=st.integers(3, 999),
    right=st.integers(0, 10**6),
    space=st.sampled_from(["", " "]),
    alone=st.sampled_from(ALONE),
    around=st.sampled_from(["{}", "${}$", "\\[{}\\]", "\\boxed{{{}}}", "So {}."]),
)
def test_an_expression_has_no_number_and_its_value_stands_after_the_sign_of_equality(
    left, inside, right, space, alone, around
):
    expression = left.format(inside)
    assert last_number(around.format(expression)) is None
    assert last_number(around.format(f"{expression} ={space}{alone.format(right)}")) == right
    for unequal in ("\\neq ", "≠", "\\not= ", ">= ", "≥=", "\\leq "):
        assert last_number(around.format(f"{expression} {unequal}{right}")) is None


@given(st.integers(0, 99), st.integers(0, 99), st.sampled_from(["think", "thinking", "reasoning", "THINK"]))
def test_reasoning_is_not_read(thought, answer, tag):
    assert last_number(f"<{tag}>{thought}?</{tag}>{answer}") == answer
    assert last_number(f"{thought}?</{tag}>\n{answer}") == answer
    assert last_number(f"{answer} <{tag}>{thought}") == answer
    assert last_number(f"<{tag}>{thought}</{tag}>I do not know") is None
    assert last_number(f"<{tag}>\n3+4 = {thought}") is None


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
        "\\a_",
        "\\text{",
        "<think>",
        "</think>",
        "<<1",
        "<<1>>",
        "|-1",
        "1个",
        "1 thousand ",
        "page 1 ",
        "5!",
        "\\a ",
        " ",
        "{",
    )
    started = time.process_time()
    for piece in pieces:
        last_number((piece * 100_000)[:100_000])
    assert time.process_time() - started < 10
