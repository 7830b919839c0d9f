"""Terminal, number games and reasoning-gym: played right and wrong, and trained on with a tiny model."""

import random
import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentlab as al
from agentlab.environments import Countdown, GuessNumber, Reasoning, Terminal, check_environment
from agentlab.environments.games import formula_in, problem_with
from agentlab.errors import ConfigError, RewardError
from agentlab.rewards.code import code_in
from agentlab.tools import Limits, SandboxPool
from agentlab.tools.calculator import evaluate, shown
from agentlab.types import Action, Task, ToolCall

WALLS = "subprocess"
"""Terminals work the same behind all walls; tests of walls are elsewhere."""
SMALL = {"group_size": 4, "groups_per_step": 2, "max_concurrency": 8, "max_tokens": 6, "tokens_per_slot": 1024}


def bash(command: str) -> Action:
    return Action((ToolCall("bash", {"command": command}),))


def open_terminal(task: Task, **options) -> Terminal:
    return Terminal(task, **({"walls": WALLS} | options))


# -- terminal -------------------------------------------------------------------------------------

SOLUTIONS = {
    "find": "grep -rlw {word} . > answer.txt",
    "count": "find . -name '*.log' | xargs grep -h '^{word}' | wc -l > answer.txt",
}


@pytest.mark.parametrize("kind", SOLUTIONS)
def test_a_terminal_task_done_in_bash_earns_its_reward_and_not_done_earns_none(kind):
    for task in al.tasks.terminal(seed=1, count=3, kinds=[kind]):
        word = task.prompt.partition("begin with " if kind == "count" else "the word ")[2].split("?")[0].split(".")[0]
        env = open_terminal(task)
        assert env.reset()[0] == task.prompt
        result = env.step(bash(SOLUTIONS[kind].format(word=word)))
        assert (result.reward, result.done) == (0.0, False)
        result = env.step(Action("Done."))
        assert (result.reward, result.done) == (1.0, True), (task.prompt, task.data)
        assert result.info["reward_parts"] == {"solved": 1.0, "checks": 1.0}
        assert env.reset()[0] == task.prompt
        assert env.step(Action("I would rather not.")).reward == 0.0
        env.close()


def test_fixed_programs_and_settings_are_judged_by_what_they_do():
    seen = set()
    for task in al.tasks.terminal(seed=2, count=8, kinds=["fix"]):
        program = next((path for path in task.data["files"] if path.endswith(".py")), None)
        seen.add(program is None)
        env = open_terminal(task, partial=True)
        env.reset()
        if program is None:
            before, after = (
                task.prompt.partition(f"{word} ")[2].split(",")[0].split(".")[0] for word in ("to", "it to")
            )
            env.step(bash(f"find . -name '*.conf' | xargs sed -i 's/port = {before}$/port = {after}/'"))
        else:
            fixed = {"largest": "max(numbers)", "smallest": "min(numbers)", "total": "sum(numbers)"} | {
                "evens": "[n for n in numbers if n % 2 == 0]",
                "backwards": "numbers[::-1]",
                "squares": "[n ** 2 for n in numbers]",
            }
            name = program.removesuffix(".py")
            env.step(
                bash(f"printf 'def {name}(numbers):\\n    return {fixed[name].replace('%', '%%')}\\n' > {program}")
            )
        assert env.step(Action("done")).reward == 1.0, task.prompt
        env.close()
    assert seen == {True, False}


def test_hostile_answers_are_read_in_time():
    started = time.process_time()
    pieces = ("~", "-", "1 (a", "1 aa ", "*1 ", "\\text{", "\\frac{", "1 x ", "1*\n", "<think>", "1=")
    hostile = ("<answer>" * 100_000, "```" + " " * 500_000, "```python\n" * 50_000, "1 + " * 200_000)
    for text in (*hostile, *((piece * 20_000)[:20_000] for piece in pieces)):
        assert len(code_in(text)) <= len(text)
        assert len(formula_in(text)) <= len(text)
    assert time.process_time() - started < 2


def test_a_program_that_prints_what_it_likes_earns_nothing():
    task = next(t for t in al.tasks.terminal(seed=2, kinds=["fix"]) if any(p.endswith(".py") for p in t.data["files"]))
    name = next(path for path in task.data["files"] if path.endswith(".py"))
    env = open_terminal(task)
    env.reset()
    env.step(bash(f"printf 'print(\"ok\")\\nimport sys\\nsys.exit(0)\\n' > {name}"))
    assert env.step(Action("done")).reward == 0.0
    env.close()


