"""Many episodes at once: nothing is lost, nothing is older than allowed, nobody is left behind."""

import asyncio
import contextlib
import gc
import threading
import time
import weakref

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.agents import ModelAgent
from agentlab.errors import ConfigError, RunError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import Gate, RolloutConfig, RolloutOrchestrator, evaluate
from agentlab.types import EnvStepResult, Policy


class OneTurn:
    """Answers are scored by the task's own function; counts what is open."""

    opened = closed = 0

    def __init__(self, task, *, step_s: float = 0.0):
        self.task, self.step_s = task, step_s
        type(self).opened += 1

    def reset(self):
        return self.task.prompt, {}

    def step(self, action):
        threading.Event().wait(self.step_s)
        if self.task.data.get("broken"):
            raise ValueError("broken task")
        return EnvStepResult("", float("yes" in action.value), True)

    def close(self):
        type(self).closed += 1


def tasks(count, **data):
    return [{"id": f"t{i}", "prompt": f"task {i}", **data} for i in range(count)]


def orchestrator(engine, **config):
    return RolloutOrchestrator(engine, agent_class=ModelAgent, env_class=OneTurn, config=RolloutConfig(**config))


def collect(engine, source, **config):
    rollouts = orchestrator(engine, **config)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            groups = [g async for g in rollouts.stream(source)]
            group.cancel_scope.cancel()
        return groups

    return asyncio.run(main()), rollouts


def test_every_task_comes_back_as_one_whole_group():
    groups, rollouts = collect(ScriptedEngine("yes"), tasks(10), group_size=3, max_concurrency=4)
    assert sorted(g.task.id for g in groups) == sorted(f"t{i}" for i in range(10))
    assert all([t.episode for t in g.trajectories] == [0, 1, 2] for g in groups)
    counts = rollouts.gate.counts
    assert counts.admitted == counts.trained == 10 and counts.in_flight == 0


def test_an_async_stream_of_tasks_works_too():
    async def source():
        for task in tasks(3):
            await anyio.lowlevel.checkpoint()
            yield task

    groups, _ = collect(ScriptedEngine("yes"), source(), group_size=1)
    assert len(groups) == 3


def test_the_same_task_twice_makes_two_groups():
    groups, _ = collect(ScriptedEngine("yes"), tasks(1) * 2, group_size=1)
    assert len({g.id for g in groups}) == 2


def test_no_more_episodes_run_at_once_than_allowed():
    most = 0

    class Watching(ScriptedEngine):
        async def generate(self, request):
            nonlocal most
            most = max(most, self.stats().num_running + 1)
            return await super().generate(request)

    collect(Watching("yes", latency_s=0.05), tasks(20), group_size=2, max_concurrency=5)
    assert most == 5


def test_synchronous_steps_run_side_by_side():
    rollouts = RolloutOrchestrator(
        engine := ScriptedEngine("yes"),
        agent_class=ModelAgent,
        env_class=OneTurn,
        env_kwargs={"step_s": 0.2},
        config=RolloutConfig(group_size=8, groups_per_step=8, max_concurrency=64),
    )

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            began = time.monotonic()
            assert len([g async for g in rollouts.stream(tasks(8))]) == 8
            group.cancel_scope.cancel()
            return time.monotonic() - began

    assert asyncio.run(main()) < 2.0


def test_the_same_seed_gives_the_same_requests_and_siblings_differ():
    def seeds(engine):
        collect(engine, tasks(4), group_size=3, seed=5)
        return {request.id: request.sampling.seed for request in engine.requests}

    first, second = seeds(ScriptedEngine("yes")), seeds(ScriptedEngine("yes", latency_s=0.001))
    assert first == second and len(set(first.values())) == len(first)


def test_an_ended_episode_leaves_no_cycles_that_only_the_garbage_collector_would_find():
    """What lies in cycles stays until a full collection, which is late and long while a thousand episodes are there."""
    made: list[weakref.ref[OneTurn]] = []

    class Kept(OneTurn):
        def __init__(self, task):
            super().__init__(task)
            made.append(weakref.ref(self))

    gc.disable()
    try:
        engine = ScriptedEngine("yes")
        rollouts = RolloutOrchestrator(
            engine, agent_class=ModelAgent, env_class=Kept, config=RolloutConfig(group_size=2, max_concurrency=2)
        )

        async def main():
            async with anyio.create_task_group() as group:
                group.start_soon(engine.serve)
                seen = [sum(one() is not None for one in made) async for _ in rollouts.stream(tasks(12))]
                group.cancel_scope.cancel()
            return seen

        alive = asyncio.run(main())
    finally:
        gc.enable()
    assert len(made) == 24
    assert max(alive) <= 6  # those in flight, and those that are just ending


def test_an_empty_stream_of_tasks_is_refused():
    with pytest.raises(BaseExceptionGroup) as error:
        collect(ScriptedEngine("yes"), [])
    assert error.group_contains(ConfigError, match="at least one task", depth=None)


@pytest.mark.parametrize("odd", ["text", {"prompt": "x"}, 3])
def test_tasks_that_are_no_stream_are_refused(odd):
    with pytest.raises(BaseExceptionGroup) as error:
        collect(ScriptedEngine("yes"), odd)
    assert error.group_contains(ConfigError, match="tasks must be an iterable of tasks", depth=None)


