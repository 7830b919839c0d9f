"""What an engine does for itself counts against no deadline, and impossible options are told before a device works."""

import asyncio
import functools

import anyio
import pytest

import agentlab as al
from agentlab import tracing
from agentlab.agents import ModelAgent
from agentlab.concurrency import run_virtual
from agentlab.environments import FrozenLake, Latency, TaskEnvironment, Terminal, ToolEnvironment
from agentlab.errors import ConfigError
from agentlab.inference import JaxEngine
from agentlab.inference.preparing import Preparing
from agentlab.inference.scripted import ScriptedEngine
from agentlab.models import tiny_model
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, evaluate


class Compiling(ScriptedEngine):
    """Compiles for 30 s from when it is made on, and is then as quick as it is told to be."""

    def __init__(self, answer_s):
        super().__init__("yes")
        self.answer_s = answer_s

    def prepared_s(self):
        return min(asyncio.get_running_loop().time(), 30.0)

    async def generate(self, request):
        await anyio.sleep(30.0 - self.prepared_s() + self.answer_s)
        return await super().generate(request)


def played(answer_s, **timeouts):
    """The record of an episode on a virtual clock, and when it ended."""

    async def main():
        engine = Compiling(answer_s)
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=ModelAgent,
            env_class=TaskEnvironment,
            env_kwargs={"reward_fn": lambda task, answer: 1.0},
            config=RolloutConfig(**timeouts),
        )
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            record = await orchestrator.run_one({"prompt": "a"})
            group.cancel_scope.cancel()
        return record, anyio.current_time()

    return run_virtual(main)


@pytest.mark.parametrize("timeouts", [{"model_timeout_s": 5.0}, {"episode_timeout_s": 5.0}])
def test_compilation_counts_against_no_deadline(timeouts):
    record, end_s = played(4.0, **timeouts)
    assert record.failure is None and record.reward == 1.0 and end_s == pytest.approx(34.0)


@pytest.mark.parametrize(
    ("timeouts", "stage"), [({"model_timeout_s": 5.0}, "model"), ({"episode_timeout_s": 5.0}, "episode")]
)
def test_what_takes_long_after_compilation_is_cut_as_soon_as_its_own_time_is_up(timeouts, stage):
    record, end_s = played(100.0, **timeouts)
    assert record.failure.stage == stage and "took longer than 5.0 s" in record.failure.error
    assert end_s == pytest.approx(35.0)


@pytest.mark.parametrize("warm_up", [False, True])
def test_the_jax_engine_tells_how_long_it_has_compiled(warm_up):
    engine = JaxEngine(tiny_model(), num_slots=1, tokens_per_slot=64, warm_up=warm_up, compilation_cache=False)
    assert engine.prepared_s() == 0.0
    since_ns = tracing.now_ns()
    options = {"agent_class": ModelAgent, "env_class": TaskEnvironment, "progress": False}
    options["env_kwargs"] = {"reward_fn": lambda task, answer: 1.0}
    options["config"] = RolloutConfig(max_tokens=4)
    assert evaluate(engine, [{"prompt": "a"}], **options).num_failed == 0
    compiled = [span for span in tracing.spans(since_ns) if span.stage == "compile"]
    first_s = engine.prepared_s()
    if compiled:  # else a test before this one has had the same programs compiled in this process
        assert first_s >= max(span.duration_s for span in compiled) * 0.9
    assert evaluate(engine, [{"prompt": "a"}], **options).num_failed == 0
    assert engine.prepared_s() == pytest.approx(first_s, abs=0.2)


def test_the_clock_of_preparations_stands_still_outside_of_them():
    clock = Preparing()
    assert clock.seconds() == 0.0
    with clock:
        clock.begin()
        first = clock.seconds()
        while clock.seconds() == first:
            pass
    end = clock.seconds()
    assert end > first and clock.seconds() == end


REWARD = {"reward_fn": lambda task, answer: 1.0}
IMPOSSIBLE = {
    "no turns": (TaskEnvironment, REWARD | {"max_turns": 0}, "max_turns"),
    "half a turn": (TaskEnvironment, REWARD | {"max_turns": 1.5}, "max_turns"),
    "true turns": (ToolEnvironment, REWARD | {"tool_map": {}, "max_turns": True}, "max_turns"),
    "no characters": (ToolEnvironment, REWARD | {"tool_map": {}, "max_result_chars": 0}, "max_result_chars"),
    "no reward": (TaskEnvironment, {"reward_fn": 1.0}, "reward_fn"),
    "behind a delay": (Latency(TaskEnvironment, 0.0), REWARD | {"max_turns": -1}, "max_turns"),
    "in a partial": (functools.partial(TaskEnvironment, max_turns=0), REWARD, "max_turns"),
    "an unknown hint": (FrozenLake, {"hint": "gaol"}, "goal"),
    "an unknown tool": (Terminal, {"tools": ["bahs"]}, "bash"),
    "in a class derived": (type("Derived", (TaskEnvironment,), {}), REWARD | {"max_turns": 0}, "max_turns"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_options_with_which_no_task_could_be_played_are_refused_when_a_learner_is_made(name):
    env_class, options, says = IMPOSSIBLE[name]
    with pytest.raises(ConfigError, match=says):
        al.GRPOLearner(model=tiny_model(), agent_class=ModelAgent, env_class=env_class, env_kwargs=options)
    with pytest.raises(ConfigError, match=says):
        evaluate(
            ScriptedEngine("a"), [{"prompt": "a"}], agent_class=ModelAgent, env_class=env_class, env_kwargs=options
        )


@pytest.mark.parametrize("name", ["max_turns", "max_tokens", "group_size", "groups_per_step"])
def test_a_configuration_without_turns_tokens_or_groups_is_refused_as_it_is_made(name):
    with pytest.raises(ConfigError, match=name):
        al.GRPOConfig(**{name: 0})


def test_a_constructor_of_a_users_own_may_mean_something_else_by_a_name():
    class Own(TaskEnvironment):
        def __init__(self, task, max_turns=0):
            super().__init__(task, lambda task, answer: 1.0, max_turns=max_turns or 3)

    al.GRPOLearner(model=tiny_model(), agent_class=ModelAgent, env_class=Own, env_kwargs={"max_turns": 0})
