"""Whatever an object of a user's does, and wherever it is looked at, counts against its own episode alone."""

import asyncio
import decimal
import fractions
import math

import numpy as np
import pytest

from agentlab.agents import ConversationAgentBase, ModelAgent
from agentlab.environments import BaseTaskEnv, TaskEnvironment, ToolEnvironment, part
from agentlab.errors import ConfigError, RewardError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rewards import LARGEST_REWARD, LoopReward, Reward, as_reward, combine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, evaluate
from agentlab.types import Action, EnvStepResult, ToolCall

NUM_TASKS = 6


class Broken(BaseException):
    """No Exception: most handlers let it pass."""


class Nasty:
    """Raises whatever is done with it, even when asked for its class."""

    def __getattribute__(self, name):
        raise ZeroDivisionError(f"nasty {name}")

    def __repr__(self):
        raise ZeroDivisionError("nasty repr")

    def __str__(self):
        raise ZeroDivisionError("nasty str")

    def __bool__(self):
        raise ZeroDivisionError("nasty bool")

    def __eq__(self, other):
        raise ZeroDivisionError("nasty eq")


class Steps:
    """One turn of an environment that is not of ours."""

    def __init__(self, task):
        self.task = task

    def reset(self):
        return self.task.prompt, {}

    def step(self, action):
        return EnvStepResult(None, 1.0, True)

    def close(self):
        pass


class Forgetful(ConversationAgentBase):
    """Forgot `super().__init__()`."""

    def __init__(self):
        self.count = 0

    def update_from_model(self, response, **kwargs):
        return Action(response)


def agent(**members):
    return type("Faulty", (ModelAgent,), members)


def environment(**members):
    return type("Faulty", (Steps,), members)


def raising(error):
    def method(*_, **__):
        raise error

    return method


def result(**fields):
    return lambda self, action: EnvStepResult(**{"observation": None, "reward": 1.0, "done": True, **fields})


class OddResult(EnvStepResult):
    @property
    def info(self):
        raise OSError("no info")

    @info.setter
    def info(self, value):
        pass


def odd_error():
    class Odd(Exception):
        def __str__(self):
            raise ValueError("no text")

    return Odd()


ERRORS = [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Broken("x")]
ERRORS += [
    StopIteration(),
    StopAsyncIteration(),
    MemoryError(),
    RecursionError(),
    odd_error(),
    ValueError("\ud800\n\n"),
]
ERRORS += [BaseExceptionGroup("many", [Broken("x"), SystemExit()]), SystemExit(Nasty()), AttributeError("messages")]
PROPERTIES = ("messages", "update_from_env", "update_from_model", "record_response")

AGENTS = {
    "forgot super().__init__()": Forgetful,
    **{
        f"{name} raises {type(e).__name__}": agent(**{name: property(raising(e))})
        for name in PROPERTIES
        for e in ERRORS
    },
    **{f"calling update_from_model raises {type(e).__name__}": agent(update_from_model=raising(e)) for e in ERRORS},
    "messages is None": agent(messages=property(lambda self: None, lambda self, value: None)),
    "messages are nasty": agent(messages=property(lambda self: [Nasty()], lambda self, value: None)),
    "messages hold nasty content": agent(update_from_env=lambda self, *_: self.messages.append({"role": Nasty()})),
    "messages hold themselves": agent(update_from_env=lambda self, *_: self.messages.append(self.messages)),
    "is false, and says so by raising": agent(__bool__=raising(ValueError("x")), __len__=raising(ValueError("x"))),
    "an action that is nasty": agent(update_from_model=lambda self, response, **_: Nasty()),
    "a method that is no method": agent(update_from_model=7),
    "an awaitable that raises": agent(update_from_model=lambda self, *_, **__: Awaited(Broken("x"))),
}


class Awaited:
    def __init__(self, error):
        self.error = error

    def __await__(self):
        raise self.error
        yield


def _async_step(error):
    async def step(self, action):
        await asyncio.sleep(0)
        raise error

    return step