def test_episodes_have_files_of_their_own_and_leave_none_behind():
    task = Task("t", "?", {"files": {"a": "a"}, "checks": [{"file": "b", "is": "b"}]})
    first, second = open_terminal(task), open_terminal(task)
    for env in (first, second):
        env.reset()
    first.step(bash("echo b > b"))
    assert [env.step(Action("done")).reward for env in (first, second)] == [1.0, 0.0]
    first.close()
    second.close()
    third = open_terminal(task)
    third.reset()
    assert third.step(bash("ls")).observation[0].text == "a"
    third.close()


def test_a_terminal_offers_python_and_files_and_is_judged_at_its_last_turn():
    task = Task("t", "?", {"files": {"a": "1"}, "checks": [{"file": "a", "is": ["2", "3"]}, {"file": "c", "is": "c"}]})
    env = open_terminal(task, tools=("python", "files"), max_turns=2, partial=True)
    env.reset()
    calls = (
        ToolCall("python", {"code": "open('a', 'w').write('2')"}),
        ToolCall("files", {"command": "read", "path": "a"}),
        ToolCall("bash", {"command": "ls"}),
    )
    texts = [result.text for result in env.step(Action(calls)).observation]
    assert texts[:2] == ["1", "2"] and "There is no tool 'bash'" in texts[2]
    last = env.step(Action((ToolCall("files", {"command": "list"}),)))
    assert (last.reward, last.done, last.info["truncation"]) == (0.5, True, "max_turns")
    env.close()


def test_a_terminal_survives_what_is_done_in_it():
    task = Task("t", "?", {"checks": [{"file": "b", "is": "b"}]})
    env = open_terminal(task, limits=Limits(timeout_s=1.0))
    env.reset()
    assert "ran longer than 1 s" in env.step(bash("sleep 100")).observation[0].text
    assert "wrote more than" in env.step(bash("yes")).observation[0].text
    env.step(bash("echo b > b"))
    assert env.step(Action("done")).reward == 1.0
    env.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: al.tasks.terminal(kinds=["find", "cuont"]), "Did you mean 'count'"),
        (lambda: al.tasks.terminal(kinds="find"), "must be a list"),
        (lambda: al.tasks.terminal(num_files=1), "2 to 50"),
        (lambda: al.tasks.terminal(prompt="?"), "must contain {what}"),
        (lambda: open_terminal(Task("t", "?")), "needs task.data"),
        (lambda: open_terminal(Task("t", "?", {"checks": [{"file": "a"}]})), "A check must be"),
        (lambda: open_terminal(Task("t", "?", {"checks": [{"file": "a", "is": ""}]}), tools=("bsh",)), "mean 'bash'"),
        (lambda: al.tasks.guess_number(low=3, high=3), "low must be below high"),
        (lambda: al.tasks.countdown(numbers=1), "2 to 8"),
        (lambda: al.tasks.countdown(targets=(0, 3)), "at least 1"),
        (lambda: GuessNumber(Task("t", "?")), "needs task.data"),
        (lambda: Countdown(Task("t", "?")), "needs task.data"),
    ],
)
def test_impossible_options_are_refused_at_once(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# -- games ----------------------------------------------------------------------------------------


def test_halving_finds_every_number_and_says_higher_or_lower():
    for task in al.tasks.guess_number(seed=0, count=20):
        env = GuessNumber(task, max_turns=7)
        env.reset()
        low, high, result = 1, 100, None
        while result is None or not result.done:
            guess = (low + high) // 2
            result = env.step(Action(f"Is it {guess}?"))
            if not result.done:
                low, high = (guess + 1, high) if "higher" in result.observation else (low, guess - 1)
        assert result.reward == 1.0
    env = GuessNumber(task, max_turns=3)
    env.reset()
    assert [env.step(Action(text)).reward for text in ("no idea", "9" * 5000, "-5")] == [0.0, 0.0, 0.0]


@given(seed=st.integers(0, 10_000), numbers=st.integers(2, 6))
def test_every_countdown_can_be_solved_by_its_own_solution(seed, numbers):
    task = next(iter(al.tasks.countdown(seed=seed, numbers=numbers)))
    env = Countdown(task)
    env.reset()
    assert (
        env.step(Action(f"Let me see.\n<answer>{task.data['solution']} = {task.data['target']}</answer>")).reward == 1
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("(3 + 4) * 5", ""),
        ("So 3 + 4 = 7, and\n(3 + 4) * 5 = 35", ""),
        ("I think <answer>(3+4)×5</answer> it is", ""),
        ("3 * 5", "makes 15, not 35"),
        ("5 * 5 + 10", "uses 5 more often"),
        ("35 + 0", "uses 35 more often"),
        ("35", "no formula"),
        ("", "no formula"),
        ("3 / (4 - 4)", "Division by zero"),
        ("(3 + ", "cannot be worked out"),
        ("3 ** 4 ** 5 ** 9", "cannot be worked out"),
        ("-(3 + 4) * 5", "makes -35, not 35"),
        ("−(3 + 4) × 5", "makes -35, not 35"),
        ("- (3 + 4) * 5", ""),
        ("2^(3 + 4) * 5", "uses 2 more often"),
        ("sqrt(3 + 4) * 5", "cannot be worked out"),
        ("x(3 + 4) * 5", "cannot be worked out"),
        ("1,(3 + 4) * 5", "cannot be worked out"),
        ("(3 + 4) * 5x", "cannot be worked out"),
        ("I use (3 + 4) * 5 here.", ""),
        ("The formula is (3 + 4) * 5!", ""),
    ],
)
def test_a_formula_is_worked_out_exactly_and_each_number_is_used_once(answer, says):
    problem = problem_with(formula_in(answer), (3, 4, 5, 4), 35)
    assert says in problem and bool(says) == bool(problem)


