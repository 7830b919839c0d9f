"""Sandbox calls per second, what the orchestrator adds to a tool call, and parsers: hostile text, calls read back.

Sandbox: a pool of two warm sandboxes, asked by two threads; each call runs a program that prints a
number, in an empty folder. The wall clock counts, in several stretches, of which the median is reported;
so does one call alone, asked from one thread.

Added latency: episodes of 32 tool calls on an engine that answers at once, so that nothing but
orchestration takes time: from the model's answer to the next question, without the tool's own time. That
is reading the call, the way to the worker and back, and encoding the answer for the model. One episode
at a time; then 32 at once, whose tool takes 0 to 0.5 s, evenly drawn: 128 calls a second.
The median over episodes counts. The time of the scripted model is subtracted as the trajectory has it.

Parsers: see `agentlab.bench.parsing` for hostile text, `agentlab.bench.written` for calls read back.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from agentlab.agents import ToolAgent
from agentlab.bench import parsing, written
from agentlab.bench.contract import Row
from agentlab.environments import ToolEnvironment
from agentlab.inference import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.rollout.serving import run_served
from agentlab.tools import SandboxPool
from agentlab.tools.sandbox_walls import WallName
from agentlab.types import Task, Trajectory

STRETCHES = 5
THREADS = 2
CALLS_PER_S = 50.0
ADDED_MS = 2.0
TURNS = 32
Language = Literal["python", "bash"]
PROGRAMS: dict[Language, str] = {"python": "print(6 * 7)", "bash": "echo 42"}
CALL = f"<tool_call>\n{json.dumps({'name': 'echo', 'arguments': {'text': 'hello'}})}\n</tool_call>"


def run(arguments: Sequence[str]) -> list[Row]:
    """All rows; `--calls` and `--episodes` make it shorter or longer."""
    words = argparse.ArgumentParser(prog="python -m agentlab.bench tools")
    words.add_argument("--calls", type=int, default=100, help="sandbox calls of each stretch")
    words.add_argument("--episodes", type=int, default=64, help="episodes of the latency part, one after the other")
    options = words.parse_args(arguments)
    return [*sandbox_rows(options.calls), *latency_rows(options.episodes), *parsing.rows(), *written.rows()]


def sandbox_rows(calls: int) -> list[Row]:
    """Calls per second of each language, behind the best walls and, if those are another kind, without bubblewrap."""
    rows: list[Row] = []
    contained = SandboxPool(1).walls.name == "bubblewrap"
    kinds: list[WallName] = ["bubblewrap", "subprocess"] if contained else ["auto"]
    for kind in kinds:
        with SandboxPool(THREADS, walls=kind) as pool:
            for language, program in PROGRAMS.items():
                speed, alone_ms = speed_of(pool, language, program, calls)
                rows.append(Row.at_least(f"{pool.walls.name}: {language} calls", speed, CALLS_PER_S, "calls/s"))
                rows.append(Row(f"{pool.walls.name}: one {language} call alone", alone_ms, unit="ms"))
    return rows


def speed_of(pool: SandboxPool, language: Language, program: str, calls: int) -> tuple[float, float]:
    """(calls per second of all threads, milliseconds of one call alone), medians."""

    def call(_: int) -> float:
        started = time.perf_counter()
        ran = pool.run(language, program)
        assert ran.output == "42\n", ran
        return time.perf_counter() - started

    speeds = []
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(call, range(2 * THREADS)))
        for _ in range(STRETCHES):
            started = time.perf_counter()
            list(threads.map(call, range(calls)))
            speeds.append(calls / (time.perf_counter() - started))
    return statistics.median(speeds), 1e3 * statistics.median(call(n) for n in range(calls))


def echo(text: str) -> str:
    """Say it again."""
    return text


def latency_rows(episodes: int) -> list[Row]:
    """What a tool call takes longer than the tool and the model."""
    alone = [added_ms(t) for t in played(echo, episodes, concurrency=1)]
    rng = random.Random(0)

    def ask(text: str) -> str:
        """Say it again, later."""
        time.sleep(rng.uniform(0, 0.5))
        return text

    busy = [added_ms(t) for t in played(ask, 32, concurrency=32)]
    return [
        Row.at_most("added per tool call, one episode", statistics.median(alone), ADDED_MS, "ms"),
        Row.at_most("added per tool call, 32 episodes at once", statistics.median(busy), ADDED_MS, "ms"),
    ]


def played(tool: object, episodes: int, *, concurrency: int) -> list[Trajectory]:
    """Episodes that call the tool `TURNS` times and then answer."""
    engine = ScriptedEngine(lambda request, prompt: CALL if prompt.count("</tool_call>") < TURNS else "done")
    tools = {"echo": tool}
    orchestrator = RolloutOrchestrator(
        engine,
        agent_class=ToolAgent,
        agent_kwargs={"tool_map": tools, "describe_tools": False, "tool_parser_name": "hermes"},
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": tools, "reward_fn": lambda task, answer: 1.0, "max_turns": TURNS + 2},
        config=RolloutConfig(group_size=1, max_concurrency=concurrency, max_turns=TURNS + 2, max_off_policy_steps=64),
    )

    async def work() -> list[Trajectory]:
        tasks = [Task(str(number), "Go.") for number in range(episodes)]
        return [t async for group in orchestrator.stream(tasks) for t in group.trajectories]

    return run_served(engine, work)


def added_ms(trajectory: Trajectory) -> float:
    """Milliseconds per tool call that were neither the tool's nor the model's."""
    assert trajectory.failure is None, trajectory.failure
    calls = [result for turn in trajectory.turns if isinstance(turn.observation, tuple) for result in turn.observation]
    assert len(calls) >= TURNS, len(calls)
    own_s = sum(result.duration_s for result in calls) + sum(turn.model_s for turn in trajectory.turns)
    return 1e3 * ((trajectory.end_ns - trajectory.start_ns) / 1e9 - own_s) / len(calls)