ENVIRONMENTS = {
    **{
        f"{name} raises {type(e).__name__}": environment(**{name: method(raising(e))})
        for name in ("reset", "step")
        for e in ERRORS
        for method in (property, lambda function: function)
    },
    **{f"async step raises {type(e).__name__}": environment(step=_async_step(e)) for e in ERRORS},
    "reset is nasty": environment(reset=lambda self: Nasty()),
    "step is nasty": environment(step=lambda self, action: Nasty()),
    "step is a list": environment(step=lambda self, action: [None, 1.0, True, {}]),
    "done is nasty": environment(step=result(done=Nasty())),
    "done is two": environment(step=result(done=np.array([True, False]))),
    "info is nasty": environment(step=result(info=Nasty())),
    "info raises": environment(step=lambda self, action: OddResult(None, 1.0, True)),
    "truncation is nasty": environment(step=result(info={"truncation": Nasty()})),
    "truncation is unknown": environment(step=result(info={"truncation": "\ud800"})),
    "parts are nasty": environment(step=result(info={"reward_parts": Nasty()})),
    "a part is nasty": environment(step=result(info={"reward_parts": {"a": Nasty()}})),
    "a part is NaN": environment(step=result(info={"reward_parts": {"a": math.nan}})),
    "a part is huge": environment(step=result(info={"reward_parts": {"a": 1e300}})),
    "an observation that is nasty": environment(step=result(observation=Nasty())),
}


def _in_a_task(error, start):
    async def leave():
        await asyncio.sleep(0)
        raise error

    async def step(self, action):
        await start(leave())
        return EnvStepResult(None, 1.0, True)

    return step


async def in_a_group(leaving):
    async with asyncio.TaskGroup() as group:
        group.create_task(leaving)


STARTS = {"gather": asyncio.gather, "create_task": asyncio.ensure_future, "group": in_a_group}
ENVIRONMENTS |= {
    f"a task of step's own, by {name}, raises {type(e).__name__}": environment(step=_in_a_task(e, start))
    for name, start in STARTS.items()
    for e in (ValueError("x"), SystemExit(1), KeyboardInterrupt(), Broken("x"))
}


async def nothing(task, answer):
    await asyncio.sleep(0)
    raise SystemExit(7)


REWARDS = {
    **{f"raises {type(e).__name__}": raising(e) for e in ERRORS},
    **{f"later raises {type(e).__name__}": lambda task, answer, e=e: Awaited(e) for e in ERRORS},
    "nasty": lambda task, answer: Nasty(),
    "raises on the loop": LoopReward(nothing),
    "raises in a part on the loop": combine({"a": (1.0, LoopReward(nothing)), "b": (1.0, lambda task, answer: 1.0)}),
    "none": lambda task, answer: None,
    "nan": lambda task, answer: math.nan,
    "infinite": lambda task, answer: -math.inf,
    "text": lambda task, answer: "1.0",
    "two": lambda task, answer: np.array([1.0, 2.0]),
    "one of an array": lambda task, answer: np.array([1.0]),
    "true": lambda task, answer: True,
    "true of numpy": lambda task, answer: np.bool_(True),
    "true in an array": lambda task, answer: np.array(True),
    "complex": lambda task, answer: 1j,
    "a decimal that is none": lambda task, answer: decimal.Decimal("NaN"),
    "an int beyond any float": lambda task, answer: 10**400,
    "the largest float": lambda task, answer: 1.7e308,
    "beyond the rule": lambda task, answer: LARGEST_REWARD * 1.01,
    "a huge part": lambda task, answer: Reward(0.0, {"a": -1e200}),
    "a huge weight": combine({"a": (1e300, lambda task, answer: 1e10)}),
    "parts that are none": lambda task, answer: Reward(0.0, Nasty()),
}


