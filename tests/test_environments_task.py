"""Environments in which an answer is given, with and without tools on the way to it."""

import asyncio
from typing import Any

import pytest

from agentlab import tracing
from agentlab.environments import TaskEnvironment, ToolEnvironment
from agentlab.errors import AgentError, ConfigError, EnvironmentError_, RewardError, ToolError
from agentlab.rewards import Reward, combine, same_number
from agentlab.tools import Calculator, Lookup, Tool
from agentlab.types import Action, Task, ToolCall

TASK = Task("t", "What is 12 * 11?", {"answer": "132", "table": {"pen": 14}})
NO_FUNCTION: Any = 3
CALL = ToolCall("calculator", {"expression": "12 * 11"})


def broken(city: str) -> str:
    """Fails by a fault of its own."""
    return {}[city]


def closed(city: str) -> str:
    """Says that it is closed."""
    raise ToolError("closed today")


async def late(city: str) -> dict:
    """Answers asynchronously."""
    await asyncio.sleep(0)
    return {"city": city}


class Counter(Tool):
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


TOOLS = {"calculator": Calculator, "broken": broken, "closed": closed, "late": late, "price": Lookup, "count": Counter}


def opened(reward_fn=same_number, **options):
    env = ToolEnvironment(TASK, TOOLS, reward_fn, **options)
    assert env.reset() == ("What is 12 * 11?", {})
    return env


def texts(result):
    return [(answer.text, answer.failed) for answer in result.observation]


def test_a_task_environment_scores_the_answer_and_is_done():
    env = TaskEnvironment(TASK, same_number)
    assert env.reset() == (TASK.prompt, {})
    result = env.step(Action("It is 132."))
    assert (result.observation, result.reward, result.done, dict(result.info)) == (None, 1.0, True, {})


def test_a_task_environment_with_more_turns_lets_a_wrong_answer_be_tried_again():
    env = TaskEnvironment(TASK, same_number, max_turns=2, feedback="No.")
    env.reset()
    wrong = env.step(Action("131"))
    assert (wrong.observation, wrong.reward, wrong.done) == ("No.", 0.0, False)
    assert env.step(Action("132")).reward == 1.0


def test_a_tool_answers_and_the_final_text_is_scored():
    env = opened()
    called = env.step(Action((CALL,)))
    assert texts(called) == [("132", False)]
    assert (called.reward, called.done, called.info["tool_calls"], called.info["tool_failures"]) == (0.0, False, 1, 0)
    final = env.step(Action("132"))
    assert (final.reward, final.done) == (1.0, True)


def test_calls_of_one_turn_are_answered_in_their_order():
    result = opened().step(Action((CALL, ToolCall("price", {"item": "pen"}), ToolCall("late", {"city": "Oslo"}))))
    assert texts(result) == [("132", False), ("14", False), ('{"city": "Oslo"}', False)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall("", {}, "the tool call is empty"), "Error: the tool call is empty"),
        (ToolCall("calculater", {}), "Error: There is no tool 'calculater'. Did you mean 'calculator'?"),
        (ToolCall("calculator", {}), "Error: calculator needs the argument expression."),
        (ToolCall("calculator", {"expression": 3}), "Error: calculator: expression must be text, got a whole number"),
        (ToolCall("calculator", {"expression": "1/0"}), "Error: Division by zero."),
        (ToolCall("closed", {"city": "Oslo"}), "Error: closed today"),
        (ToolCall("broken", {"city": "Oslo"}), "Error: KeyError: 'Oslo'"),
    ],
)
def test_a_call_that_fails_is_text_for_the_model(call, says):
    result = opened().step(Action((call,)))
    ((text, failed),) = texts(result)
    assert text.startswith(says)
    assert failed
    assert (result.done, result.info["tool_failures"]) == (False, 1)
    assert ("tool_errors" in result.info) == (call.name == "broken")


def test_a_fault_of_a_tool_is_told_to_the_person_too():
    result = opened().step(Action((ToolCall("broken", {"city": "Oslo"}),)))
    assert result.info["tool_errors"] == ("broken: KeyError: 'Oslo'",)