@pytest.mark.parametrize(
    ("answer", "numbers", "target", "reward"),
    [
        ('3 x 4 + 5', (3, 4, 5), 17, 1.0), ('3 x 4 + 5', (3, 4, 5), 9, 0.0),
        ('\\boxed{3 \\times 4 + 5}', (3, 4, 5), 17, 1.0), ('\\boxed{3 \\times 4 + 5}', (3, 4, 5), 9, 0.0),
        ('$10 \\div 2 + 3$', (10, 2, 3), 8, 1.0), ('$10 \\div 2 + 3$', (10, 2, 3), 5, 0.0),
        ('10 x (2 + 3)', (10, 2, 3), 50, 1.0), ('10 x (2 + 3)', (10, 2, 3), 5, 0.0), ('[3*4]+5', (3, 4, 5), 17, 1.0),
        ('[3*4]+5', (3, 4, 5), 12, 0.0), ('\\frac{10}{2} + 3 - 1', (10, 2, 3, 1), 7, 1.0),
        ('\\frac{10}{2} + 3 - 1', (10, 2, 3, 1), 2, 0.0), ('$3 \\times 4 + 5$', (3, 4, 5), 17, 1.0),
        ("3*4+5 (that's 17)", (3, 4, 5), 17, 1.0), ('17 = 3*4+5', (3, 4, 5), 17, 1.0),
        ('3*4+5 = 17', (3, 4, 5), 17, 1.0), ('3*4+5 (= 17)', (3, 4, 5), 17, 1.0),
        ('(3*4+5 = 17)', (3, 4, 5), 17, 1.0), ('(the formula 3*4+5)', (3, 4, 5), 17, 1.0),
        ('**3*4+5**', (3, 4, 5), 17, 1.0), ('*3*4+5*', (3, 4, 5), 17, 1.0),
        ('**Answer: 3*4+5** is it', (3, 4, 5), 17, 1.0), ('`3*4+5`', (3, 4, 5), 17, 1.0),
        ('3 × 4 + 5 → 17', (3, 4, 5), 17, 1.0), ('3*4+5 -> 17', (3, 4, 5), 17, 1.0),
        ('3*4+5 => 17', (3, 4, 5), 17, 1.0), ('3 times 4 plus 5', (3, 4, 5), 17, 1.0),
        ('10 : 2 + 3', (10, 2, 3), 8, 1.0), ('10:2+3', (10, 2, 3), 8, 1.0), ('10 :2 + 3', (10, 2, 3), 5, 0.0),
        ('Step 1: 3*4+5', (3, 4, 5), 17, 1.0), ('{3*4}+5', (3, 4, 5), 17, 1.0),
        ('\\boxed{{3*4}+5}', (3, 4, 5), 17, 1.0),
        ('\\left(3+4\\right)\\cdot 5 = 35', (3, 4, 5), 35, 1.0), ('3 y 4 + 5', (3, 4, 5), 9, 0.0),
        ('4 + 5 times x', (4, 5), 9, 0.0), ('4+5 squared', (4, 5), 9, 0.0), ('3 & 4 + 5', (3, 4, 5), 9, 0.0),
        ('3 @ 4 + 5', (3, 4, 5), 9, 0.0), ('3² + 4 + 5', (3, 4, 5), 9, 0.0), ('3 mod 4 + 5', (3, 4, 5), 9, 0.0),
        ('3 \\bmod 4 + 5', (3, 4, 5), 9, 0.0), ('\\sqrt{9} 4 + 5', (4, 5), 9, 0.0),
        ('3\\sqrt{4 + 5}', (4, 5), 9, 0.0), ('So 3 + 4 = 7, and (3 + 4) * 5 = 35', (3, 4, 5), 35, 1.0),
        ('3*4+5 = 12+5 = 17', (3, 4, 5), 17, 1.0), ('3+4 = 7; y = 3*4+5', (3, 4, 5), 17, 1.0),
        ('<think>3*4+5</think>no idea', (3, 4, 5), 17, 0.0), ('<think>3+4<answer>3*4+5</answer>', (3, 4, 5), 17, 0.0),
        ('<think>3+4</think><answer>3*4+5</answer>', (3, 4, 5), 17, 1.0), ('{"answer": "3*4+5"}', (3, 4, 5), 17, 1.0),
        ('3 &times; 4 + 5', (3, 4, 5), 17, 1.0), ('3 ⋅ 4 + 5', (3, 4, 5), 17, 1.0), ('3 ∗ 4 + 5', (3, 4, 5), 17, 1.0),
        ('\\begin{aligned} 3 \\times 4 + 5 &= 17 \\end{aligned}', (3, 4, 5), 17, 1.0),
        ('The answer is $\\boxed{\\frac{10}{2}+3}$.', (10, 2, 3), 8, 1.0), ('(3+4*5', (3, 4, 5), 23, 0.0),
        ('3*4+5)', (3, 4, 5), 17, 0.0), ('Target 17: 3*4+5', (3, 4, 5), 17, 1.0),
        ('Using 3, 4, 5: 3*4+5', (3, 4, 5), 17, 1.0), ('x = 3*4+5', (3, 4, 5), 17, 1.0),
        ('3*4+5 gives 17', (3, 4, 5), 17, 1.0), ('3*4+5 is 17.', (3, 4, 5), 17, 1.0),
        ('1. 3*4+5', (3, 4, 5), 17, 1.0), ('3*4+5, which is 17', (3, 4, 5), 17, 1.0),
        ('3*4+5, 17', (3, 4, 5), 17, 0.0), ('3*\n4+5', (3, 4, 5), 9, 0.0), ('3 *\n4 + 5', (3, 4, 5), 17, 1.0),
        ('3 + \\text{foo} 4 + 5', (3, 4, 5), 9, 0.0),
    ],
)  # fmt: skip
def test_a_formula_is_read_whole_in_the_usual_styles_or_not_at_all(answer, numbers, target, reward):
    env = Countdown(Task("c", "?", {"numbers": numbers, "target": target}))
    env.reset()
    assert env.step(Action(answer)).reward == reward


