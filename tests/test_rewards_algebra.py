"""Answers in LaTeX, compared as mathematics: on any thread, within a time, and never a fragment."""

import importlib.util
import threading
import time

import pytest

from agentlab.agents import ModelAgent
from agentlab.environments import TaskEnvironment
from agentlab.errors import ConfigError, RewardError
from agentlab.inference import ScriptedEngine
from agentlab.rewards import math_equal
from agentlab.rewards.algebra import math_in
from agentlab.rollout import RolloutConfig, evaluate
from agentlab.types import Task

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def equal():
    return math_equal(timeout_s=60.0)


def task(answer):
    return Task("t", "?", {"answer": answer})


@pytest.mark.parametrize(
    ("right", "answer", "reward"),
    [
        (r"\frac{1}{2}", "0.5", 1),
        (r"$\frac{1}{2}$", r"So it is \boxed{\dfrac12}.", 1),
        ("0.75", "3/4", 1),
        (1000, "$1e3$", 1),
        ("1234567", "$1 234 567$", 1),
        ("567", "1 234 567", 0),
        ("x^2-1", r"\boxed{(x-1)(x+1)}", 1),
        ("x^2-1", r"\boxed{(x-1)(x-1)}", 0),
        (r"2\sqrt{3}", r"The answer is \(\sqrt{12}\).", 1),
        (r"2\sqrt{3}", r"Thus x = 2\sqrt{3}.", 1),
        ("2", r"2\sqrt3", 0),
        ("2", r"$2\pi$", 0),
        (r"\{1,2\}", r"$\{2, 1\}$", 1),
        ("(1,2)", "$(2,1)$", 0),
        ("5", "$x = 5$", 1),
        ("5", "−5", 0),
        ("-5", "$−5$", 1),
        ("3/4", "4", 0),
        (r"\sqrt{2}", "1.41421356", 1),
        (r"\sqrt{2}", "1.42", 0),
        (r"\text{blue}", r"\boxed{\text{blue}}", 1),
        ("6", "It costs $5 and then $6", 1),
        ("5", "no idea", 0),
        ("5", r"\boxed{", 0),
        ("5", r"\boxed{}", 0),
        ("5", r"\boxed{\frac{5}{}", 0),
        ("5", "", 0),
        ("7", r"First \boxed{6}, no, \boxed{7}: $6$", 1),
    ],
)
def test_answers_are_compared_as_mathematics(equal, right, answer, reward):
    assert equal(task(right), answer) == reward


@pytest.mark.parametrize(
    ("answer", "inside"),
    [
        (r"$1$ then \boxed{\frac{1}{2}} so $3$", r"\frac{1}{2}"),
        ("$1$ then $$2$$", "2"),
        (r"\(1\) then \[ 2 \]", "2"),
        (r"\[1\] then $2$", "2"),
        ("$5 and $6 is x+1", "x+1"),
        (" x + 1. ", "x + 1"),
        ("words only", ""),
    ],
)
def test_the_last_delimited_expression_is_what_an_answer_gives(answer, inside):
    assert math_in(answer) == inside


@pytest.mark.parametrize(
    "answer", ["$9^{9^{9^{9}}}$", r"\boxed{10^{10^{10}}}", r"$10^{9}!$", "$(x+1)^{99999}$", "x" * 3000]
)
def test_an_answer_that_is_too_large_to_calculate_earns_0_at_once(equal, answer):
    assert equal(task("x+1"), "$1+x$") == 1.0
    started = time.monotonic()
    assert equal(task("5"), answer) == 0.0
    assert time.monotonic() - started < 30


def test_an_answer_that_takes_too_long_earns_0_and_a_right_answer_that_does_is_an_error():
    equal = math_equal(timeout_s=2.0, processes=1)
    assert equal(task("5"), r"$\Gamma(999999999)$") == 0.0
    with pytest.raises(RewardError, match="longer than timeout_s=2"):
        equal(task(r"\Gamma(999999999)"), "$5$")
    with pytest.raises(RewardError, match="needs an expression"):
        equal(task("10^{10^{10}}"), "$5$")
    assert equal(task("x+1"), "$1+x$") == 1.0