def test_the_last_turn_is_cut_and_scored_as_an_empty_answer():
    answers = []
    env = opened(lambda task, answer: answers.append(answer) or 0.25, max_turns=1)
    result = env.step(Action((CALL,)))
    assert (result.done, result.reward, result.info["truncation"], answers) == (True, 0.25, "max_turns", [""])


def test_a_final_text_on_the_last_turn_is_not_cut():
    result = opened(max_turns=1).step(Action("132"))
    assert (result.reward, result.done, "truncation" in result.info) == (1.0, True, False)


def test_a_tool_class_starts_anew_in_every_episode_and_an_instance_goes_on():
    call, shared = Action((ToolCall("count"),)), Counter()
    assert [texts(opened().step(call)) for _ in range(2)] == [[("1", False)]] * 2
    envs = [ToolEnvironment(TASK, {"count": shared}, same_number) for _ in range(2)]
    assert [env.reset() and texts(env.step(call)) for env in envs] == [[("1", False)], [("2", False)]]


def test_a_long_result_is_cut_and_says_how_long_it_was():
    env = ToolEnvironment(TASK, {"long": lambda: "x" * 5000}, same_number, max_result_chars=10)
    env.reset()
    assert texts(env.step(Action((ToolCall("long"),)))) == [("xxxxxxxxxx… (cut; 5000 characters in all)", False)]


def test_async_rewards_are_awaited_and_parts_are_kept():
    async def judged(task, answer):
        await asyncio.sleep(0)
        return 0.5

    result = opened(combine({"answer": (1.0, same_number), "judge": (2.0, judged)})).step(Action("132"))
    assert (result.reward, result.info["reward_parts"]) == (2.0, {"answer": 1.0, "judge": 0.5})
    assert opened(lambda task, answer: Reward(1.0, {"a": 1.0})).step(Action("")).info["reward_parts"] == {"a": 1.0}


@pytest.mark.parametrize("value", [None, float("nan"), "1", True])
def test_a_reward_function_without_a_number_is_an_error_that_names_it(value):
    def my_reward(task, answer):
        return value

    with pytest.raises(RewardError, match="my_reward"):
        opened(my_reward).step(Action("x"))


def test_a_reward_function_that_raises_is_an_error_that_names_it():
    def my_reward(task, answer):
        return 1 / 0

    with pytest.raises(RewardError, match="my_reward raised ZeroDivisionError"):
        opened(my_reward).step(Action("x"))


def test_an_async_tool_on_an_event_loop_is_refused_with_the_way_out():
    async def play():
        return opened().step(Action((ToolCall("late", {"city": "Oslo"}),)))

    ((text, failed),) = texts(asyncio.run(play()))
    assert failed
    assert "asyncio.to_thread" in text


def test_an_action_that_is_neither_text_nor_calls_is_an_error():
    with pytest.raises(AgentError, match="must be text or tool calls here, got int"):
        opened().step(Action(3))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ToolEnvironment(TASK, {"x": 3}, same_number), "A tool must be"),
        (lambda: ToolEnvironment(TASK, TOOLS, NO_FUNCTION), "reward_fn must be a function"),
        (lambda: ToolEnvironment(TASK, TOOLS, same_number, max_result_chars=0), "max_result_chars"),
        (lambda: ToolEnvironment(Task("t", "?"), TOOLS, same_number), "Lookup needs a table"),
        (lambda: TaskEnvironment(TASK, same_number, max_turns=0), "max_turns"),
    ],
)
def test_impossible_options_are_refused_when_it_is_made(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_each_call_and_reward_is_a_span_with_its_tags():
    since_ns = tracing.now_ns()
    env = opened()
    env.step(Action((CALL, ToolCall("closed", {"city": "Oslo"}))))
    env.step(Action("132"))
    mine = [span for span in tracing.spans(since_ns) if span.stage in ("tool", "reward")]
    assert [(span.stage, span.tags.get("tool")) for span in mine] == [
        ("tool", "calculator"),
        ("tool", "closed"),
        ("reward", None),
    ]


def test_a_step_after_the_end_is_refused():
    env = opened()
    env.step(Action("132"))
    with pytest.raises(EnvironmentError_, match="is over"):
        env.step(Action("132"))
