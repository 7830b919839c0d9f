"""Rewards in the box: numbers within a tolerance, patterns, formats, judges; none is ever silently 0."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.agents import ModelAgent
from agentlab.environments import TaskEnvironment, ToolEnvironment
from agentlab.errors import ConfigError, RewardError
from agentlab.inference import ScriptedEngine
from agentlab.rewards import Reward, combine, endpoint, exact, in_format, in_json, inside, judge, numeric, regex
from agentlab.rollout import RolloutConfig, evaluate, run_episode
from agentlab.types import Task


def task(**data: Any) -> Task:
    return Task("t", "What is it?", data)


@pytest.mark.parametrize(
    ("wanted", "answer", "options", "reward"),
    [
        (3.14159, "about 3.1416", {"relative": 1e-4}, 1),
        (3.14159, "about 3.15", {"relative": 1e-4}, 0),
        ("1,000", "1e3", {}, 1),
        (-2.5e-3, "x = -0.0025", {}, 1),
        (100, "98", {"absolute": 2}, 1),
        (100, "97.9", {"absolute": 2}, 0),
        (0, "nothing", {}, 0),
        (7, "5, then 7.", {}, 1),
        (7, "9e999", {}, 0),
        (1e-300, "1×10^-300", {}, 1),
        (2 / 3, "2/3", {}, 1),
        (5, "5%", {"absolute": 0.1}, 1),
    ],
)
def test_a_number_counts_within_its_tolerance(wanted, answer, options, reward):
    assert numeric(**options)(task(answer=wanted), answer) == reward


@given(number=st.floats(-1e9, 1e9), share=st.floats(0, 1e-3))
def test_what_deviates_by_less_than_allowed_is_right(number, share):
    assert numeric(relative=2e-3)(task(answer=number), f"{number * (1 + share):.17g}") == 1.0


@pytest.mark.parametrize(
    ("pattern", "options", "answer", "reward"),
    [
        (r"\byes\b", {}, "Oh yes.", 1),
        (r"\byes\b", {}, "Oh YES.", 0),
        (r"\byes\b", {"ignore_case": True}, "Oh YES.", 1),
        (r"yes", {"whole": True}, " yes\n", 1),
        (r"yes", {"whole": True}, "yes!", 0),
    ],
)
def test_a_pattern_is_searched_or_must_match_all(pattern, options, answer, reward):
    assert regex(pattern, **options)(task(), answer) == reward
    assert regex(**options)(task(pattern=pattern), answer) == reward


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("<think>a</think>\n<answer>b</answer>", 1),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think>a</think><answer>b</answer> bye", 0),
        ("<think>a</think><answer>b", 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0),
        ("b", 0),
    ],
)
def test_a_format_is_its_tags_in_order_and_nothing_else(answer, reward):
    assert in_format("think", "answer")(task(), answer) == reward


def test_a_reward_can_be_given_only_what_stands_inside_a_tag():
    assert inside("answer", exact)(task(answer="7"), "<answer>6</answer> no: <answer> 7 </answer>") == 1.0
    assert inside("answer", exact)(task(answer="7"), "7") == 0.0
    assert in_json("name")(task(), '{"name": 1, "x": 2}') == 1.0
    assert [in_json("name")(task(), text) for text in ("{}", "[1]", "name", "[" * 9999)] == [0.0] * 4


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: regex("("), "must be a regular expression"),
        (lambda: in_format(), "names of tags"),
        (lambda: in_format("a b"), "names of tags"),
        (lambda: inside("answer", 3), "inside must be like"),
        (lambda: numeric(relative=-1), "relative must be at least 0"),
        (lambda: judge(tries=0), "tries must be at least 1"),
        (lambda: endpoint("localhost", "m"), "must begin with"),
        (lambda: endpoint("http://x", "m", tries=0), "must be above 0"),
    ],
)
def test_impossible_options_are_refused_when_the_reward_is_made(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("reward_fn", "says"),
    [
        (numeric(), r'needs a number as task.data\["answer"\]'),
        (regex(), r'must have a pattern in data\["pattern"\]'),
    ],
)
def test_a_task_that_lacks_what_is_compared_is_an_error_not_a_zero(reward_fn, says):
    with pytest.raises(RewardError, match=says):
        reward_fn(task(answer="many", pattern=3), "1")


def asking(*answers: str) -> tuple[Any, list[Any]]:
    """Somebody who answers in turn, and what they were asked."""
    asked: list[Any] = []

    async def ask(messages: Any) -> str:
        asked.append(messages)
        return answers[len(asked) - 1]

    return ask, asked


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        (["Right. Grade: 8"], 0.8),
        (["7"], 0.7),
        (["Hm.", "**Grade:** 10"], 1.0),
        (["Grade: 99", "Grade: 0"], 0.0),
        (["Grade: -3", "Grade: 3"], 0.3),
        (["Grade: −3", "Grade: 3"], 0.3),
        (["Grade: 8/10."], 0.8),
        (["I give it 8 out of 10"], 0.8),
        (["**8** / 10"], 0.8),
        (["Grade: 4/5", "8"], 0.8),
        (["It is worth 4 out of 5.", "8"], 0.8),
        (["Grade: 7-8", "Grade: 7.5"], 0.75),
        (["Grade: 10^2", "Grade: 1e1"], 1.0),
        (["Grade: 5. It misses 2 of 3 steps."], 0.5),
        (["Grade: &#65;", "Grade: 6"], 0.6),
    ],
)
def test_a_judge_grades_from_0_to_1_and_is_asked_again_where_it_gave_no_grade(said, reward):
    ask, asked = asking(*said)
    assert asyncio.run(judge(ask=ask)(task(answer="blue"), "It is blue.")) == reward
    assert len(asked) == len(said)
    assert all(text in asked[0][1]["content"] for text in ("What is it?", "blue", "It is blue.", "Grade: n"))


def test_a_judge_that_gives_no_grade_is_an_error_not_a_zero():
    ask, _ = asking("Hm.", "Well.")
    with pytest.raises(RewardError, match="Asked 2 times, it said 'Well.'"):
        asyncio.run(judge(ask=ask)(task(), "x"))
    with pytest.raises(RewardError, match="needs the engine of a run"):
        asyncio.run(judge()(task(), "x"))


class Server:
    """A server that gives these answers, a status and a body each, in turn."""

    def __init__(self, *answers: tuple[int, Any]):
        waiting, self.asked = list(answers), []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((self.path, self.headers.get("Authorization"), body))
                status, answer = waiting.pop(0)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "Server":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def completion(text: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}]}


def test_a_judge_behind_an_endpoint_is_asked_as_its_protocol_wants_and_again_when_busy():
    with Server((503, {}), (200, completion("Grade: 5"))) as server:
        reward_fn = judge(ask=endpoint(server.url, "judge-1", api_key="k"))
        assert asyncio.run(reward_fn(task(), "x")) == 0.5
    path, key, body = server.asked[1]
    assert (path, key, body["model"], len(server.asked)) == ("/v1/chat/completions", "Bearer k", "judge-1", 2)


@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [(401, {}, "answered 401"), (200, {"choices": []}, "chat completion"), (200, completion(None), "answer with text")],
)
def test_what_a_judges_server_refuses_is_an_error_and_not_repeated(status, answer, says):
    with Server((status, answer)) as server, pytest.raises(RewardError, match=says):
        asyncio.run(judge(ask=endpoint(server.url, "m"))(task(), "x"))
    assert len(server.asked) == 1


def test_a_judge_that_cannot_be_reached_is_an_error():
    with Server() as server:
        url = server.url
    with pytest.raises(RewardError, match="cannot be reached"):
        asyncio.run(endpoint(url, "m", tries=1)([]))


def judging_engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request, prompt: "Good. Grade: 9" if "You grade answers" in prompt else "blue")


@pytest.mark.parametrize(
    ("env_class", "options"), [(TaskEnvironment, {}), (ToolEnvironment, {"tool_map": {}})], ids=["plain", "tools"]
)
def test_the_engine_of_a_rollout_judges_and_what_it_says_is_not_trained_on(env_class, options):
    reward_fn = combine({"judge": (1.0, judge()), "exact": (0.5, exact)})
    engine = judging_engine()
    trajectory = run_episode(
        engine,
        {"prompt": "What is it?", "answer": "blue"},
        agent_class=ModelAgent,
        env_class=env_class,
        env_kwargs={"reward_fn": reward_fn, **options},
    )
    assert trajectory.failure is None
    assert trajectory.reward == pytest.approx(1.4)
    assert trajectory.reward_parts == {"judge": 0.9, "exact": 1.0}
    assert trajectory.num_sampled == len("blue") + 1
    assert {session.split("/")[-1] for session in engine.released} == {"0", "judge"}


def test_a_judge_without_a_grade_costs_the_episode_its_reward():
    engine = ScriptedEngine("I cannot say.")
    trajectory = run_episode(
        engine, {"prompt": "?"}, agent_class=ModelAgent, env_class=TaskEnvironment, env_kwargs={"reward_fn": judge()}
    )
    assert not trajectory.scored and trajectory.failure.stage == "reward"
    assert "must end with" in trajectory.failure.error


def test_a_judge_inside_a_tag_is_still_awaited_on_the_loop():
    found = evaluate(
        ScriptedEngine(lambda request, prompt: "Grade: 10" if "You grade" in prompt else "<answer>blue</answer>"),
        [{"prompt": "?"}] * 3,
        agent_class=ModelAgent,
        env_class=TaskEnvironment,
        env_kwargs={"reward_fn": inside("answer", judge())},
        config=RolloutConfig(max_concurrency=3),
    )
    assert found.success == 1.0


def test_parts_are_awaited_together_and_one_that_fails_is_named():
    async def late(task: Task, answer: str) -> Reward:
        await asyncio.sleep(0)
        return Reward(0.5, {"inner": 1.0})

    both = combine({"late": (2.0, late), "exact": (1.0, exact)})
    assert asyncio.run(both(task(answer="a"), "a")) == Reward(2.0, {"late": 0.5, "exact": 1.0})
    with pytest.raises(RewardError, match='must have data\\["answer"\\]'):
        asyncio.run(both(task(), "a"))
