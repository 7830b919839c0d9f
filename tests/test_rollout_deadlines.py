"""Deadlines inside a step: of each tool call and of the reward, and what becomes of an answer that comes late."""

import asyncio
import math
import subprocess
import sys
import threading
import time

import anyio
import pytest

from agentlab.agents import ModelAgent
from agentlab.environments import BaseTaskEnv, ToolEnvironment, part
from agentlab.errors import ConfigError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, run_episode
from agentlab.types import Action, EnvStepResult, ToolCall


class Calling(ModelAgent):
    """Calls the tools that the model names, one or more; "answer" is an answer."""

    def update_from_model(self, response, **kwargs):
        text = super().update_from_model(response).value
        return Action(text if text.startswith("answer") else tuple(ToolCall(name) for name in text.split()))


def waiting(event):
    def wait() -> str:
        """Wait for the event."""
        event.wait()
        return "late"

    return wait


def quick() -> str:
    """Answer at once."""
    return "now"


async def sleepy() -> str:
    """Sleep for longer than allowed."""
    await asyncio.sleep(0.5)
    return "late"


def play(script, tools=None, reward_fn=lambda task, answer: 1.0, **config):
    return run_episode(
        ScriptedEngine(script),
        {"prompt": "Call the tool."},
        agent_class=Calling,
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": tools or {"quick": quick}, "reward_fn": reward_fn},
        config=RolloutConfig(**config),
    )


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_a_hanging_tool_ends_its_episode_by_its_own_deadline_and_is_named(release):
    began = time.monotonic()
    record = play("slow", {"slow": waiting(release)}, tool_timeout_s=0.05)
    assert time.monotonic() - began < 5
    assert (record.failure.stage, record.failure.turn) == ("tool", 0)
    assert record.failure.error == "tool 'slow' took longer than 0.05 s, its tool_timeout_s"
    assert record.turns == () and math.isnan(record.reward)


def test_each_of_several_calls_has_the_whole_time():
    def nap() -> str:
        """Sleep a little."""
        time.sleep(0.04)
        return "rested"

    record = play(["nap nap nap nap", "answer"], {"nap": nap}, tool_timeout_s=0.12)
    assert record.failure is None and record.reward == 1.0
    assert [result.text for result in record.turns[0].observation] == ["rested"] * 4


def test_an_async_tool_has_the_same_deadline():
    record = play("sleepy", {"sleepy": sleepy}, tool_timeout_s=0.05)
    assert record.failure.stage == "tool" and "'sleepy'" in record.failure.error


def test_a_step_that_is_cut_says_which_tool_it_was_in(release):
    record = play("slow", {"slow": waiting(release)}, step_timeout_s=0.05)
    assert record.failure.stage == "step"
    assert record.failure.error == "step took longer than 0.05 s; it was in tool 'slow'"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hanging_reward_has_a_deadline_of_its_own(release, is_async):
    async def slow_reward(task, answer):
        await asyncio.sleep(0.5)

    def blocking_reward(task, answer):
        release.wait()

    reward_fn = slow_reward if is_async else blocking_reward
    record = play("answer", reward_fn=reward_fn, reward_timeout_s=0.05)
    assert record.failure.stage == "reward"
    assert f"reward '{reward_fn.__name__}' took longer than 0.05 s" in record.failure.error


def test_an_environment_of_ones_own_marks_its_tool_calls_plainly_or_async():
    class Own(BaseTaskEnv):
        def _initial_observation(self):
            return "go"

        async def _step_impl(self, action):
            with part("tool", "browser"):
                await anyio.sleep(60)

    record = run_episode(
        ScriptedEngine("x"),
        {"prompt": ""},
        agent_class=ModelAgent,
        env_class=Own,
        config=RolloutConfig(tool_timeout_s=0.05),
    )
    assert record.failure.error == "tool 'browser' took longer than 0.05 s, its tool_timeout_s"


