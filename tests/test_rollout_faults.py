"""Random faults at every boundary, on a virtual clock: every episode is accounted for, nothing is left open."""

import asyncio
import itertools
import random
from dataclasses import dataclass, field

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.agents import ModelAgent
from agentlab.bench.simulated import SimulatedEngine, SimulatedLearner
from agentlab.concurrency import first_error, run_virtual
from agentlab.errors import RunError
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Session
from agentlab.types import EnvStepResult, TrajectoryGroup

FAULTS = ("raise", "hang", "slow", "odd")
STAGES = ("make", "reset", "step", "close", "agent_model", "agent_env")


@dataclass
class Chaos:
    """Which faults strike where, and what was opened and closed."""

    seed: int
    share: float
    opened: list = field(default_factory=list)
    closed: list = field(default_factory=list)

    def fault(self, stage, *where):
        rng = random.Random(repr((self.seed, stage, where)))
        return rng.choice(FAULTS) if rng.random() < self.share else None

    async def strike(self, stage, *where):
        fault = self.fault(stage, *where)
        if fault == "raise":
            raise ValueError(f"{stage} broke")
        if fault == "hang":
            await anyio.sleep_forever()
        if fault == "slow":
            await anyio.sleep(7.0)
        return fault


class ChaosEnv:
    def __init__(self, task, chaos):
        self.task, self.chaos = task, chaos
        self.number = len(chaos.opened)
        if chaos.fault("make", task.id, self.number) == "raise":
            raise ValueError("make broke")
        chaos.opened.append(self)
        self.turn = 0

    async def reset(self):
        odd = await self.chaos.strike("reset", self.number)
        return "not a pair" if odd == "odd" else (self.task.prompt, {})

    async def step(self, action):
        odd = await self.chaos.strike("step", self.number, self.turn)
        self.turn += 1
        reward = float("nan") if odd == "odd" else float(self.number % 2)
        return EnvStepResult("go on", reward, self.turn == 3)

    async def close(self):
        self.chaos.closed.append(self)
        await self.chaos.strike("close", self.number)


class ChaosAgent(ModelAgent):
    def __init__(self, chaos):
        super().__init__()
        self.chaos, self.calls = chaos, itertools.count(len(chaos.opened) * 100)

    def update_from_model(self, response, **kwargs):
        if self.chaos.fault("agent_model", next(self.calls)) == "raise":
            raise KeyError("agent broke")
        return super().update_from_model(response)


class Watched(SimulatedLearner):
    """Checks each batch for age and shape before it is consumed."""

    def __init__(self, step_s, orchestrator, bound):
        super().__init__(step_s)
        self.orchestrator, self.bound = orchestrator, bound

    async def update(self, groups):
        for group in groups:
            assert isinstance(group, TrajectoryGroup)
            assert group.oldest_version is None or self.version - group.oldest_version <= self.bound
            scored = [t for t in group.trajectories if t.scored]
            assert len(scored) >= min(2, len(group.trajectories))
            for row in (row for t in group.trajectories for row in t.rows):
                assert len(row.tokens) == len(row.loss_mask) == len(row.logprobs) == len(row.policy_versions)
        return await super().update(groups)


async def endless():
    """Tasks, given on the loop: a synchronous stream would be read on a thread."""
    for number in itertools.count():
        yield {"id": str(number), "prompt": f"task {number}"}


def play(chaos, *, steps, lead, group_size, groups_per_step, concurrency, stop_after_s, speed):
    """Run it, and give the last counts with the status."""

    async def main():
        engine = SimulatedEngine(lambda request: 1 + hash(request.id) % 9, token_rate=speed, saturation=4)
        options = RolloutConfig(
            group_size=group_size,
            groups_per_step=groups_per_step,
            max_concurrency=concurrency,
            max_off_policy_steps=lead,
            max_failed_groups=3,
            reset_timeout_s=5,
            step_timeout_s=5,
            close_timeout_s=5,
            model_timeout_s=5,
            episode_timeout_s=20,
        )
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=lambda: ChaosAgent(chaos),
            env_class=lambda task: ChaosEnv(task, chaos),
            config=options,
        )
        orchestrator.gate.limit = steps * groups_per_step
        learner = Watched(1.0, orchestrator, lead)
        session = Session("chaos", Parts(engine, orchestrator, learner, lambda policy: None), endless(), steps)

        async def watch():
            while True:
                c = session.snapshot().counts
                assert c.admitted == c.in_flight + c.trained + c.stale + c.filtered + c.failed + c.cancelled
                assert c.in_flight >= 0
                assert len(session.snapshot().episodes) <= concurrency
                await anyio.sleep(0.5)

        failure = None
        with anyio.move_on_after(stop_after_s):
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                try:
                    await first_error(session.main)
                except RunError as error:
                    failure = error
                group.cancel_scope.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return session, orchestrator, learner, failure, others

    return run_virtual(main)


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 10**9),
    share=st.sampled_from([0.0, 0.05, 0.2, 0.5]),
    steps=st.integers(1, 3),
    lead=st.integers(0, 2),
    group_size=st.integers(1, 4),
    groups_per_step=st.integers(1, 3),
    concurrency=st.integers(1, 9),
    stop_after_s=st.sampled_from([0.3, 3.0, 11.0, 1000.0]),
    speed=st.sampled_from([2.0, 50.0]),
)
def test_whatever_breaks_every_group_is_accounted_for_and_every_environment_closed_once(seed, share, **options):
    chaos = Chaos(seed, share)
    session, orchestrator, learner, failure, others = play(chaos, **options)
    counts = orchestrator.gate.counts
    assert counts.in_flight == 0
    assert counts.admitted == counts.trained + counts.stale + counts.filtered + counts.failed + counts.cancelled
    assert counts.trained >= len(learner.consumed)
    assert len(chaos.closed) == len(chaos.opened) == len(set(map(id, chaos.closed)))
    assert not others
    assert session.snapshot().episodes == ()
    if session.status == "finished":
        assert counts.trained == options["steps"] * options["groups_per_step"]
        assert len(set(learner.consumed)) == len(learner.consumed)
    if share == 0.0 and options["stop_after_s"] == 1000.0 and options["speed"] == 50.0:
        assert failure is None and session.status == "finished" and counts.failed == 0
