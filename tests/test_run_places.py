"""Where a run works: asyncio.run, uvloop, threads, one after the other; and what happens within a second."""

import asyncio
import itertools
import threading
import time

import pytest
import uvloop

from agentlab.agents import ModelAgent
from agentlab.bench.simulated import SimulatedLearner
from agentlab.errors import EngineError, LearnerError, RunError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, evaluate_async
from agentlab.run import Parts, Run, current_run
from agentlab.training import UpdateResult
from agentlab.training.worker import LearnerThread
from agentlab.types import EnvStepResult, Policy


class Env:
    """One turn that blocks its thread for a while."""

    opened = closed = 0

    def __init__(self, task, step_s=0.0):
        self.task, self.step_s = task, step_s
        type(self).opened += 1

    def reset(self):
        return self.task.prompt, {}

    def step(self, action):
        time.sleep(self.step_s)
        return EnvStepResult("", float("yes" in action.value), True)

    def close(self):
        type(self).closed += 1


def endless():
    return ({"id": str(i), "prompt": f"task {i}"} for i in itertools.count())


def start(steps=2, *, engine=None, learner=None, tasks=None, evaluate_every=0, **config):
    engine = engine or ScriptedEngine("yes")
    options = RolloutConfig(**({"group_size": 2, "groups_per_step": 2} | config))
    roles = {"agent_class": ModelAgent, "env_class": Env}

    def build():
        orchestrator = RolloutOrchestrator(engine, config=options, **roles)
        orchestrator.gate.limit = steps * options.groups_per_step

        async def play():
            return await evaluate_async(engine, [{"prompt": "held out"}] * 3, config=options, **roles)

        made = SimulatedLearner(0.0) if learner is None else learner()
        return Parts(engine, orchestrator, made, lambda p: None, play if evaluate_every else None, evaluate_every)

    return Run("place", build, endless() if tasks is None else tasks, steps)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    if (run := current_run()) is not None:
        run.stop()
    assert "agentlab-loop" not in {thread.name for thread in threading.enumerate()}


async def awaited():
    waited = await start()
    return waited.status, start().wait().status, type(asyncio.get_running_loop()).__module__


def test_a_run_works_under_asyncio_run_awaited_and_waited_for():
    assert asyncio.run(awaited())[:2] == ("finished", "finished")


def test_a_run_works_under_uvloop_on_a_loop_of_its_own():
    first, second, loop = uvloop.run(awaited())
    assert (first, second) == ("finished", "finished") and loop.startswith("uvloop")


def test_a_run_works_in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(start().wait().status))
    thread.start()
    thread.join(30)
    assert found == ["finished"]


def test_runs_work_one_after_the_other():
    assert [start().wait().status for _ in range(3)] == ["finished"] * 3


@pytest.mark.parametrize("steps", [1, 2])
def test_runs_of_one_and_two_updates_evaluate_before_and_after(steps):
    run = start(steps, evaluate_every=10).wait()
    assert len(run.metrics) == steps
    assert [row["step"] for row in run.evaluations] == [0, steps]
    assert run.snapshot().counts.trained == 2 * steps, "what an evaluation plays is not counted as training"


def test_a_filter_that_rejects_everything_ends_the_run_with_an_error_that_says_so():
    run = start(3, filter_equal_rewards=True, max_filtered_in_a_row=5)
    with pytest.raises(RunError, match="6 groups in a row had equal rewards"):
        run.wait()
    assert run.status == "failed" and run.snapshot().counts.filtered >= 6  # others may end meanwhile


def test_tasks_that_raise_end_the_run_with_their_own_error():
    def broken():
        yield {"prompt": "x"}
        raise ZeroDivisionError("the file ended early")

    with pytest.raises(ZeroDivisionError, match="the file ended early"):
        start(tasks=broken()).wait()


def test_a_dead_engine_is_raised_by_wait_within_a_second():
    engine = ScriptedEngine("yes", latency_s=60)
    run = start(engine=engine)
    died = []

    def die():
        died.append(time.monotonic())
        engine.kill(RuntimeError("device lost"))

    while not run.snapshot().counts.admitted:
        time.sleep(0.01)
    run._thread.call(die)
    with pytest.raises(EngineError, match="device lost"):
        run.wait()
    assert time.monotonic() - died[0] < 1.0


def test_a_dead_learner_is_raised_by_wait_within_a_second():
    class Dying:
        version = 0

        def update(self, groups):
            self.died = time.monotonic()
            raise MemoryError("no room for the gradients")

    dying = Dying()
    with pytest.raises(LearnerError, match="no room for the gradients"):
        start(learner=lambda: LearnerThread(lambda: dying)).wait()
    assert time.monotonic() - dying.died < 1.0


def test_ten_tasks_end_the_run_within_a_second_of_the_last_episode():
    run = start(100, tasks=[{"prompt": f"task {i}"} for i in range(10)], groups_per_step=4).wait()
    ended_ns = time.perf_counter_ns()
    assert len(run.metrics) == 3
    assert (ended_ns - max(t.end_ns for t in run.trajectories)) / 1e9 < 1.0


def test_stopping_closes_every_environment_within_a_second():
    Env.opened = Env.closed = 0
    run = start(100, engine=ScriptedEngine("yes", latency_s=60), max_concurrency=64, group_size=8, groups_per_step=8)
    while len(run.snapshot().episodes) < 64:
        time.sleep(0.01)
    began = time.monotonic()
    run.stop()
    assert time.monotonic() - began < 1.0
    assert Env.opened == Env.closed == 64


def test_64_blocking_steps_at_once_take_the_time_of_one():
    rollouts = RolloutOrchestrator(
        ScriptedEngine("yes"),
        agent_class=ModelAgent,
        env_class=Env,
        env_kwargs={"step_s": 0.2},
        config=RolloutConfig(group_size=8, groups_per_step=8, max_concurrency=64),
    )
    took_s = []
    for _ in range(3):
        list(rollouts.iterate([{"prompt": f"task {i}"} for i in range(8)]))
        steps = [(turn.step_s, t) for t in rollouts.recent for turn in t.turns]
        took_s.append(max(t.end_ns for _, t in steps) / 1e9 - min(t.start_ns for _, t in steps) / 1e9)
    assert len(steps) == 64 and 0.2 <= min(took_s) < 1.0, "one after the other they would take 12.8 s"


def test_a_learner_that_blocks_for_5_seconds_leaves_the_loop_free():
    class Blocking:
        version = 0

        def update(self, groups):
            time.sleep(5.0)
            self.version += 1
            return UpdateResult(Policy(1, None), {})

    run = start(1, learner=lambda: LearnerThread(Blocking), max_off_policy_steps=1)
    lags_s = []

    async def beat():
        loop = asyncio.get_running_loop()
        while not run.done:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            lags_s.append(loop.time() - due)

    run._thread.call(lambda: lags_s.append(asyncio.ensure_future(beat()) and 0.0))
    run.wait()
    assert len(run.metrics) == 1 and run.metrics[0]["update_s"] >= 5.0
    assert len(lags_s) > 100 and sorted(lags_s)[int(0.99 * len(lags_s))] < 0.1