TIMES, OVER = (
    ["*", "x", "X", "×", "·", "∗", "\\times ", "\\cdot ", "times"],
    ["/", "÷", ":", "\\div ", "divided by", "∕"],
)
AROUND_FORMULAS = [
    "{}", "${}$", "\\( {} \\)", "\\boxed{{{}}}", "**{}**", "{} = {value}", "{value} = {}", "So: {} (that's {value})",
    "`{}`", "<answer>{}</answer>", "<think>1 + 1</think>{}", "x = {}", "The formula is {}.", "1. {}",
    "{} \\approx {value}", "({} = {value})",
]  # fmt: skip


@given(
    numbers=st.lists(st.integers(1, 99), min_size=3, max_size=3),
    operators=st.tuples(*[st.sampled_from(["+", "-", "−", "–", "plus", *TIMES, *OVER])] * 2),
    brackets=st.sampled_from(["()", "[]", "{}", None]),
    around=st.sampled_from(AROUND_FORMULAS),
    other=st.integers(1, 99),
)
def test_a_formula_in_any_style_makes_its_value_and_nothing_else(numbers, operators, brackets, around, other):
    first, second = (
        "*" if sign in TIMES else "/" if sign in OVER else "+" if sign in ("+", "plus") else "-" for sign in operators
    )
    opened, closed = brackets or ("", "")
    a, b, c = numbers
    plain = f"({a} {first} {b}) {second} {c}" if brackets else f"{a} {first} {b} {second} {c}"
    value = evaluate(plain)
    formula = f"{opened}{a} {operators[0]} {b}{closed} {operators[1]} {c}"
    answer = around.format(formula, value=shown(value))
    assert problem_with(formula_in(answer), numbers, value) == "", answer
    if other != value:
        assert problem_with(formula_in(answer), numbers, other), answer
    for unknown in ("y", "@", "&", "mod", "\\bmod", "\\foo", "to the power of", "%%"):
        joined = around.format(f"{a} {unknown} {b} {operators[1]} {c}", value=shown(value))
        fragment = evaluate(f"{b} {second} {c}")
        assert problem_with(formula_in(joined), numbers, fragment), joined


