"""The watchdog: when nothing moves any more, the snapshot says who waits for whom."""

import itertools
import re
import threading
import time

import anyio

from agentlab.agents import ModelAgent
from agentlab.bench.simulated import SimulatedLearner
from agentlab.concurrency import run_virtual
from agentlab.environments import part
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Run, Session
from agentlab.types import EnvStepResult


class Env:
    """Hangs where its task says."""

    def __init__(self, task):
        self.task = task

    async def reset(self):
        return self.task.prompt, {}

    async def step(self, action):
        if self.task.data.get("hang") == "tool":
            with part("tool", "search"):
                await anyio.sleep_forever()
        return EnvStepResult("", 1.0, True)

    async def close(self):
        pass


async def endless(**data):
    for number in itertools.count():
        yield {"id": str(number), "prompt": "x", **data}


async def one_and_no_more():
    yield {"id": "0", "prompt": "x"}
    await anyio.sleep_forever()


def notes_after(seconds, *, source, engine=None, learner=None, evaluate=None, pause=False):
    """The notes of a snapshot taken after so many virtual seconds of a run that watches for 100."""

    async def main():
        served = engine or ScriptedEngine("yes")
        options = RolloutConfig(
            group_size=2,
            groups_per_step=2,
            max_concurrency=4,
            stall_after_s=100.0,
            **dict.fromkeys(("step_timeout_s", "tool_timeout_s", "model_timeout_s", "episode_timeout_s"), 9999.0),
        )
        orchestrator = RolloutOrchestrator(served, agent_class=ModelAgent, env_class=Env, config=options)
        parts = Parts(served, orchestrator, learner or SimulatedLearner(1.0), lambda policy: None, evaluate, 1)
        session = Session("watched", parts, source, 1_000_000)
        async with anyio.create_task_group() as group:
            group.start_soon(session.main)
            await anyio.sleep(1.5)
            session.pause(pause)
            await anyio.sleep(seconds - 1.5)
            notes = session.snapshot().notes
            group.cancel_scope.cancel()
        return notes

    return run_virtual(main)


def test_a_hanging_tool_is_named_with_episode_turn_and_time():
    assert notes_after(99, source=endless(hang="tool")) == ()
    (note,) = notes_after(130, source=endless(hang="tool"))
    assert note.startswith("Nothing has finished for 130 s. 4 episodes are in flight: 4 in tool (search).")
    assert "Longest wait: group 0:0, episode 0, turn 0, in tool (search) for 130 s" in note


def test_a_silent_engine_is_named():
    (note,) = notes_after(150, source=endless(), engine=ScriptedEngine("yes", latency_s=1e6))
    assert "4 in model" in note and "in model for 150 s" in note


def test_a_learner_that_takes_too_long_is_named_with_who_waits_for_it():
    (note,) = notes_after(150, source=endless(), learner=SimulatedLearner(1e6))
    assert re.fullmatch(r"Update 1 of the learner has been under way for 150 s; \d finished groups wait for it\.", note)


def test_a_stream_of_tasks_that_gives_none_is_named():
    (note,) = notes_after(150, source=one_and_no_more())
    assert note == "No episode is in flight: the stream of tasks has not given the next one for 150 s."


def test_an_evaluation_that_hangs_is_named():
    (note,) = notes_after(150, source=one_and_no_more(), evaluate=anyio.sleep_forever)
    assert "the next one" in note or note.startswith("The evaluation has been under way for 150 s")


def test_a_paused_run_is_no_stall():
    assert notes_after(300, source=one_and_no_more(), pause=True) == ()


def test_a_run_that_goes_on_says_nothing():
    notes = notes_after(150, source=endless())
    assert not any("finished for" in note or "under way" in note or "not given" in note for note in notes)


def test_an_agent_that_holds_the_loop_is_told_of():
    class Blocking(ModelAgent):
        def update_from_model(self, response, **kwargs):
            time.sleep(0.3)
            return super().update_from_model(response)

    def build():
        engine, options = ScriptedEngine("yes"), RolloutConfig(group_size=2, groups_per_step=1)
        orchestrator = RolloutOrchestrator(engine, agent_class=Blocking, env_class=Env, config=options)
        orchestrator.gate.limit = 1
        return Parts(engine, orchestrator, SimulatedLearner(0.0), lambda policy: None)

    last = Run("blocked", build, endless(), 1).wait().snapshot()
    assert any("An agent's update_from_model held the loop for 0.3 s" in note for note in last.notes)


def test_a_worker_that_hangs_is_counted_in_the_snapshot():
    release = threading.Event()

    class Hanging(Env):
        def step(self, action):
            if self.task.id == "0":
                release.wait()
            return EnvStepResult("", 1.0, True)

    def build():
        engine, options = ScriptedEngine("yes"), RolloutConfig(group_size=1, groups_per_step=1, step_timeout_s=0.05)
        orchestrator = RolloutOrchestrator(engine, agent_class=ModelAgent, env_class=Hanging, config=options)
        return Parts(engine, orchestrator, SimulatedLearner(0.01), lambda policy: None)

    run = Run("hung", build, endless(), 100_000)
    try:
        deadline_s = time.monotonic() + 20
        while not any("1 worker threads still run a call" in note for note in run.snapshot().notes):
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.02)
        assert run.snapshot().failures == {"step": 1}
    finally:
        release.set()
        run.stop()