def test_a_hung_tool_costs_one_worker_is_counted_and_its_late_answer_reaches_nobody(release):
    rollouts = RolloutOrchestrator(
        engine := ScriptedEngine(lambda request, prompt: "slow" if "hang" in prompt else "quick answer"),
        agent_class=Calling,
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": {"slow": waiting(release), "quick": quick}, "reward_fn": lambda task, answer: 1.0},
        config=RolloutConfig(group_size=1, max_concurrency=1, max_workers=2, tool_timeout_s=0.05, max_turns=1),
    )
    tasks = [{"id": "h", "prompt": "hang"}, *({"id": str(i), "prompt": "go"} for i in range(20))]
    shown = []

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            async for _ in rollouts.stream(tasks):
                shown.append(rollouts.num_hung)
            release.set()
            group.cancel_scope.cancel()

    asyncio.run(main())
    assert shown == [1] * 20
    late = next(t for t in rollouts.recent if t.task.id == "h")
    assert late.turns == () and late.failure.stage == "tool"
    assert rollouts.gate.counts.failed == 1


class Swallowing:
    """Its step answers although it was cancelled, with a reward that must not count."""

    def __init__(self, task):
        self.closed = 0

    async def reset(self):
        return "go", {}

    async def step(self, action):
        try:
            await anyio.sleep(60)
        except asyncio.CancelledError:
            return EnvStepResult("late", 1.0, True)

    async def close(self):
        pass


def test_an_answer_after_the_deadline_counts_as_none_even_where_cancelling_was_swallowed():
    record = run_episode(
        ScriptedEngine("x"),
        {"prompt": ""},
        agent_class=ModelAgent,
        env_class=Swallowing,
        config=RolloutConfig(step_timeout_s=0.05),
    )
    assert record.failure.stage == "step" and record.turns == () and math.isnan(record.reward)


def test_an_answer_after_the_whole_episodes_deadline_earns_nothing_either():
    record = run_episode(
        ScriptedEngine("x"),
        {"prompt": ""},
        agent_class=ModelAgent,
        env_class=Swallowing,
        config=RolloutConfig(episode_timeout_s=0.05),
    )
    assert record.truncation == "timeout" and not record.scored


@pytest.mark.parametrize("option", ["tool_timeout_s", "reward_timeout_s"])
def test_a_deadline_of_nothing_is_refused(option):
    with pytest.raises(ConfigError, match=f"{option} must be more than 0 seconds"):
        RolloutConfig(**{option: 0})


POSTED = """
import asyncio, sys, threading
if sys.argv[1] == "absent":
    sys.modules["sniffio"] = None  # importing it fails
import anyio
from agentlab.agents import ModelAgent
from agentlab.concurrency import LoopThread, post
from agentlab.environments import ToolEnvironment
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, run_episode
from agentlab.types import Action, ToolCall

known = []

def probe():
    try:
        known.append(anyio.current_time() > 0)
    except RuntimeError:
        known.append(False)

async def main():
    await asyncio.to_thread(post, asyncio.get_running_loop(), probe)
    await asyncio.sleep(0)

asyncio.run(main())
assert known == [sys.argv[1] == "absent"], "this is not the world that is to be tried"

class Calling(ModelAgent):
    def update_from_model(self, response, **kwargs):
        return Action((ToolCall("slow"),))

release = threading.Event()

def slow() -> str:
    "Wait."
    release.wait()
    return "late"

record = run_episode(
    ScriptedEngine("x"), {"prompt": ""}, agent_class=Calling, env_class=ToolEnvironment,
    env_kwargs={"tool_map": {"slow": slow}, "reward_fn": lambda task, answer: 1.0},
    config=RolloutConfig(tool_timeout_s=0.05),
)
release.set()
print(record.failure.stage, record.failure.error)
thread = LoopThread(anyio.sleep_forever)
rung = thread.call(anyio.Event)
rung.set()
thread.cancel()
print(rung.is_set(), thread.join(30.0))
"""


@pytest.mark.parametrize("sniffio", ["installed", "absent"])
def test_what_threads_post_to_a_loop_works_whether_or_not_sniffio_lets_anyio_know_of_it(sniffio):
    """Older anyio brings sniffio along, newer does without; where it is, a posted callback has no anyio of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", POSTED, sniffio], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "tool tool 'slow' took longer than 0.05 s, its tool_timeout_s\nTrue True\n"
