"""Whatever objects of users show of themselves, and halves of characters that a model writes: every sink writes it."""

import dataclasses
import json
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.session import Session

import agentlab as al
from agentlab import tracing
from agentlab.agents import ToolAgent
from agentlab.environments import ToolEnvironment
from agentlab.files import escaped, shown, write_atomically
from agentlab.inference.scripted import ByteTokenizer, ScriptedEngine
from agentlab.rewards import Reward
from agentlab.rollout import RolloutConfig, load_trajectories, run_episode, save_trajectories
from agentlab.rollout.sinks import JsonLines, TensorBoard
from agentlab.types import Action, EnvStepResult, Failure, RunSnapshot, Task, TokenRow, ToolCall, Trajectory, Turn
from agentlab.viz import report, show_trajectory, trajectories

HALF = "\ud800"
TALK = '<tool_call>{"name": "echo", "arguments": {"text": "\\ud800 and \\udfff"}}</tool_call>'


class Mute:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name):
        raise OSError(f"mute {name}")

    def __repr__(self):
        raise OSError("mute repr")

    def __str__(self):
        raise SystemExit("mute str")


class Halved:
    def __repr__(self):
        return f"Halved({HALF})"


class Strange(dict):
    def items(self):
        raise OSError("no items")

    def __repr__(self):
        raise OSError("no repr")


def in_itself():
    found = {}
    found["self"], found["twice"] = found, [found, found]
    return found


def deep():
    found = []
    for _ in range(5000):
        found = [found]
    return found


ODD = [
    Mute(),
    Halved(),
    Strange(a=1),
    in_itself(),
    deep(),
    10**6000,
    np.float64("nan"),
    np.arange(3),
    {(1, Mute()): HALF, 7: {HALF}},
    [Mute(), (Mute(), HALF)],
    Action(Mute()),
    ToolCall(HALF, {HALF: HALF}, HALF),
    types.MappingProxyType({"a": Mute()}),
    ValueError(HALF),
    float("-inf"),
    b"\xff",
    HALF,
]
texts = st.text(st.characters(exclude_categories=()), max_size=5)
odd = st.recursive(
    st.integers(0, len(ODD) - 1).map(lambda place: ODD[place]) | texts | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3) | inner.map(Action),
    max_leaves=6,
)
halves = st.text(st.characters(exclude_categories=()) | st.just(HALF), min_size=1, max_size=6)


def trajectory(action, observation, info, text):
    row = TokenRow(tuple(b"ask say"), (0,) * 4 + (1,) * 3, (-0.5,) * 7, (1,) * 7)
    turn = Turn(text, action, observation, 1.0, info=info)
    return Trajectory(
        task=Task(text, text, {"a": observation}),
        group_id=text,
        episode=0,
        rows=(row,),
        turns=(turn,),
        messages=({"role": "user", "content": observation}, {"role": text, "content": text}),
        reward=1.0,
        reward_parts={text: 1.0},
        failure=Failure("step", text, text),
    )


class Reported:
    """A run that saw one trajectory and wrote a text wherever it could."""

    tokenizer = ByteTokenizer()

    def __init__(self, one, text):
        self.one, self.text = one, text

    def snapshot(self):
        return RunSnapshot(
            name=self.text,
            status="failed",
            step=1,
            steps=1,
            start_ns=0,
            now_ns=10**9,
            metrics=({"step": 1, f"reward/{escaped(self.text)}": 1.0},),
            trajectories=(self.one,),
            settings={self.text: self.one.turns[0].info, "chat": Mute()},
            error=self.text,
            notes=(self.text,),
        )

    def spans(self):
        tags = {"tool": self.text, "group": [self.text], self.text: Mute()}
        return (tracing.Span("tool", 0, 10, "t", tags), tracing.Span("model_call", 0, 10, "t", {"group": Mute()}))

    all_spans = spans


def sent(data):
    """What a kernel would send to the browser; raises where it cannot."""
    return Session().pack(data)


@settings(max_examples=100, deadline=None)
@given(action=odd, observation=odd, info=st.dictionaries(halves, odd, max_size=3), text=halves)
def test_log_view_and_browser_are_written_whatever_an_episode_holds(tmp_path_factory, action, observation, info, text):
    folder = tmp_path_factory.mktemp("written")
    one = trajectory(action, observation, info, text)
    (read,) = load_trajectories(save_trajectories(folder / "log.jsonl", [one]))
    assert read.rows == one.rows and read.turns[0].response == text and set(read.turns[0].info) == set(info)
    view = show_trajectory(one, ByteTokenizer())
    browser = trajectories(Reported(one, text))
    bundle = {"text/plain": repr(view), "text/html": view._repr_html_(), "browser": browser.html, "as": repr(browser)}
    assert json.loads(sent(bundle))["browser"] == browser.html
    browser.close()


def test_a_report_of_everything_odd_is_written(tmp_path):
    run = Reported(trajectory(ODD, ODD, dict(enumerate(ODD)), HALF), HALF)
    page = report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("cannot be shown: OSError") >= 1 and "\\ud800" in page


