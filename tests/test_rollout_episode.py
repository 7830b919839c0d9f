"""One episode: tokens, deadlines, failures as data, and an environment closed exactly once."""

import asyncio
import math
import threading
import time

import anyio
import anyio.lowlevel
import pytest

from agentlab.agents import ModelAgent
from agentlab.errors import ConfigError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, run_episode
from agentlab.types import EnvStepResult


class Echo:
    """Two turns; 1.0 when the answer says yes. Counts how often it is closed."""

    closed = 0

    def __init__(self, task, *, turns: int = 2, fail_in: str = "", hang_in: str = "", released=None):
        self.task, self.turns, self.fail_in, self.hang_in, self.released = task, turns, fail_in, hang_in, released
        self.count = 0

    def _trouble(self, where):
        if self.fail_in == where:
            raise ValueError(f"broken in {where}")
        if self.hang_in == where:
            self.released.wait()

    def reset(self):
        self._trouble("reset")
        return self.task.prompt, {}

    def step(self, action):
        self._trouble("step")
        self.count += 1
        return EnvStepResult(f"turn {self.count}", float("yes" in action.value), self.count == self.turns)

    def close(self):
        type(self).closed += 1
        self._trouble("close")


@pytest.fixture(autouse=True)
def fresh_count():
    Echo.closed = 0


def play(script="yes", env=Echo, env_kwargs=None, engine=None, **config):
    return run_episode(
        engine or ScriptedEngine(script),
        {"prompt": "Say yes."},
        agent_class=ModelAgent,
        env_class=env,
        env_kwargs=env_kwargs,
        config=RolloutConfig(**config),
    )


def test_tokens_are_what_was_sampled_and_appended_and_every_turn_begins_with_the_one_before():
    engine = ScriptedEngine("yes")
    record = play(engine=engine)
    first, second = engine.requests
    answer = (*b"yes", engine.tokenizer.eos_token_id)
    assert second.prompt[: len(first.prompt) + len(answer)] == first.prompt + answer
    assert record.tokens == second.prompt + answer
    assert sum(record.loss_mask) == 2 * len(answer) == record.num_sampled
    assert [t for t, m in zip(record.tokens, record.loss_mask, strict=True) if m] == list(answer * 2)
    assert record.reward == 2.0 and record.failure is None and Echo.closed == 1


def test_an_async_environment_works_as_well():
    class AsyncEcho(Echo):
        async def reset(self):
            await anyio.lowlevel.checkpoint()
            return "hello", {}

        async def step(self, action):
            return Echo.step(self, action)

        async def close(self):
            Echo.close(self)

    assert play(env=AsyncEcho).reward == 2.0


def test_an_async_agent_works_as_well():
    class AsyncAgent(ModelAgent):
        async def update_from_model(self, response, **kwargs):
            await anyio.lowlevel.checkpoint()
            return super().update_from_model(response)

        async def update_from_env(self, *args):
            super().update_from_env(*args)

    record = run_episode(ScriptedEngine("yes"), {"prompt": "Say yes."}, agent_class=AsyncAgent, env_class=Echo)
    assert record.reward == 2.0 and [m["role"] for m in record.messages] == ["user", "assistant"] * 2 + ["user"]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_raises_makes_a_record_without_reward(where):
    record = play(env_kwargs={"fail_in": where})
    assert math.isnan(record.reward) and not record.scored
    assert record.failure.stage == where
    assert record.failure.error == f"ValueError: broken in {where}"
    assert "_trouble" in record.failure.traceback
    assert Echo.closed == 1


def test_a_close_that_raises_is_recorded_and_the_reward_stays():
    record = play(env_kwargs={"fail_in": "close"})
    assert record.reward == 2.0 and record.failure.stage == "close" and Echo.closed == 1


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_hanging_environment_is_cut_and_closed_by_its_own_worker_when_it_comes_back(where):
    released, closed = threading.Event(), threading.Event()

    class Hanging(Echo):
        def close(self):
            super().close()
            closed.set()

    began = time.monotonic()
    record = play(
        env=Hanging,
        env_kwargs={"hang_in": where, "released": released},
        reset_timeout_s=0.05,
        step_timeout_s=0.05,
    )
    assert time.monotonic() - began < 5
    assert record.failure.stage == where and "took longer than 0.05 s" in record.failure.error
    assert Hanging.closed == 0
    released.set()
    assert closed.wait(5) and Hanging.closed == 1