def play(*, agent_class=ModelAgent, env_class=Steps, faulty=lambda number: number % 2 == 1, **env_kwargs):
    """Two episodes each of some tasks; every second task has the faulty role. Gives the trajectories by task."""
    made_agents = iter(range(10**6))

    def make_agent():
        number = next(made_agents)
        return agent_class() if number and faulty((number - 1) // 2) else ModelAgent()  # the first is only checked

    def make_environment(task):
        return (env_class if faulty(int(task.id)) else Steps)(task, **(env_kwargs if faulty(int(task.id)) else {}))

    config = RolloutConfig(group_size=2, max_concurrency=2, max_failed_groups=NUM_TASKS, max_turns=2)
    orchestrator = RolloutOrchestrator(
        ScriptedEngine("yes"), agent_class=make_agent, env_class=make_environment, config=config, min_scored=0
    )
    tasks = [{"id": str(number), "prompt": f"Task {number}."} for number in range(NUM_TASKS)]
    groups = {int(group.task.id): group.trajectories for group in orchestrator.iterate(tasks)}
    counts = orchestrator.gate.counts
    assert counts.admitted == counts.trained == NUM_TASKS and counts.in_flight == 0
    for number in range(0, NUM_TASKS, 2):
        assert all(t.reward == 1.0 and t.failure is None for t in groups[number]), "a sound episode was hit"
    return [t for number in range(1, NUM_TASKS, 2) for t in groups[number]]


HARMLESS = {"is false, and says so by raising"}


@pytest.mark.parametrize("name", AGENTS)
def test_what_an_agent_does_fails_its_own_episode_and_no_other(name):
    found = play(agent_class=AGENTS[name])
    if name in HARMLESS:
        assert all(t.failure is None for t in found)
    else:
        assert all(t.failure is not None and t.failure.stage == "agent" and not t.scored for t in found)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_an_environment_does_fails_its_own_episode_and_no_other(name):
    stage = "reset" if name.startswith("reset") else "reward" if "part" in name else "step"
    stage = "agent" if "observation" in name else stage
    for trajectory in play(env_class=ENVIRONMENTS[name]):
        assert trajectory.failure is not None and trajectory.failure.stage == stage and not trajectory.scored


@pytest.mark.parametrize("name", REWARDS)
def test_what_a_reward_does_fails_its_own_episode_and_no_other(name):
    for trajectory in play(env_class=TaskEnvironment, reward_fn=REWARDS[name]):
        assert trajectory.failure is not None and not trajectory.scored
        assert trajectory.failure.stage in ("reward", "step")
        trajectory.failure.error.encode()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_tool_that_ends_the_process_ends_at_most_its_episode(error):
    class Caller(ModelAgent):
        def update_from_model(self, response, **kwargs):
            super().update_from_model(response)
            return Action((ToolCall("leave"),)) if len(self.messages) < 4 else Action("done")

    def leave() -> str:
        """Leave."""
        raise error

    config = RolloutConfig(max_turns=3, max_failed_groups=4)
    found = evaluate(
        ScriptedEngine("go"),
        [{"prompt": "a"}, {"prompt": "b"}],
        agent_class=Caller,
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": {"leave": leave}, "reward_fn": lambda task, answer: 1.0},
        config=config,
        progress=False,
    )
    told = isinstance(error, Exception | SystemExit) and not isinstance(error, asyncio.CancelledError)
    assert found.count == 2 and found.num_failed == (0 if told else 2)


def test_an_agent_whose_class_forgot_its_base_is_told_what_to_do():
    (first, *_) = play(agent_class=Forgetful)
    assert first.failure.error.endswith("Call super().__init__() in the __init__ of Forgetful.")


def test_the_rule_for_rewards_is_the_same_wherever_one_is_given():
    class Raw(Steps):
        def __init__(self, task, value):
            super().__init__(task)
            self.value = value

        def step(self, action):
            return EnvStepResult(None, self.value, True)

    class Own(BaseTaskEnv):
        def __init__(self, task, value):
            super().__init__(task)
            self.value = value

        def _initial_observation(self):
            return "go"

        def _step_impl(self, action):
            return EnvStepResult(None, self.value, True)

    good = [0, -3, 2.5, np.float32(0.5), np.int64(2), np.array(1.5), decimal.Decimal("0.25"), fractions.Fraction(1, 4)]
    bad = [True, np.bool_(False), np.array(True), None, "1", math.nan, math.inf, np.float32("inf"), 1j, 10**400, 1e16]
    for value in [*good, LARGEST_REWARD, -LARGEST_REWARD]:
        expected = as_reward(value).value
        assert type(expected) is float
        for found in (play(env_class=Raw, value=value), play(env_class=Own, value=value)):
            assert all(t.reward == expected for t in found)
    for value in [*bad, np.array([1.0]), object()]:
        with pytest.raises(RewardError):
            as_reward(value)
        for found in (play(env_class=Raw, value=value), play(env_class=Own, value=value)):
            assert all(t.failure.stage in ("step", "reward") and not t.scored for t in found)


@pytest.mark.parametrize("parts", [False, True])
def test_the_sum_of_an_episode_must_be_a_reward_too(parts):
    class Rich(Steps):
        def step(self, action):
            info = {"reward_parts": {"a": LARGEST_REWARD * 0.7}} if parts else {}
            return EnvStepResult("more", 0.0 if parts else LARGEST_REWARD * 0.7, False, info)

    for trajectory in play(env_class=Rich):
        assert trajectory.failure.stage == "reward" and "so far" in trajectory.failure.error
        assert trajectory.failure.turn == 1 and len(trajectory.turns) == 1


def test_a_part_of_a_step_of_an_unknown_kind_is_refused_and_one_of_any_name_is_not():
    with pytest.raises(ConfigError, match="'tool'"), part("tools", "search"):
        pass
    with part("tool", Nasty()):
        pass
