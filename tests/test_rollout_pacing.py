"""Pacing on a virtual clock: nothing trained is too old, and little is thrown away for its age."""

import itertools
import random
import time

import anyio
import pytest

from agentlab.agents import ModelAgent
from agentlab.bench.simulated import SimulatedEngine, SimulatedLearner
from agentlab.concurrency import first_error, run_virtual
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Session
from agentlab.types import EnvStepResult, Policy

HOUR_S = 3600.0


class Timed:
    """Two turns, each of which takes the time that `step_s` draws for the n-th environment."""

    def __init__(self, task, numbers, step_s):
        self.task, self.turn = task, 0
        self.draw, self.step_s = random.Random(next(numbers)), step_s

    async def reset(self):
        return self.task.prompt, {}

    async def step(self, action):
        await anyio.sleep(self.step_s(self.draw))
        self.turn += 1
        return EnvStepResult("go on", self.draw.random(), self.turn == 2)

    async def close(self):
        pass


class Auditing(SimulatedLearner):
    """Notes the age of every token it trains on, in updates, as it is consumed."""

    def __init__(self, update_s):
        super().__init__(update_s)
        self.ages = []

    async def update(self, groups):
        for row in (row for group in groups for t in group.trajectories for row in t.rows):
            self.ages += [self.version - v for v, m in zip(row.policy_versions, row.loss_mask, strict=True) if m]
        return await super().update(groups)


async def endless():
    for number in itertools.count():
        yield {"id": str(number), "prompt": f"task {number}"}


def train(updates, *, step_s, update_s, lead, in_flight=64, source=endless, **options):
    """A whole run; its learner, its session, and the virtual seconds it took."""

    async def main():
        engine = SimulatedEngine(lambda request: 20, token_rate=100.0, saturation=32)
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=ModelAgent,
            env_class=Timed,
            env_kwargs={"numbers": itertools.count(), "step_s": step_s},
            config=RolloutConfig(
                group_size=4,
                groups_per_step=4,
                max_concurrency=in_flight,
                max_off_policy_steps=lead,
                step_timeout_s=HOUR_S,
                episode_timeout_s=HOUR_S,
                **options,
            ),
        )
        orchestrator.gate.limit = updates * 4
        learner = Auditing(update_s)
        session = Session("virtual", Parts(engine, orchestrator, learner, lambda policy: None), source(), updates)
        await first_error(session.main)
        return learner, session, anyio.current_time()

    return run_virtual(main)


@pytest.mark.parametrize("lead", [0, 1, 3])
def test_nothing_trained_is_older_than_the_bound_though_some_episodes_take_20_times_as_long(lead):
    def step_s(draw):
        return 20.0 if draw.random() < 0.05 else 1.0

    learner, session, _ = train(30, step_s=step_s, update_s=1.0, lead=lead)
    assert learner.version == 30 and len(learner.ages) == 30 * 4 * 4 * 2 * 20
    assert max(learner.ages) <= lead
    assert max(row["staleness_max"] for row in session.metrics) <= lead
    counts = session.snapshot().counts
    assert counts.trained == 120 and counts.admitted == counts.trained + counts.stale + counts.cancelled


@pytest.mark.parametrize("lead", [1, 2, 4])
def test_a_producer_5_times_faster_than_the_learner_throws_nothing_away_in_50_updates(lead):
    alone_s = train(50, step_s=lambda draw: 0.1, update_s=0.0, lead=lead)[2] / 50
    learner, session, took_s = train(50, step_s=lambda draw: 0.1, update_s=5 * alone_s, lead=lead)
    counts = session.snapshot().counts
    assert (counts.stale, counts.trained, learner.version) == (0, 200, 50)
    assert max(learner.ages) <= lead
    assert took_s == pytest.approx(50 * 5 * alone_s, rel=0.02), "the learner is never kept waiting"


def test_a_lead_of_0_trains_every_token_under_the_weights_that_sampled_it():
    learner, session, _ = train(10, step_s=lambda draw: draw.expovariate(1.0), update_s=1.0, lead=0)
    assert set(learner.ages) == {0} and session.snapshot().counts.stale == 0


def test_surplus_groups_are_kept_for_the_next_update_and_make_the_wait_for_the_last_one_shorter():
    def step_s(draw):
        return draw.expovariate(1.0)

    exact = train(20, step_s=step_s, update_s=0.5, lead=1)
    over = train(20, step_s=step_s, update_s=0.5, lead=1, extra_groups=4)
    assert len(set(over[0].consumed)) == len(over[0].consumed) == 80
    assert max(over[0].ages) <= 1
    assert over[2] < exact[2]


def test_a_day_of_training_is_simulated_in_seconds_and_the_same_way_each_time():
    def day():
        learner, session, took_s = train(40, step_s=lambda draw: draw.expovariate(1 / 300.0), update_s=2160.0, lead=1)
        return learner.consumed, session.snapshot().counts, took_s

    began_s = time.process_time()
    first = day()
    assert first[2] > 24 * HOUR_S
    assert time.process_time() - began_s < 30
    assert day() == first


def test_an_update_in_the_middle_of_an_answer_is_told_token_by_token():
    async def main():
        engine = ScriptedEngine("yes", token_rate=1.0)
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=ModelAgent,
            env_class=Timed,
            env_kwargs={"numbers": itertools.count(), "step_s": lambda draw: 0.0},
            config=RolloutConfig(group_size=1, max_turns=1),
        )
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            group.start_soon(orchestrator.produce, endless())
            await anyio.sleep(2.5)
            engine.update_policy(Policy(1, None))
            batch = await orchestrator.next_batch(1)
            group.cancel_scope.cancel()
        return batch[0].trajectories[0]

    trajectory = run_virtual(main)
    sampled = [v for v, m in zip(trajectory.policy_versions, trajectory.loss_mask, strict=True) if m]
    assert sampled == [0, 0, 1, 1] and trajectory.oldest_version == 0


def test_ten_tasks_in_batches_of_four_give_three_updates_and_end_with_the_last_of_them():
    async def ten():
        for number in range(10):
            yield {"id": str(number), "prompt": "x"}

    learner, session, took_s = train(100, step_s=lambda draw: 1.0, update_s=2.0, lead=1, source=ten)
    assert session.status == "finished" and len(learner.consumed) == 10
    assert [row["step"] for row in session.metrics] == [1, 2, 3]
    assert took_s - session.metrics[-1]["time_s"] < 1.0
