"""Random faults at every boundary, on a virtual clock: every episode is accounted for, nothing is left open."""

import asyncio
import collections
import decimal
import itertools
import math
import random
import threading
import zlib
from dataclasses import dataclass, field

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentlab.agents import ModelAgent
from agentlab.bench.simulated import SimulatedEngine, SimulatedLearner
from agentlab.concurrency import first_error, run_virtual
from agentlab.environments import part
from agentlab.errors import RewardError, RunError, ToolError
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.rollout.measures import episode_measures
from agentlab.run import Parts, Session
from agentlab.types import EnvStepResult, TrajectoryGroup

DEADLINE_S = 5.0
LATE_S = 7.0
LATE_REWARD = 1000.0
"""Comes only with answers that are given after their deadline: nobody may ever see it."""

WAITS = ("hang", "slow", "late", "stubborn")
FAULTS = {
    "make": ("raise", "end"),
    "reset": ("raise", "odd", "cancel", "end", *WAITS),
    "step": ("raise", "odd", "cancel", "end", *WAITS),
    "result": ("done", "info", "parts", "truncation", "observation"),
    "tool": ("raise", "end", *WAITS),
    "reward": ("raise", "odd", "end", *WAITS),
    "close": ("raise", "cancel", "end", *WAITS),
    "environment_attribute": ("raise", "end"),
    "agent_make": ("raise", "end"),
    "agent_model": ("raise", "cancel", "end", *WAITS),
    "agent_env": ("raise", "cancel", "end", *WAITS),
    "agent_attribute": ("raise", "odd", "end"),
    "agent_record": ("raise", "end"),
    "agent_action": ("odd",),
}
"""What strikes where. Of the waits, "slow" ends in time, "late" cannot be cancelled and ends after the
deadline, "stubborn" swallows the cancellation and answers all the same. "end" raises what is no Exception,
which most handlers let pass."""
OFTEN = {
    "agent_attribute": 0.1,
    "agent_record": 0.3,
    "agent_action": 0.3,
    "environment_attribute": 0.3,
    "result": 0.5,
    "agent_model": 0.6,
    "agent_env": 0.6,
    "reward": 3.0,
}
"""Shares of the share of faults, for what is asked again and again in an episode, or late."""


class Broken(BaseException):
    """Of a user's own, and no Exception."""


class Odd:
    """Cannot be looked at: neither shown nor compared nor counted, nor asked for its class."""

    def __getattribute__(self, name):
        raise ZeroDivisionError(f"odd {name}")

    def __repr__(self):
        raise ZeroDivisionError("odd repr")

    def __str__(self):
        raise ZeroDivisionError("odd str")

    def __bool__(self):
        raise ZeroDivisionError("odd bool")

    def __eq__(self, other):
        raise ZeroDivisionError("odd eq")


HUGE = 1e300
ODD_REWARDS = (float("nan"), float("inf"), None, "1.0", [1.0], HUGE, -HUGE, 10**400, True, np.array([1.0]), Odd())
ODD_REWARDS += (decimal.Decimal("NaN"), np.bool_(True), 1j)
BROKEN = {"tool": ToolError, "reward": RewardError}
ENDED_BY = (SystemExit, GeneratorExit, Broken)


@dataclass
class Chaos:
    """Which faults strike where, and what was opened and closed."""

    seed: int
    share: float
    struck: collections.Counter
    armed: bool = False
    agents: itertools.count = field(default_factory=itertools.count)
    environments: itertools.count = field(default_factory=itertools.count)
    opened: list = field(default_factory=list)
    closed: list = field(default_factory=list)

    def fault(self, stage, *where):
        rng = random.Random(repr((self.seed, stage, where)))
        strikes = self.armed and rng.random() < self.share * OFTEN.get(stage, 1.0)
        fault = rng.choice(FAULTS[stage]) if strikes else None
        self.struck[stage, fault] += fault is not None
        return fault

    def strike(self, stage, *where):
        """For what is not async: raise, or say that something odd should be given."""
        fault = self.fault(stage, *where)
        self.raise_for(fault, stage, where)
        return fault

    def raise_for(self, fault, stage, where):
        if fault == "raise":
            raise BROKEN.get(stage, ValueError)(f"{stage} broke")
        if fault == "end":
            raise ENDED_BY[sum(where) % len(ENDED_BY)](f"{stage} broke")

    async def strikes(self, stage, *where):
        """Raise, wait, or say that something odd or late should be answered."""
        fault = self.fault(stage, *where)
        self.raise_for(fault, stage, where)
        if fault == "cancel":
            raise asyncio.CancelledError
        if fault == "hang":
            await anyio.sleep_forever()
        if fault == "slow":
            await anyio.sleep(1.0)
        if fault == "late":
            with anyio.CancelScope(shield=True):
                await anyio.sleep(LATE_S)
        if fault == "stubborn":
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                fault = "late"
        return fault