def test_the_whole_episode_has_a_deadline_and_then_no_reward():
    record = play(engine=ScriptedEngine("yes", latency_s=60), episode_timeout_s=0.05)
    assert record.failure.stage == "episode" and "it was in model" in record.failure.error
    assert record.truncation == "timeout" and math.isnan(record.reward) and Echo.closed == 1


def test_a_model_call_has_a_deadline():
    record = play(engine=ScriptedEngine("yes", latency_s=60), model_timeout_s=0.05)
    assert record.failure.stage == "model"


def test_a_full_context_is_a_clean_truncation():
    record = play(engine=ScriptedEngine("yes", max_context=60), env_kwargs={"turns": 50}, max_turns=50)
    assert record.truncation == "context" and record.failure is None and len(record.tokens) <= 60


def test_an_answer_cut_by_max_tokens_says_so_and_the_turn_is_closed_for_the_next():
    engine = ScriptedEngine("yes yes yes")
    record = play(engine=engine, max_tokens=4)
    assert record.truncation == "max_tokens"
    assert [turn.finish_reason for turn in record.turns] == ["length", "length"]
    text = engine.tokenizer.decode(list(record.tokens))
    assert "yes <|im_end|>\n<|im_start|>user\nturn 1" in text


def test_the_rollout_ends_an_episode_that_its_environment_does_not():
    record = play(env_kwargs={"turns": 50}, max_turns=3)
    assert record.truncation == "max_turns" and len(record.turns) == 3 and record.reward == 3.0


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, "1", [1]])
def test_a_reward_that_is_no_finite_number_is_a_failure_never_0(reward):
    class Odd(Echo):
        def step(self, action):
            return EnvStepResult("", reward, True)

    record = play(env=Odd)
    assert record.failure.stage == "reward" and math.isnan(record.reward)


CONTROL = [SystemExit(1), asyncio.CancelledError(), StopIteration(), KeyboardInterrupt(), GeneratorExit()]


@pytest.mark.parametrize(
    ("is_async", "raised"), [(False, raised) for raised in CONTROL] + [(True, raised) for raised in CONTROL[:3]]
)
def test_not_even_an_exit_raised_by_an_environment_ends_more_than_its_episode(is_async, raised):
    class Exiting(Echo):
        def step(self, action):
            raise raised

    class AsyncExiting(Echo):
        async def step(self, action):
            raise raised

    kind = AsyncExiting if is_async else Exiting
    record = play(env=kind)
    assert record.failure.stage == "step" and type(raised).__name__ in record.failure.error
    assert kind.closed == 1


@pytest.mark.parametrize("info", [None, {"reward_parts": None}, {"reward_parts": {"a": "b"}}, {"truncation": "bored"}])
def test_an_odd_info_is_this_episodes_failure(info):
    class Odd(Echo):
        def step(self, action):
            return EnvStepResult("", 1.0, True, info)

    record = play(env=Odd)
    assert record.failure.stage in ("step", "reward") and not record.scored


def test_a_step_that_returns_something_else_says_what_it_must_return():
    class Odd(Echo):
        def step(self, action):
            return ("obs", 1.0, True, False, {})

    assert "must return an EnvStepResult, got tuple" in play(env=Odd).failure.error


def test_keyword_arguments_are_checked_before_anything_runs():
    with pytest.raises(ConfigError, match=r"env_kwargs: Echo takes no argument 'turn'. Did you mean 'turns'\?"):
        play(env_kwargs={"turn": 3})


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no option 'max_concurency'. Did you mean 'max_concurrency'\?"):
        RolloutConfig(max_concurency=3)
