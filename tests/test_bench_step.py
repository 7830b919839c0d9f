"""One GRPO step against another library: the same question, and rows that say who needed what."""

import json
import sys

import pytest

from agentlab.bench import agentic_step, peers
from agentlab.bench.agentic_step import Answer, Clock, Turns, ask_alone, compared, plain_rows, question_of
from agentlab.environments import check_environment
from agentlab.errors import ConfigError
from agentlab.inference import ScriptedEngine
from agentlab.rollout import run_episode
from agentlab.types import Task

SHAPE = {"num_layers": 1}


def test_an_episode_has_its_turns_and_a_tool_after_each_but_the_last():
    question = question_of(SHAPE, "folder", tool_s=0.0, steps=2)
    options = {key: question[key] for key in ("turns", "tool_s", "observation")}
    assert check_environment(Turns, Task("0", "?"), actions=("a", "b"), env_kwargs=options) == ()
    engine = ScriptedEngine("x" * 8)
    played = run_episode(
        engine, {"prompt": "?"}, agent_class=agentic_step.ModelAgent, env_class=Turns, env_kwargs=options
    )
    assert len(engine.requests) == question["turns"] == 2
    assert played.reward == 0.0 and played.failure is None


def test_the_first_step_compiles_and_does_not_count():
    found = Answer.of(
        {"step_s": [90.0, 3.0, 5.0], "cpu_s": [99.0, 6.0, 6.0], "peak_bytes": 2e9, "sampled_tokens": 1536}
    )
    assert found.warm_s == 4.0 and found.warm_cpu_s == 6.0
    assert [(row.figure, row.value) for row in plain_rows("step", found, 3)] == [
        ("step", 4.0),
        ("step, processor time", 6.0),
        ("step, sampled tokens", 512.0),
        ("step, peak memory", 2.0),
    ]


@pytest.mark.parametrize(
    ("their_s", "their_bytes", "holds"), [(24.0, 8e9, [True, None, True]), (23.0, 7e9, [False, None, False])]
)
def test_a_peer_must_need_so_many_times_the_seconds_and_twice_the_memory(their_s, their_bytes, holds):
    ours, theirs = (
        Answer((9.0, 4.0), (9.0, 6.0), int(4e9), 512),
        Answer((99.0, their_s), (99.0, 30.0), int(their_bytes), 512),
    )
    assert [row.holds for row in compared("tunix", ours, theirs, 0.5, 6.0)] == holds


def test_the_clock_notes_the_end_of_every_update():
    clock = Clock()
    clock.open("run", ())
    clock.write({"step": 1})
    clock.write({"step": 2})
    clock.close()
    assert clock.wall_s == sorted(clock.wall_s) and len(clock.wall_s) == len(clock.cpu_s) == 3


def test_a_step_that_fails_in_its_process_says_why():
    with pytest.raises(ConfigError, match=r"(?s)failed with status 1: .*shape"):
        ask_alone({})


def test_the_script_of_the_peer_is_found_and_asked():
    name, python = peers.parse_peer(f"tunix={sys.executable}")
    with pytest.raises(ConfigError, match="The peer tunix failed"):
        peers.ask_peer(name, python, json.loads("{}"))