class ChaosEnv:
    """Two turns, each with a tool call; a reward in the last."""

    def __init__(self, task, chaos):
        self.task, self.chaos = task, chaos
        self.number = next(chaos.environments)
        chaos.strike("make", self.number)
        chaos.opened.append(self)
        self.turn = 0

    @property
    def step(self):
        self.chaos.strike("environment_attribute", self.number, self.turn)
        return self._step

    async def reset(self):
        odd = await self.chaos.strikes("reset", self.number)
        return "not a pair" if odd == "odd" else (self.task.prompt, {})

    async def _step(self, action):
        where = (self.number, self.turn)
        fault = await self.chaos.strikes("step", *where)
        with part("tool", "search"):
            late = await self.chaos.strikes("tool", *where) == "late" or fault == "late"
        self.turn += 1
        if fault == "odd":
            return {"observation": "go on"}
        odd = self.chaos.strike("result", *where)
        if self.turn < 2 or odd:
            info = {"parts": {"reward_parts": {"a": HUGE}}, "truncation": {"truncation": Odd()}, "info": Odd()}
            said = Odd() if odd == "observation" else "go on"
            return EnvStepResult(
                said, LATE_REWARD if late else 0.0, Odd() if odd == "done" else False, info.get(odd, {})
            )
        with part("reward", "score"):
            odd = await self.chaos.strikes("reward", self.number)
        if odd == "odd":
            return EnvStepResult("done", ODD_REWARDS[self.number % len(ODD_REWARDS)], True)
        return EnvStepResult("done", LATE_REWARD if late or odd == "late" else float(self.number % 2), True)

    async def close(self):
        self.chaos.closed.append(self)
        await self.chaos.strikes("close", self.number)


class ChaosAgent(ModelAgent):
    """Its updates are async; the answer to the model is what it said."""

    def __init__(self, chaos):
        super().__init__()
        self.chaos, self.number, self.calls = chaos, next(chaos.agents), itertools.count()
        chaos.strike("agent_make", self.number)

    @property
    def messages(self):
        if not hasattr(self, "calls"):
            return self.kept
        odd = self.chaos.strike("agent_attribute", self.number, next(self.calls))
        return [Odd()] if odd == "odd" else self.kept

    @messages.setter
    def messages(self, value):
        self.kept = value

    async def update_from_model(self, response, **kwargs):
        await self.chaos.strikes("agent_model", self.number, next(self.calls))
        action = super().update_from_model(response)
        return Odd() if self.chaos.strike("agent_action", self.number, next(self.calls)) == "odd" else action

    def record_response(self, response):
        self.chaos.strike("agent_record", self.number, next(self.calls))
        super().record_response(response)

    async def update_from_env(self, *args):
        await self.chaos.strikes("agent_env", self.number, next(self.calls))
        super().update_from_env(*args)


class Watched(SimulatedLearner):
    """Checks each batch for age and shape before it is consumed."""

    def __init__(self, step_s, orchestrator, bound):
        super().__init__(step_s)
        self.orchestrator, self.bound = orchestrator, bound

    async def update(self, groups):
        for group in groups:
            assert isinstance(group, TrajectoryGroup)
            assert group.oldest_version is None or self.version - group.oldest_version <= self.bound
            assert all(turn.reward < LATE_REWARD for t in group.trajectories for turn in t.turns)
            measures = episode_measures([group], [0])
            assert math.isfinite(measures["reward_mean"]) and math.isfinite(measures["reward_std"])
            scored = [t for t in group.trajectories if t.scored]
            assert len(scored) >= min(2, len(group.trajectories))
            for row in (row for t in group.trajectories for row in t.rows):
                assert len(row.tokens) == len(row.loss_mask) == len(row.logprobs) == len(row.policy_versions)
        return await super().update(groups)


