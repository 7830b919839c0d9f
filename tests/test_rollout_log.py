"""The trajectory log: whatever an episode saw and did can be written and read again."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.agents import ModelAgent
from agentlab.errors import ConfigError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, load_trajectories, run_episode, save_trajectories
from agentlab.rollout.log import as_line, of_line
from agentlab.types import Action, EnvStepResult, Failure, Task, TokenRow, ToolCall, ToolResult, Trajectory, Turn

HARD = ["a\u2028b\u2029c", "\x00", "\ud800 and \udfff", "x" * 1_000_000, "", "ä\r\n🙂\x85", '{"$kind": "tuple"}']
texts = st.text(st.characters(exclude_categories=()), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.just("$kind") | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
results = st.builds(ToolResult, texts, texts, st.booleans(), st.floats(0, 9))
calls = st.builds(ToolCall, texts, st.dictionaries(texts, plain, max_size=2), st.none() | texts)
rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.floats(-9, 0), st.integers(-1, 5)), max_size=5).map(
    lambda given: (
        TokenRow(*(tuple(column) for column in zip(*given, strict=True))) if given else TokenRow((), (), (), ())
    )
)
turns = st.builds(
    Turn,
    response=texts,
    action=st.builds(Action, texts | calls | st.lists(calls, max_size=2).map(tuple)),
    observation=plain | results | st.lists(results, max_size=2).map(tuple),
    reward=st.floats(-9, 9),
    info=st.dictionaries(texts, plain, max_size=2),
)
trajectories = st.builds(
    Trajectory,
    task=st.builds(Task, texts, texts, st.dictionaries(texts, plain, max_size=2)),
    group_id=texts,
    episode=st.integers(0, 9),
    rows=st.lists(rows, max_size=2).map(tuple),
    turns=st.lists(turns, max_size=2).map(tuple),
    messages=st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2).map(tuple),
    reward=st.floats(-9, 9),
    reward_parts=st.dictionaries(texts, st.floats(-9, 9), max_size=2),
    truncation=st.sampled_from([None, "timeout"]),
    failure=st.none() | st.builds(Failure, st.just("tool"), texts, texts, st.integers(0, 3)),
)


@given(trajectory=trajectories)
def test_what_is_written_is_what_is_read(trajectory):
    line = as_line(trajectory)
    assert line.isascii() and len(line.splitlines()) == 1
    assert of_line(line) == trajectory


class Saying:
    def __init__(self, task):
        self.task = task

    def reset(self):
        return self.task.prompt, {}

    def step(self, action):
        return EnvStepResult(self.task.data["observation"], 1.0, True)

    def close(self):
        pass


@pytest.mark.parametrize("observation", HARD, ids=ascii)
def test_any_text_in_an_observation_survives_to_the_log_and_back(observation, tmp_path):
    task = {"prompt": observation[:50], "observation": observation}
    record = run_episode(ScriptedEngine("yes"), task, agent_class=ModelAgent, env_class=Saying)
    (read,) = load_trajectories(save_trajectories(tmp_path / "log.jsonl", [record]))
    assert read == record
    assert read.turns[0].observation == observation and read.failure is None


def test_a_missing_reward_is_null_and_comes_back_as_missing(tmp_path):
    class Broken(Saying):
        def step(self, action):
            raise ValueError("broken")

    task = {"prompt": "x", "observation": ""}
    record = run_episode(ScriptedEngine("yes"), task, agent_class=ModelAgent, env_class=Broken)
    path = save_trajectories(tmp_path / "log.jsonl", [record, record])
    assert [json.loads(line)["reward"] for line in path.read_text().splitlines()] == [None, None]
    first, _ = load_trajectories(path)
    assert math.isnan(first.reward) and not first.scored and first.failure == record.failure


def test_what_json_cannot_carry_is_told_by_its_repr():
    line = as_line(Trajectory(task=Task("a", "b", {"x": {1}}), group_id="g", episode=0, reward=1.0))
    assert of_line(line).task.data == {"x": "{1}"}


def test_a_line_that_is_no_trajectory_is_told_by_its_number(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(as_line(Trajectory(task=Task("a", "b"), group_id="g", episode=0)) + "\n{}\n")
    read = load_trajectories(path)
    next(read)
    with pytest.raises(ConfigError, match="Line 2 of .*log.jsonl' is no trajectory"):
        next(read)


def test_options_of_the_rollout_do_not_matter_to_the_log():
    record = run_episode(
        ScriptedEngine("yes"),
        {"prompt": "x", "observation": ""},
        agent_class=ModelAgent,
        env_class=Saying,
        config=RolloutConfig(max_tokens=2, on_max_tokens="leave_out"),
    )
    assert of_line(as_line(record)).truncation == record.truncation == "max_tokens"