def test_too_many_failed_groups_end_the_run_with_a_report_of_the_first():
    with pytest.raises(BaseExceptionGroup) as error:
        collect(ScriptedEngine("yes"), tasks(9, broken=True), group_size=2, max_failed_groups=3)
    report = "(?s)4 groups failed, more than max_failed_groups=3.*task 't0', turn 0, in step: ValueError: broken task"
    assert error.group_contains(RunError, match=report, depth=None)


def test_a_dead_engine_ends_everything_and_closes_every_environment():
    OneTurn.opened = OneTurn.closed = 0
    engine = ScriptedEngine("yes", latency_s=60)
    rollouts = orchestrator(engine, group_size=2)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            group.start_soon(rollouts.produce, tasks(8))
            await anyio.sleep(0.05)
            engine.kill(RuntimeError("out of memory"))

    with pytest.raises(BaseExceptionGroup) as error:
        asyncio.run(main())
    assert "out of memory" in str(error.value.exceptions)
    assert OneTurn.opened == OneTurn.closed > 0


def test_a_group_that_grew_too_old_is_dropped_and_its_place_given_back():
    engine = ScriptedEngine("yes")
    rollouts = orchestrator(engine, group_size=1, groups_per_step=2, max_off_policy_steps=0)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            group.start_soon(rollouts.produce, iter(tasks(100)))
            while rollouts.queue_depth < 2:
                await anyio.sleep(0.001)
            engine.update_policy(Policy(1, None))
            rollouts.advance(1)
            batch = await rollouts.next_batch(2)
            assert [rollouts.staleness(g) for g in batch] == [0, 0]
            rollouts.trained(batch)
            counts = rollouts.gate.counts
            assert (counts.stale, counts.trained) == (2, 2)
            group.cancel_scope.cancel()

    asyncio.run(main())


@settings(deadline=None, max_examples=50)
@given(
    groups_per_step=st.integers(1, 4),
    lead=st.integers(0, 3),
    updates=st.integers(1, 6),
    fates=st.lists(st.sampled_from(["trained", "stale", "filtered", "failed"]), max_size=40),
)
def test_the_gate_never_admits_more_than_the_formula_and_its_counts_add_up(groups_per_step, lead, updates, fates):
    async def main():
        gate = Gate(groups_per_step=groups_per_step, max_off_policy_steps=lead)
        for version in range(updates):
            gate.advance(version)
            while True:
                with anyio.move_on_after(0.0005) as waited:
                    await gate.opened()
                if waited.cancelled_caught:
                    break
                gate.admit()
            assert gate.counts.in_flight + gate.counts.trained == (version + 1 + lead) * groups_per_step
            for fate in fates[version::updates][: gate.counts.in_flight]:
                gate.settle(fate)
            c = gate.counts
            assert c.admitted == c.in_flight + c.trained + c.stale + c.filtered + c.failed + c.cancelled

    asyncio.run(main())


def test_an_evaluation_counts_solved_tasks_with_an_interval():
    def script(request, prompt):
        return "yes" if int(prompt.split("task ")[1].split("<")[0]) % 4 == 0 else "no"

    result = evaluate(ScriptedEngine(script), tasks(40), agent_class=ModelAgent, env_class=OneTurn, k=2)
    assert (result.success, result.count, result.pass_at_k) == (0.25, 80, 0.25)
    assert result.low == pytest.approx(0.1681, abs=1e-3) and result.high == pytest.approx(0.3548, abs=1e-3)
    assert [t.task.id for t in result.trajectories[:4]] == ["t0", "t0", "t1", "t1"]
    assert "success 25.0%" in str(result) and "pass@2 25.0% (14.2% to 40.2%)" in str(result)
    assert (result.pass_at_k_low, result.pass_at_k_high) == pytest.approx((0.1419, 0.4019), abs=1e-4)


def test_a_solved_episode_counts_also_where_its_sibling_failed():
    class Second(OneTurn):
        def step(self, action):
            if type(self).opened % 2:
                raise ValueError("first of each pair")
            return super().step(action)

    OneTurn.opened = 0
    config = RolloutConfig(max_concurrency=1)
    result = evaluate(ScriptedEngine("yes"), tasks(1), agent_class=ModelAgent, env_class=Second, k=2, config=config)
    assert (result.success, result.count, result.num_failed, result.pass_at_k) == (0.5, 2, 1, 1.0)
    assert len(result.solved) == 2


def test_a_stream_can_be_left_early_and_an_orchestrator_used_again():
    rollouts = orchestrator(engine := ScriptedEngine("yes"), group_size=1)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            async with contextlib.aclosing(rollouts.stream(tasks(50))) as stream:
                async for _ in stream:
                    break
            counts = rollouts.gate.counts
            assert counts.trained == 1 and counts.in_flight == 0
            assert len([g async for g in rollouts.stream(tasks(20))]) == 20
            group.cancel_scope.cancel()

    asyncio.run(main())


def test_a_failed_episode_counts_as_not_solved():
    mixed = [*tasks(3), {"id": "bad", "prompt": "x", "broken": True}]
    result = evaluate(ScriptedEngine("yes"), mixed, agent_class=ModelAgent, env_class=OneTurn)
    assert (result.success, result.count, result.num_failed) == (0.75, 4, 1)
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("agentlab")]
    for thread in ours:
        thread.join(1.0)
    assert not any(thread.is_alive() for thread in ours)
