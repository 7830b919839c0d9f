r"""A part of an expression in LaTeX is never taken for the whole: what math-verify drops or misreads is not read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.rewards import math_equal
from agentlab.types import Task

pytest.importorskip("math_verify")
sympy = pytest.importorskip("sympy")
EQUAL = math_equal(timeout_s=60.0, processes=1)


def reward(right, boxed):
    return EQUAL(Task("t", "?", {"answer": right}), rf"So $x=3$, and the answer is \boxed{{{boxed}}}.")


@pytest.mark.parametrize(
    ("right", "boxed", "wanted"),
    [
        ("5", "5'", 0),
        ("5", "5''", 0),
        ("5", r"5^\prime", 0),
        ("5", "f'(5)", 0),
        ("f(5)", "f'(5)", 0),
        ("2x", "f'(x) = 2x", 1),
        ("35", r"5^\circ 30'", 0),
        ("5", r"5\ldots", 0),
        ("6", r"\frac{12_3}{2}", 0),
        ("11", r"5\,6", 0),
        ("11", r"5\qquad 6", 0),
        ("11", r"5\phantom{6}", 0),
        ("567x", r"1\,234\,567x", 0),
        ("1234567x", r"1\,234\,567x", 1),
        ("3", r"\log_2 8", 1),
        ("1/2", r"\frac 1 2", 1),
        ("5", r"\text{not }5", 0),
        ("5", r"5\text{ is wrong}", 0),
        ("5", r"5\text{ or more}", 0),
        ("5", r"5\text{ cm}", 1),
        (r"\{5,6\}", r"5 \text{ or } 6", 1),
        (r"\text{no solution}", r"\text{no solution}", 1),
        (r"\text{no solution}", "5", 0),
        ("5", r"\textbf{5}", 1),
        (r"\frac{\pi}{4}", r"\operatorname{arctan}(1)", 1),
        ("1", r"\operatorname{atan}(1)", 0),
        ("1", r"\gcd(4,x)", 0),
        ("2", r"\gcd(4,6)", 1),
        ("1/3", r"0.\overline{3}", 1),
        ("41/333", r"0.\overline{123}", 1),
        ("7/6", r"1.1\overline{6}", 1),
        ("3", r"0.\overline{3}", 0),
        (r"y\sinh x", r"\sinh{\left(x \right)} \cdot y", 1),
        (r"y\sinh x", r"\sinh{x} y", 1),
        (r"\sinh(xy)", r"\sinh{\left(x \right)} \cdot y", 0),
        (r"2y\sin^{2}(x)", r"\sin^{2}{\left(x \right)} \cdot y \times 2", 1),
        (r"3x", r"\log_{2}{8} \cdot x", 1),
        (r"\ln(x^2)", r"\ln{x}^2", 1),
        (r"\cot(h)", r"\coth", 0),
        (r"\coth(x)", r"\coth(x)", 1),
    ],
)
def test_what_is_dropped_or_misread_is_no_value(right, boxed, wanted):
    assert reward(right, boxed) == wanted


@pytest.mark.parametrize(
    ("right", "boxed", "wanted"),
    [
        ("5", "1=5", 0),
        ("2", "x=1+2=2", 0),
        ("3", "x=1+2=3", 1),
        ("5", "5=x", 1),
        ("5", r"5\approx 3", 0),
        ("5", r"x\approx 5", 1),
        (r"\sqrt{2}", r"\sqrt{2}\approx 1.414", 1),
        (r"\sqrt{2}", r"\sqrt{2}\approx 14.14", 0),
        ("5", "x<5", 0),
        (r"(-\infty,5)", "x<5", 1),
        ("x<5", r"(-\infty,5)", 1),
        ("(1,5)", "1<x<5", 1),
        ("(1,5)", r"1<x\le 5", 0),
        (r"[5,\infty)", r"x\ge 5", 1),
    ],
)
def test_relations_are_compared_as_what_they_say(right, boxed, wanted):
    assert reward(right, boxed) == wanted


@pytest.mark.parametrize(
    ("right", "boxed", "wanted"),
    [
        ("2", r"\sec 60^\circ", 1),
        (r"\frac{1}{2}", r"\sin 30^{\circ}", 1),
        (r"\frac{1}{2}", r"\sin(30°)", 1),
        (r"\frac{1}{2}", r"\sin 30", 0),
        ("30", r"30^\circ", 1),
        ("x+1", r"\arctan(x+1)", 0),
    ],
)
def test_degrees_of_an_angle_are_degrees(right, boxed, wanted):
    assert reward(right, boxed) == wanted


def test_a_box_that_is_only_mentioned_is_no_answer():
    answer = "\\boxed{12}\n\nHere \\boxed{x} means boxed"
    assert EQUAL(Task("t", "?", {"answer": "12"}), answer) == 1.0
    assert EQUAL(Task("t", "?", {"answer": "x"}), answer) == 0.0


X, Y = sympy.symbols("x y", real=True)
LEAVES = st.sampled_from([X, Y]) | st.integers(2, 9).map(sympy.Integer)
FUNCTIONS = [sympy.sinh, sympy.atan, sympy.cos, sympy.Abs, sympy.floor, sympy.exp, lambda part: sympy.sqrt(part**2 + 2)]


def larger(parts):
    pairs = st.tuples(st.sampled_from([sympy.Add, sympy.Mul]), parts, parts).map(lambda drawn: drawn[0](*drawn[1:]))
    return pairs | st.tuples(st.sampled_from(FUNCTIONS), parts).map(lambda drawn: drawn[0](drawn[1]))


EXPRESSIONS = st.recursive(LEAVES, larger, max_leaves=3)
STYLES = st.sampled_from(
    [{}, {"fold_short_frac": True}, {"mul_symbol": "dot"}, {"inv_trig_style": "full"}, {"mul_symbol": "times"}]
)


@settings(max_examples=25, deadline=None)
@given(EXPRESSIONS, STYLES, STYLES)
def test_an_expression_equals_itself_in_any_style_and_not_another_one(expression, style, other):
    right = sympy.latex(expression, **style)
    assert reward(right, sympy.latex(expression, **other)) == 1.0
    assert reward(right, sympy.latex(expression + 1, **other)) == 0.0
    assert reward(right, sympy.latex(2 * expression + 11 * X**2 + 1, **other)) == 0.0


@settings(max_examples=25, deadline=None)
@given(EXPRESSIONS, STYLES)
def test_an_expression_never_equals_a_part_of_itself(expression, style):
    boxed = sympy.latex(expression, **style)
    values = {X: sympy.Rational(7, 3), Y: sympy.Rational(11, 5)}
    whole = expression.subs(values).evalf()
    for part in expression.args:
        if abs(part.subs(values).evalf() - whole) > 1e-3:
            assert reward(sympy.latex(part), boxed) == 0.0
            assert reward(boxed, sympy.latex(part)) == 0.0
