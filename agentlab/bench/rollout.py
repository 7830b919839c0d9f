"""How many episodes the loop bears, how near groups come to the ideal makespan, and what asynchrony gains.

Three parts; nothing is computed, only time passes: engine and learner are simulated, environments wait.

Load, on the real clock. 20,000 episodes of 4 turns, groups of 8, 1,024 in flight; the model takes 0.3 to
0.9 s a turn (evenly drawn), the asynchronous environment 0.6 s (mean of an exponential). Seen over 5
stretches of 4,000 episodes, of which the median counts: the 99th percentile of what a timer of 5 ms is
late by, and the processor time of the whole process per turn, simulators included. The slope of the
resident memory is a least-squares line after the first stretch. The trace keeps a bounded number of
records, which are filled beforehand. Noise: 1 MB per 1,000 episodes.

Makespan, on the virtual clock once and on the real clock 5 times. 192 episodes of 4 turns, 0.1 s of model
and 0.1 s of tool, groups of 8, 32 in flight; the consumer takes the groups one by one, 0.2 s each. The
ideal starts every episode as soon as a place is free, and consumes every group as soon as it is complete.

Blocking, on the real clock, 5 times each: 64 synchronous steps that sleep 0.2 s, from the beginning of the
first to the end of the last; and the largest lag of a 5 ms timer while a learner blocks for 5 s with the
next batch ready.

Asynchrony, on the virtual clock, medians over 5 draws of the tool times. An agentic load that waits for
tools: episodes of 4 turns of 50 tokens, 50 tokens/s a sequence, at most 64 sequences at full speed; a tool
that takes an exponential time of mean 0.5 s or 2 s; 8 groups of 8 per update, 2 s per update, 20 updates,
at most 512 episodes in flight. Of a batch the device decodes 4 s. Synchronous is the usual loop, and
`max_off_policy_steps=0` of the same code: all 64 episodes of a batch begin together, the update waits for
the last of them, and the next batch for the update. The ratio compares whole runs, start and end included.

What a lead can give: a group that begins under one version must be consumed at most `lead` updates later,
so the longest group and its update fit into `lead + 1` updates, where the synchronous loop does one. No
schedule that trains every group it begins gains more than `lead + 1`. The goals of 2.3 and 3.7 thus need a
lead of 2 and 3 at least; they are held to at 4, and with 1, the default, the gain is reported beside its
bound of 2. Idle is the share of the time in which the device neither decodes nor trains, with a lead of 8,
which allows 576 episodes, until the last planned group begins: after that nothing is left to start. Of the
whole run, what a device that is always full would not have needed is reported as unused capacity. The gain
depends on the load: with half the saturation and updates of 4 s, where computing outweighs waiting, it is
1.7 and 2.9 on two devices, 1.2 and 2.3 on one.
"""

import argparse
import asyncio
import heapq
import itertools
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from agentlab import tracing
from agentlab.agents import ModelAgent
from agentlab.bench.blocking import blocking_rows, keep_time
from agentlab.bench.contract import Row
from agentlab.bench.simulated import SimulatedDevice, SimulatedEngine, SimulatedLearner
from agentlab.concurrency import first_error, run_virtual
from agentlab.errors import ConfigError
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Session
from agentlab.tracing.buffers import MAX_RECORDS
from agentlab.tracing.spans import Stage
from agentlab.types import Action, EnvStepResult, Task

TURNS = 4
GROUP_SIZE = 8
STRETCHES = 5
TOKENS_PER_S = 50.0
DRAW = 1_000_000
"""Seeds that one draw of tool times has for its environments."""
STATM = Path("/proc/self/statm")
MEMORY_UNIT = "MB/1,000 episodes"


def run(arguments: Sequence[str]) -> list[Row]:
    """All rows; `--episodes`, `--repeats`, `--updates` and `--draws` make it shorter or longer."""
    words = argparse.ArgumentParser(prog="python -m agentlab.bench rollout")
    words.add_argument("--episodes", type=int, default=20_000, help="episodes of the load part")
    words.add_argument("--repeats", type=int, default=5, help="repeats of makespan and blocking on the real clock")
    words.add_argument("--updates", type=int, default=20, help="updates of each simulated run")
    words.add_argument("--draws", type=int, default=5, help="draws of the tool times of each simulated run")
    options = words.parse_args(arguments)
    return [
        *load_rows(Load(episodes=options.episodes)),
        *makespan_rows(Pipeline(), options.repeats),
        *blocking_rows(options.repeats),
        *asynchrony_rows(Training(updates=options.updates), options.draws),
    ]