def test_many_threads_may_ask_at_once(equal):
    rewards = {}

    def ask(number):
        rewards[number] = equal(task(f"x+{number}"), f"${number - number % 2}+x$")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == {number: float(number % 2 == 0) for number in range(16)}


def test_it_rewards_episodes_of_a_rollout(equal):
    result = evaluate(
        ScriptedEngine(r"It is $\frac{2}{4}$."),
        [{"prompt": "?", "answer": r"\frac{1}{2}"}] * 4,
        agent_class=ModelAgent,
        env_class=TaskEnvironment,
        env_kwargs={"reward_fn": equal},
        config=RolloutConfig(max_concurrency=4, reward_timeout_s=120.0, step_timeout_s=120.0),
    )
    assert result.success == 1.0


def test_a_right_answer_that_is_no_expression_is_an_error_not_a_zero(equal):
    with pytest.raises(RewardError, match=r'must have data\["answer"\]'):
        equal(Task("t", "?"), "1")
    with pytest.raises(RewardError, match="needs an expression"):
        equal(task(r"\frac{1}{"), "$x$")


def test_impossible_options_and_a_missing_library_are_told_when_the_reward_is_made(monkeypatch):
    with pytest.raises(ConfigError, match="timeout_s must be above 0"):
        math_equal(timeout_s=0.0)
    with pytest.raises(ConfigError, match="processes must be at least 1"):
        math_equal(processes=0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"agentlab\[math\]"):
        math_equal()


@pytest.mark.parametrize(
    ("right", "given", "reward"),
    [
        ("5040", r"\boxed{7!}", 1),
        ("7", r"\boxed{7!}", 0),
        ("5", r"\boxed{|-5|}", 1),
        ("-5", r"\boxed{|-5|}", 0),
        (r"\frac{\pi}{2}", r"\boxed{\arccos 0}", 1),
        ("0", r"\boxed{\arccos 0}", 0),
        ("60", r"\boxed{\sec 60^\circ}", 0),
        (r"\cot 45", r"\boxed{45}", 0),
        ("5", r"\boxed{\lfloor 5.5 \rfloor}", 1),
        ("5.5", r"\boxed{\lfloor 5.5 \rfloor}", 0),
        ("5", r"\boxed{>5}", 0),
        ("5", r"\boxed{\not= 5}", 0),
        ("12", r"\boxed{12_3}", 0),
        ("12_3", r"\boxed{12_3}", 1),
    ],
)
def test_an_argument_of_a_function_or_a_relation_is_no_value(equal, right, given, reward):
    assert equal(task(right), given) == reward


@pytest.mark.parametrize(
    ("right", "given", "reward"),
    [
        ("16", "We have $x=4$. So the answer is 16.", 1),
        ("4", "We have $x=4$. So the answer is 16.", 0),
        ("16", "Since $x=4$, the area is **16**.", 1),
        ("5", "The answer is 5 (since $x=3$).", 1),
        ("(2, 3)", "The answer is (2, 3), since both hold.", 1),
        (r"(x-1)(x+1)", "The answer is $(x-1)(x+1)$, as $x=3$ shows.", 1),
        ("7", r"\begin{align*} y &= 3 \\ x &= 7 \end{align*}", 1),
        ("7", r"\boxed{\begin{aligned}7\end{aligned}}", 1),
        ("7", "<think>So $x = 7$, but wait", 0),
        ("8", "<think>$7$</think>It is $8$.", 1),
    ],
)
def test_the_stated_answer_counts_not_the_last_formula_and_never_reasoning(equal, right, given, reward):
    assert equal(task(right), given) == reward