async def endless():
    """Tasks, given on the loop: a synchronous stream would be read on a thread."""
    for number in itertools.count():
        yield {"id": str(number), "prompt": f"task {number}"}


def play(chaos, *, steps, lead, group_size, groups_per_step, concurrency, stop_after_s, speed, pause_s, **more):
    """Run it, and give all there is to ask afterwards."""

    async def main():
        engine = SimulatedEngine(
            lambda request: 1 + zlib.crc32(request.id.encode()) % 9, token_rate=speed, saturation=4
        )
        options = RolloutConfig(
            group_size=group_size,
            groups_per_step=groups_per_step,
            max_concurrency=concurrency,
            max_off_policy_steps=lead,
            max_failed_groups=3,
            **dict.fromkeys(("reset_timeout_s", "step_timeout_s", "close_timeout_s", "model_timeout_s"), DEADLINE_S),
            **dict.fromkeys(("tool_timeout_s", "reward_timeout_s"), DEADLINE_S - 1),
            episode_timeout_s=20,
            **more,
        )
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=lambda: ChaosAgent(chaos),
            env_class=lambda task: ChaosEnv(task, chaos),
            config=options,
        )
        orchestrator.gate.limit = steps * groups_per_step
        chaos.armed = True  # an agent is made for the check of the arguments before that
        learner = Watched(1.0, orchestrator, lead)
        session = Session("chaos", Parts(engine, orchestrator, learner, lambda policy: None), endless(), steps)

        async def watch():
            while True:
                if pause_s is not None and anyio.current_time() >= pause_s:
                    session.pause(anyio.current_time() < pause_s + 3)
                now = session.snapshot()
                c = now.counts
                assert c.admitted == c.in_flight + c.trained + c.stale + c.filtered + c.failed + c.cancelled
                assert c.in_flight >= 0
                assert len(now.episodes) <= concurrency
                await anyio.sleep(1.0)

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


def check(seed, share, struck, *, filter_equal, **options):
    """One schedule of faults, and all that must hold whatever it was."""
    chaos = Chaos(seed, share, struck)
    filter_equal = filter_equal and options["group_size"] > 1
    session, orchestrator, learner, failure, others = play(chaos, filter_equal_rewards=filter_equal, **options)
    counts = orchestrator.gate.counts
    assert counts.in_flight == 0
    assert counts.admitted == counts.trained + counts.stale + counts.filtered + counts.failed + counts.cancelled
    assert counts.trained >= len(learner.consumed)
    assert len(chaos.closed) == len(chaos.opened) == len(set(map(id, chaos.closed)))
    assert not others
    assert session.snapshot().episodes == ()
    assert all(turn.reward < LATE_REWARD for t in orchestrator.recent for turn in t.turns)
    if session.status == "finished":
        assert counts.trained == options["steps"] * options["groups_per_step"]
        assert len(set(learner.consumed)) == len(learner.consumed)
    if share == 0.0 and options["stop_after_s"] == 1000.0 and options["speed"] == 50.0 and not filter_equal:
        assert failure is None and session.status == "finished" and counts.failed == 0


@pytest.mark.timeout(600)
def test_whatever_breaks_in_2000_schedules_every_group_is_accounted_for_and_every_environment_closed_once():
    struck = collections.Counter()
    schedules = 0

    @settings(deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow])
    @given(
        seed=st.integers(0, 10**9),
        share=st.sampled_from([0.0, 0.02, 0.1, 0.3]),
        steps=st.integers(1, 3),
        lead=st.integers(0, 2),
        group_size=st.integers(1, 4),
        groups_per_step=st.integers(1, 3),
        concurrency=st.integers(1, 9),
        stop_after_s=st.sampled_from([0.3, 3.0, 11.0, 1000.0, 1000.0]),
        pause_s=st.sampled_from([None, None, 1.0]),
        speed=st.sampled_from([2.0, 50.0]),
        max_retries=st.integers(0, 1),
        extra_groups=st.integers(0, 1),
        filter_equal=st.booleans(),
    )
    def schedule(seed, share, **options):
        nonlocal schedules
        schedules += 1
        check(seed, share, struck, **options)

    threads = threading.active_count()
    schedule()
    assert schedules >= 2_000
    assert threading.active_count() <= threads
    missed = [(stage, fault) for stage, faults in FAULTS.items() for fault in faults if struck[stage, fault] < 10]
    assert missed == []