class ToolEnvironment:
    """Every step waits for a tool; the episode ends after a number of turns. Owned by the loop.

    Args:
        numbers: Gives each environment of a run its number, which seeds its tool times.
        tool_s: Draws the seconds of one step.
    """

    def __init__(self, task: Task, *, numbers: Iterator[int], tool_s: Callable[[random.Random], float]):
        self._prompt, self._tool_s, self._turn = task.prompt, tool_s, 0
        self._random = random.Random(next(numbers))

    async def reset(self) -> tuple[Any, dict[str, Any]]:
        return self._prompt, {}

    async def step(self, action: Action) -> EnvStepResult:
        del action
        await anyio.sleep(self._tool_s(self._random))
        self._turn += 1
        return EnvStepResult("go on", self._random.random(), self._turn == TURNS)

    async def close(self) -> None:
        """Nothing is open."""


async def numbered_tasks(
    count: float = math.inf, *, before: Mapping[int, Callable[[], None]] | None = None
) -> AsyncIterator[dict[str, str]]:
    """Tasks given on the loop; `before` says what to call first when the task of a number is about to be given."""
    for number in itertools.count():
        if number >= count:
            return
        if before and number in before:
            before[number]()
        yield {"id": str(number), "prompt": f"task {number}"}


def orchestrator_of(
    engine: SimulatedEngine, tool_s: Callable[[random.Random], float], *, draw: int = 0, **config: Any
) -> RolloutOrchestrator:
    """Episodes with a tool, in groups of `GROUP_SIZE`; `draw` chooses their tool times."""
    return RolloutOrchestrator(
        engine,
        agent_class=ModelAgent,
        env_class=ToolEnvironment,
        env_kwargs={"numbers": itertools.count(draw * DRAW), "tool_s": tool_s},
        config=RolloutConfig(group_size=GROUP_SIZE, **config),
    )


@dataclass(frozen=True)
class Load:
    """Many episodes at once on the real clock."""

    episodes: int = 20_000
    in_flight: int = 1_024
    model_tokens: tuple[int, int] = (15, 45)
    """Fewest and most of a turn, at `TOKENS_PER_S`."""
    tool_s: float = 0.6
    trace_records: int = MAX_RECORDS

    def __post_init__(self) -> None:
        if self.episodes < 2 * STRETCHES * GROUP_SIZE:
            raise ConfigError(f"episodes must be at least {2 * STRETCHES * GROUP_SIZE}, got {self.episodes}.")


@dataclass(frozen=True)
class Stretch:
    """What was seen while a part of the episodes finished; memory after each group, in flight at the end."""

    episodes: int
    cpu_s: float
    lags_s: Sequence[float]
    memory_mb: Sequence[float]
    in_flight: int

    @property
    def lag_ms(self) -> float:
        """The 99th percentile."""
        return 1e3 * quantile(self.lags_s, 0.99)

    @property
    def cpu_ms(self) -> float:
        """Processor time per turn."""
        return 1e3 * self.cpu_s / (self.episodes * TURNS)


def load_rows(load: Load) -> list[Row]:
    """Rows of the load part."""
    fill_trace(load.trace_records)
    stretches = asyncio.run(first_error(lambda: bear(load)))
    settled = [mb for stretch in stretches[1:] for mb in stretch.memory_mb]
    name, median = f"{load.in_flight:,} episodes", statistics.median
    return [
        Row.at_most(f"{name}: loop lag, p99", median(s.lag_ms for s in stretches), 20.0, "ms"),
        Row.at_most(f"{name}: CPU per turn", median(s.cpu_ms for s in stretches), 1.0, "ms"),
        Row.at_most(f"{load.episodes:,} episodes: memory slope", slope(settled) * 1e3 / GROUP_SIZE, 1.0, MEMORY_UNIT),
        Row(f"{name}: in flight, median", median(s.in_flight for s in stretches)),
    ]


async def bear(load: Load) -> list[Stretch]:
    """Play the episodes, and watch."""
    draw = random.Random(0)
    engine = SimulatedEngine(
        lambda request: draw.randint(*load.model_tokens), token_rate=TOKENS_PER_S, saturation=load.in_flight
    )
    orchestrator = orchestrator_of(
        engine, exponential(load.tool_s), max_concurrency=load.in_flight, groups_per_step=load.in_flight
    )
    stretches: list[Stretch] = []
    lags_s, memory_mb = [], []
    groups = load.episodes // GROUP_SIZE // STRETCHES
    since_s = time.process_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.serve)
        tasks.start_soon(keep_time, lags_s)
        async for _ in orchestrator.stream(numbered_tasks(groups * STRETCHES)):
            memory_mb.append(resident_mb())
            if len(memory_mb) < groups:
                continue
            now_s, in_flight = time.process_time(), len(orchestrator.in_flight())
            stretches.append(Stretch(groups * GROUP_SIZE, now_s - since_s, tuple(lags_s), tuple(memory_mb), in_flight))
            lags_s.clear()
            memory_mb.clear()
            since_s = now_s
        tasks.cancel_scope.cancel()
    return stretches