def test_a_model_that_writes_half_a_character_in_valid_json_ends_nothing(tmp_path):
    def echo(text: str) -> str:
        """Say it again."""
        return f"{text}!"

    record = run_episode(
        ScriptedEngine([TALK, "done"]),
        {"id": "t", "prompt": f"Say {HALF}."},
        agent_class=ToolAgent,
        agent_kwargs={"tool_map": {"echo": echo}},
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": {"echo": echo}, "reward_fn": lambda task, answer: Reward(1.0, {HALF: 1.0})},
        config=RolloutConfig(max_turns=3),
    )
    assert record.failure is None and record.reward == 1.0
    assert record.turns[0].observation[0].text == "\ud800 and \udfff!"
    assert record.reward_parts == {"\\ud800": 1.0}
    (read,) = load_trajectories(save_trajectories(tmp_path / "log", [record]))
    assert read.turns == record.turns
    sent({"text/html": show_trajectory(record, ByteTokenizer()).html})


@pytest.mark.parametrize("raised", [ValueError(HALF), OSError(2, HALF), KeyError(HALF)])
def test_what_is_told_of_a_failure_can_be_printed(raised):
    class Failing:
        def __init__(self, task):
            pass

        def reset(self):
            raise raised

        def close(self):
            pass

    engine = ScriptedEngine("x")
    record = run_episode(engine, {"prompt": "a"}, agent_class=ToolAgent, env_class=Failing)
    assert record.failure.error.encode() and record.failure.traceback.encode() and "ud800" in record.failure.error


@settings(max_examples=100, deadline=None)
@given(name=halves, value=odd, more=odd)
def test_a_trace_is_written_whatever_its_tags_are_also_those_that_were_on_disk(tmp_path_factory, name, value, more):
    folder = tmp_path_factory.mktemp("trace")
    with tracing.separate(max_records=8):
        tracing.spill(folder)
        with tracing.tagged(**{name: value, "group": more}):
            for number in range(64):
                with tracing.span("tool", tool=more, number=number, **{f"{name}2": value}):
                    tracing.counter(name, number)
        with tracing.span("train", groups=[value, more]):
            pass
        tracing.spilled().flush()
        assert tracing.spilled().num_lost == 0 and tracing.spilled().num_records
        found = tuple(tracing.all_spans())
        assert [span.tags["number"] for span in found if "number" in span.tags] == list(range(64))
        assert tracing.save_trace(folder / "trace", found, tracing.counters()).stat().st_size > 0
        assert tracing.save_trace(folder / "all", tracing.all_spans()).stat().st_size > 0


def test_metrics_of_any_name_are_written_by_every_sink(tmp_path):
    row = {"step": 1, f"reward/{HALF}": 0.5, "nan": float("nan"), "huge": 1e300}
    for sink in (JsonLines(tmp_path / "a.jsonl"), TensorBoard(tmp_path / "tb")):
        sink.open("run", [row])
        sink.write(row)
        sink.close()
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2
    (events,) = (tmp_path / "tb").iterdir()
    assert b"reward/\\ud800" in events.read_bytes()


@given(st.text(st.characters(exclude_categories=())))
def test_escaped_text_is_the_text_where_it_can_be_and_can_be_encoded_everywhere(text):
    told = escaped(text)
    told.encode()
    assert escaped(told) == told
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\\ud" in told
    else:
        assert told == text


def test_a_file_holds_text_with_halves_of_characters_spelled_out(tmp_path):
    assert write_atomically(tmp_path / "a", f"a{HALF}b").read_text(encoding="utf-8") == "a\\ud800b"


@pytest.mark.parametrize("place", range(len(ODD)))
@pytest.mark.parametrize("show", [repr, str])
def test_anything_can_be_shown(place, show):
    assert shown(ODD[place], show).encode()


def test_a_frozen_result_whose_info_changes_while_it_is_logged_is_written(tmp_path):
    class Growing(dict):
        def __iter__(self):
            self[len(self)] = 1
            return super().__iter__()

    one = trajectory(None, None, Growing(a=1), "x")
    assert dataclasses.replace(one).turns[0].info
    assert list(load_trajectories(save_trajectories(tmp_path / "log", [one])))
    assert EnvStepResult(None, 0.0, True).info == {}


def test_a_preview_is_shown_whatever_the_first_episodes_hold():
    class Holds:
        def __init__(self, task):
            self.task = task

        def reset(self):
            return self.task.prompt, {}

        def step(self, action):
            return EnvStepResult((Halved(),), 0.0, True, {"odd": ODD, HALF: Strange(a=1)})

        def close(self):
            pass

    learner = al.GRPOLearner(model=al.tiny_model(), agent_class=al.ModelAgent, env_class=Holds)
    preview = learner.check([{"id": "t", "prompt": f"a{HALF}"}], script=["yes"])
    assert json.loads(sent({"text/html": preview.html, "text/plain": preview.text}))