@pytest.mark.parametrize(
    ("guess", "says"),
    [
        ("Is it 42?", "Right."),
        ("Between 1-100 I say 42.", "Right."),
        ("−42", "higher than -42"),
        ("4.2e1", "no number"),
        ("42.5", "no number"),
        ("1-42", "no number"),
        ("x42", "no number"),
        ("1,042", "lower than 1042"),
        ("9" * 20, "too long"),
    ],
)
def test_a_guess_is_the_last_number_and_no_part_of_anything_longer(guess, says):
    env = GuessNumber(Task("g", "?", {"number": 42}))
    env.reset()
    assert says in env.step(Action(guess)).observation


@given(st.text(st.sampled_from("<answer>/=()*+-0123456789. \nx")))
def test_no_answer_breaks_a_game(text):
    for env in (
        GuessNumber(Task("g", "?", {"number": 3})),
        Countdown(Task("c", "?", {"numbers": (3, 4), "target": 12})),
    ):
        env.reset()
        assert env.step(Action(text)).reward in (0.0, 1.0)


# -- reasoning-gym --------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", ["chain_sum", "leg_counting", "spell_backward"])
def test_reasoning_gyms_own_answers_earn_everything_and_others_less(dataset):
    pytest.importorskip("reasoning_gym")
    for task in al.tasks.reasoning(dataset, seed=3, count=3):
        env = Reasoning(task, max_turns=2)
        assert env.reset()[0] == task.prompt == task.data["entry"]["question"]
        assert env.step(Action("no idea")).reward == 0.0
        assert env.step(Action(f"I say <answer>{task.data['answer']}</answer>.")).reward == 1.0


def test_reasoning_tasks_repeat_and_keep_held_out_ones_apart():
    pytest.importorskip("reasoning_gym")
    first, again = (list(islice(al.tasks.reasoning("chain_sum", seed=1), 5)) for _ in range(2))
    assert first == again
    assert {t.prompt for t in al.tasks.reasoning("chain_sum", 9, 20, split="eval")}.isdisjoint(
        t.prompt for t in al.tasks.reasoning("chain_sum", 1, 100)
    )