def fill_trace(records: int) -> None:
    """Bring the trace's bounded memory to its bound, with records as large as those of episodes."""
    stages: tuple[Stage, ...] = ("agent", "step", "agent", "decode", "agent", "step", "agent")
    for number in range(math.ceil(records / (len(stages) + 1))):
        with tracing.tagged(group=f"{number}:{number}", episode=number):
            now_ns = tracing.now_ns()
            for stage in stages:
                tracing.record(stage, now_ns, now_ns + number, turn=number)
            times = {"queued_s": now_ns / 1e9, "prefill_s": now_ns / 2e9, "decode_s": now_ns / 3e9}
            tracing.record("model_call", now_ns, now_ns + number, turn=number, tokens=number, prefilled=0, **times)


def resident_mb() -> float:
    """Megabytes of this process in memory; NaN where the system does not tell by /proc."""
    return int(STATM.read_text().split()[1]) * 4096 / 1e6 if STATM.exists() else math.nan


@dataclass(frozen=True)
class Pipeline:
    """Episodes of equal length with a consumer that takes time per group."""

    groups: int = 24
    in_flight: int = 32
    model_s: float = 0.1
    tool_s: float = 0.1
    post_s: float = 0.2

    @property
    def ideal_s(self) -> float:
        """No place is ever free while an episode waits, and no group waits for an idle consumer."""
        length_s = TURNS * (self.model_s + self.tool_s)
        return ideal_makespan_s([length_s] * (self.groups * GROUP_SIZE), self.in_flight, self.post_s)


def makespan_rows(pipeline: Pipeline, repeats: int) -> list[Row]:
    """Rows of the makespan part."""
    ideal_s = pipeline.ideal_s
    real_s = [asyncio.run(first_error(lambda: drain(pipeline))) for _ in range(repeats)]
    virtual = run_virtual(lambda: drain(pipeline)) / ideal_s
    return [
        Row("makespan: ideal", ideal_s, unit="s"),
        Row.at_most("makespan / ideal, virtual clock", virtual, 1.10),
        Row.at_most("makespan / ideal, real clock", statistics.median(real_s) / ideal_s, 1.10),
    ]


async def drain(pipeline: Pipeline) -> float:
    """Seconds until the last group was consumed."""
    count = round(pipeline.model_s * 1_000)
    engine = SimulatedEngine(lambda request: count, token_rate=1_000.0, saturation=pipeline.in_flight)
    orchestrator = orchestrator_of(engine, lambda draw: pipeline.tool_s, max_concurrency=pipeline.in_flight)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.serve)
        start_s = anyio.current_time()
        async for _ in orchestrator.stream(numbered_tasks(pipeline.groups)):
            await anyio.sleep(pipeline.post_s)
        took_s = anyio.current_time() - start_s
        tasks.cancel_scope.cancel()
    return took_s


def ideal_makespan_s(lengths_s: Sequence[float], places: int, post_s: float) -> float:
    """When the last group is consumed, if every episode starts as soon as one of `places` is free.

    Args:
        lengths_s: Seconds of each episode in order, group after group of `GROUP_SIZE`.
        places: Episodes at once.
        post_s: Seconds of the consumer per group; it takes one after the other.
    """
    free_s = [0.0] * places
    ends_s = []
    for length_s in lengths_s:
        ends_s.append(heapq.heappop(free_s) + length_s)
        heapq.heappush(free_s, ends_s[-1])
    consumed_s = 0.0
    groups = (ends_s[first : first + GROUP_SIZE] for first in range(0, len(ends_s), GROUP_SIZE))
    for ready_s in sorted(map(max, groups)):
        consumed_s = max(consumed_s, ready_s) + post_s
    return consumed_s