def test_unknown_datasets_and_options_of_reasoning_gym_are_refused():
    pytest.importorskip("reasoning_gym")
    for options, says in (
        ({"dataset": "chain_sun"}, "Did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "min_term": 3}, "Did you mean 'min_terms'"),
        ({"dataset": "chain_sum", "min_terms": -3}, "refuses its options"),
    ):
        with pytest.raises(ConfigError, match=says):
            al.tasks.reasoning(**options)
    with pytest.raises(ConfigError, match=r"needs tasks of al\.tasks\.reasoning"):
        Reasoning(Task("t", "?"))


# -- code rewards ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool():
    with SandboxPool(1, Limits(timeout_s=2.0), walls=WALLS) as made:
        yield made


ADD = "def add(a, b):\n    return a + b"
TESTS = [
    {"call": "add(2, 3)", "equals": 5},
    {"call": "[add('a', 'b'), add((1,), (2,))]", "equals": ["ab", (1, 2)]},
    {"assert": "assert add(0.5, 0.25) == 0.75\nassert add(0, 0) == 0"},
]


def reward_of(pool, answer, tests=TESTS, **options):
    return al.rewards.code_tests(pool, **options)(Task("t", "?", {"tests": tests}), answer)


def test_right_code_passes_its_tests_and_wrong_code_earns_its_share(pool):
    right = reward_of(pool, f"Here it is:\n```python\n{ADD}\n```\nIt adds.")
    assert (right.value, right.parts) == (1.0, {"tests": 1.0, "runs": 1.0})
    wrong = ADD.replace("a + b", "a + b if isinstance(a, int) else a")
    assert reward_of(pool, wrong).value == 0.0
    assert reward_of(pool, wrong, partial=True).value == pytest.approx(1 / 3)
    assert reward_of(pool, "no code at all!").parts == {"tests": 0.0, "runs": 0.0}


def test_programs_that_read_and_print_are_compared_by_their_lines(pool):
    tests = [{"input": "3\n4\n", "output": "7"}, {"input": "1\n-1\n", "output": "0\n"}]
    program = "import sys\na, b = map(int, sys.stdin)\nsys.stdout.write(f'{a + b} \\n')"
    assert reward_of(pool, program, tests).value == 1.0
    assert reward_of(pool, "print(7)", tests, partial=True).value == 0.5


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('5'); print('true'); quit()",
        "class Any:\n    __eq__ = lambda s, o: True\n    __iter__ = lambda s: iter([])\ndef add(a, b): return Any()",
        "import json\njson.dumps = lambda v: '5'\ndef add(a, b): return 1",
        "def add(a, b):\n    while True: pass",
    ],
)
def test_code_that_cheats_or_never_ends_earns_nothing(pool, code):
    assert reward_of(pool, code, [{"call": "add(2, 3)", "equals": 5}, {"call": "add(3, 3)", "equals": 6}]).value == 0.0


@pytest.mark.parametrize("tests", [None, [], "assert True", [{"call": "f()"}], [{}]])
def test_missing_or_malformed_tests_are_an_error_and_never_a_reward_of_0(pool, tests):
    with pytest.raises(RewardError):
        reward_of(pool, ADD, tests)
    with pytest.raises(ConfigError, match="must be an al.tools.SandboxPool"):
        al.rewards.code_tests(None)


# -- what holds for all of them -------------------------------------------------------------------

WORLDS = {
    "terminal": (lambda: al.tasks.terminal(seed=0, num_files=2), Terminal, {"walls": WALLS}, bash("ls")),
    "guess": (lambda: al.tasks.guess_number(seed=0), GuessNumber, {}, Action("50")),
    "countdown": (lambda: al.tasks.countdown(seed=0), Countdown, {}, Action("1 + 2")),
    "reasoning": (lambda: al.tasks.reasoning("chain_sum", seed=0), Reasoning, {}, Action("3")),
}


@pytest.fixture(scope="module")
def model():
    return al.tiny_model(seed=1)


@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_wrong_with_it(name):
    tasks, env_class, options, action = WORLDS[name]
    assert check_environment(env_class, next(iter(tasks())), actions=[action, action], env_kwargs=options) == ()


@pytest.mark.parametrize("name", WORLDS)
def test_a_tiny_model_is_trained_on_it_for_a_few_updates(name, model):
    tasks, env_class, options, _ = WORLDS[name]
    uses_tools = name == "terminal"
    learner = al.GRPOLearner(
        model=model,
        agent_class=al.ToolAgent if uses_tools else al.ModelAgent,
        agent_kwargs={"tool_map": {"bash": as_bash}, "tool_parser_name": "short"} if uses_tools else {},
        env_class=env_class,
        env_kwargs=options | {"max_turns": 2},
        config=al.GRPOConfig(**SMALL),
    )
    run = learner.train(tasks(), steps=2).wait()
    assert len(run.metrics) == 2 and run.snapshot().failures == {}
    assert {t.reward for t in run.trajectories} <= {0.0, 1.0} and all(t.num_sampled for t in run.trajectories)


def as_bash(command: str) -> str:
    """Run a bash script; the environment does it."""
    return command


def test_a_latency_can_be_put_around_them():
    env = al.environments.Latency(GuessNumber, 0.01)(next(iter(al.tasks.guess_number())), max_turns=1)
    env.reset()
    assert env.step(Action("0")).done


def test_random_bytes_in_a_terminal_end_the_episode_and_nothing_else():
    env = open_terminal(Task("t", "?", {"checks": [{"file": "b", "is": "b"}]}), max_turns=4)
    env.reset()
    noise = "".join(chr(random.Random(3).randrange(1, 0x2FFF)) for _ in range(500))
    assert env.step(bash(noise)).observation[0].text
    assert env.step(bash("\ud800")).observation[0].text
    assert env.step(Action(noise)).done
    env.close()