@dataclass(frozen=True)
class Training:
    """Rollouts with a learner behind them, on the virtual clock."""

    updates: int = 20
    groups_per_step: int = 8
    in_flight: int = 512
    tokens: int = 50
    saturation: int = 64
    update_s: float = 2.0
    tool_s: float = 0.5
    lead: int = 0
    shared: bool = False
    draw: int = 0
    """Which draw of the tool times; the n-th episode of a draw has the same ones whatever the lead."""

    @property
    def least_s(self) -> float:
        """Seconds of a device that is always full: to decode what is trained on, and to train if it must."""
        episodes = self.updates * self.groups_per_step * GROUP_SIZE
        decode_s = episodes * TURNS * self.tokens / (TOKENS_PER_S * self.saturation)
        return decode_s + self.updates * self.update_s * self.shared


@dataclass(frozen=True)
class Trained:
    """How a simulated run went."""

    took_s: float
    idle_percent: float
    """Of the engine's device, until the last planned group began."""
    unused_percent: float
    """Of the whole run, against a device that is always full."""


LEADS = (1, 4, 8)
"""The default, which is reported; that of the goals for the gain; that of the goal for idleness."""
GAINS = {0.5: (2.3, 1.6), 2.0: (3.7, 2.9)}
"""By the tool's mean seconds: least gain on two devices, and on one that engine and learner share."""


def asynchrony_rows(training: Training, draws: int) -> list[Row]:
    """Rows of the asynchrony part."""
    rows = []
    for tool_s, gains in GAINS.items():
        cases = [replace(training, tool_s=tool_s, draw=draw) for draw in range(draws)]
        # The same on one device: nothing is decoded during an update.
        sync_s = [simulated(case).took_s for case in cases]
        for gain, shared in zip(gains, (False, True), strict=True):
            rows += gain_rows([replace(case, shared=shared) for case in cases], sync_s, gain)
    return rows


def gain_rows(cases: Sequence[Training], sync_s: Sequence[float], gain: float) -> list[Row]:
    """Rows of one case: medians over its draws, against the seconds that each takes synchronously."""
    name = f"{'one device' if cases[0].shared else 'two devices'}, tool {cases[0].tool_s:g} s"
    short, longer, ample = ([simulated(replace(case, lead=lead)) for case in cases] for lead in LEADS)
    return [
        Row(f"{name}: sync / async, lead {LEADS[0]} (bound {LEADS[0] + 1})", ratio(sync_s, short)),
        Row.at_least(f"{name}: sync / async, lead {LEADS[1]}", ratio(sync_s, longer), gain),
        Row.at_most(f"{name}: idle, lead {LEADS[2]}", statistics.median(t.idle_percent for t in ample), 5.0, "%"),
        Row(f"{name}: unused capacity, lead {LEADS[2]}", statistics.median(t.unused_percent for t in ample), unit="%"),
    ]


def ratio(sync_s: Sequence[float], runs: Sequence[Trained]) -> float:
    """Median over the draws of how many times as long the synchronous run takes."""
    return statistics.median(sync / run.took_s for sync, run in zip(sync_s, runs, strict=True))


def simulated(training: Training) -> Trained:
    """One run on the virtual clock."""
    return run_virtual(lambda: train(training))


async def train(training: Training) -> Trained:
    """One run, from its first task to its last update."""
    device = SimulatedDevice()
    engine = SimulatedEngine(
        lambda request: training.tokens, token_rate=TOKENS_PER_S, saturation=training.saturation, device=device
    )
    learner = SimulatedLearner(training.update_s, device=device if training.shared else None)
    orchestrator = orchestrator_of(
        engine,
        exponential(training.tool_s),
        draw=training.draw,
        groups_per_step=training.groups_per_step,
        max_concurrency=training.in_flight,
        max_off_policy_steps=training.lead,
    )
    orchestrator.gate.limit = planned = training.updates * training.groups_per_step
    idle = []

    def note_idle() -> None:
        device.changed()
        idle.append(1 - device.busy_s / anyio.current_time())

    tasks = numbered_tasks(before={planned - 1: note_idle})
    parts = Parts(engine, orchestrator, learner, lambda policy: None)
    await first_error(Session("simulated", parts, tasks, training.updates).main)
    took_s = anyio.current_time()
    return Trained(took_s, 100 * idle[0], 100 * (1 - training.least_s / took_s))


def exponential(mean_s: float) -> Callable[[random.Random], float]:
    """Draws of an exponential distribution."""
    return lambda draw: draw.expovariate(1.0 / mean_s)


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` of the values do not exceed; NaN of none."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else math.nan


def slope(values: Sequence[float]) -> float:
    """Of the least-squares line through values, per place."""
    return statistics.linear_regression(range(len(values)), values).slope
