"""The base of environments: what it checks for all of them."""

import asyncio
import math
import threading
from typing import Any

import gymnasium
import pytest

from agentlab.environments import BaseTaskEnv, FrozenLake, Latency
from agentlab.errors import ConfigError, EnvironmentError_, RewardError
from agentlab.rewards import Reward
from agentlab.types import Action, EnvStepResult, Task, check_kwargs

TASK = Task("t", "Go.")
NOTHING: Any = None


class Countdown(BaseTaskEnv):
    """Is done after three steps."""

    def __init__(self, task: Task, *, reward: Any = 0.5, max_turns: int | None = None):
        super().__init__(task, max_turns=max_turns)
        self.reward = reward

    def _initial_observation(self):
        return self.task.prompt

    def _step_impl(self, action):
        return EnvStepResult(f"{action.value} {self.turn}", self.reward, self.turn == 2)


class AsyncCountdown(Countdown):
    """The same, async."""

    async def _initial_observation(self):
        await asyncio.sleep(0)
        return self.task.prompt

    async def _step_impl(self, action):
        await asyncio.sleep(0)
        return EnvStepResult(f"{action.value} {self.turn}", self.reward, self.turn == 2)


class MyEnv(BaseTaskEnv):
    """The usage of this field's announcements: a Gymnasium environment inside."""

    def _initial_observation(self):
        self.env = gymnasium.make("FrozenLake-v1", is_slippery=False)
        observation, _ = self.env.reset(seed=self.task.data["seed"])
        return str(observation)

    def _step_impl(self, action):
        obs, reward, terminated, truncated, info = self.env.step(int(action.value))
        return EnvStepResult(str(obs), reward, terminated or truncated, info)

    def close(self):
        self.env.close()


def test_a_gymnasium_environment_inside_ones_own_runs():
    env = MyEnv(task=Task("t", "", {"seed": 0}))
    assert env.reset() == ("0", {})
    results = [env.step(Action(move)) for move in "112212"]
    assert [result.observation for result in results] == ["4", "8", "9", "10", "14", "15"]
    assert [result.reward for result in results] == [0, 0, 0, 0, 0, 1]
    assert results[-1].done
    env.close()


def test_an_episode_ends_when_the_environment_says_so():
    env = Countdown(TASK)
    assert env.reset() == ("Go.", {})
    assert [env.step(Action("x")).done for _ in range(3)] == [False, False, True]
    with pytest.raises(EnvironmentError_, match="is over"):
        env.step(Action("x"))


def test_an_episode_can_be_played_again_after_reset():
    env = Countdown(TASK)
    for _ in range(2):
        env.reset()
        assert [env.step(Action("x")).observation for _ in range(3)] == ["x 0", "x 1", "x 2"]


def test_max_turns_cuts_the_episode_and_says_so():
    env = Countdown(TASK, max_turns=2)
    env.reset()
    first, second = env.step(Action("x")), env.step(Action("x"))
    assert (first.done, dict(first.info)) == (False, {})
    assert (second.done, second.info["truncation"]) == (True, "max_turns")


def test_an_episode_that_ends_by_itself_on_the_last_turn_is_not_cut():
    env = Countdown(TASK, max_turns=3)
    env.reset()
    last = [env.step(Action("x")) for _ in range(3)][-1]
    assert (last.done, dict(last.info)) == (True, {})


def test_async_environments_answer_with_awaitables():
    async def play() -> list[EnvStepResult]:
        env = AsyncCountdown(TASK, max_turns=2)
        assert await env.reset() == ("Go.", {})
        return [await env.step(Action("x")) for _ in range(2)]

    first, second = asyncio.run(play())
    assert first == EnvStepResult("x 0", 0.5, False, {})
    assert second == EnvStepResult("x 1", 0.5, True, {"truncation": "max_turns"})


def test_the_first_observation_may_come_with_info_as_from_gymnasium():
    class Informed(Countdown):
        def _initial_observation(self):
            return "here", {"prob": 1}

    assert Informed(TASK).reset() == ("here", {"prob": 1})


def test_a_step_before_reset_is_refused():
    with pytest.raises(EnvironmentError_, match="must be reset"):
        Countdown(TASK).step(Action("x"))


@pytest.mark.parametrize("reward", [None, math.nan, "1", True])
def test_a_reward_that_is_no_number_is_an_error(reward):
    env = Countdown(TASK, reward=reward)
    env.reset()
    with pytest.raises(RewardError, match=r"Countdown\.step"):
        env.step(Action("x"))


def test_the_parts_of_a_reward_go_into_info():
    env = Countdown(TASK, reward=Reward(1.5, {"answer": 1.0, "format": 0.5}))
    env.reset()
    result = env.step(Action("x"))
    assert (result.reward, result.info) == (1.5, {"reward_parts": {"answer": 1.0, "format": 0.5}})


class Wrong(Countdown):
    def _step_impl(self, action):
        return action.value


@pytest.mark.parametrize("answer", [None, ("obs", 1.0, True, {}), EnvStepResult("o", 0.0, True, NOTHING)])
def test_a_step_that_answers_with_something_else_is_an_error(answer):
    env = Wrong(TASK)
    env.reset()
    with pytest.raises(EnvironmentError_, match=r"EnvStepResult\(observation, reward, done, info\)|dictionary"):
        env.step(Action(answer))


@pytest.mark.parametrize("max_turns", [0, -1, 1.5, True])
def test_impossible_max_turns_are_refused(max_turns):
    with pytest.raises(ConfigError, match="max_turns must be a whole number"):
        Countdown(TASK, max_turns=max_turns)


def test_a_delayed_environment_behaves_as_the_one_inside_and_takes_real_time():
    make = Latency(Countdown, 0.02)
    env = make(TASK, max_turns=2)
    assert env.reset() == ("Go.", {})
    results, elapsed_s = timed(lambda: [env.step(Action("x")) for _ in range(2)])
    plain = Countdown(TASK, max_turns=2)
    plain.reset()
    assert results == [plain.step(Action("x")) for _ in range(2)]
    assert elapsed_s >= 0.04
    assert env.close() is None


def test_a_delayed_async_environment_stays_async():
    async def play() -> EnvStepResult:
        env = Latency(AsyncCountdown, 0.01)(TASK)
        await env.reset()
        return await env.step(Action("x"))

    result, elapsed_s = timed(lambda: asyncio.run(play()))
    assert result.observation == "x 0"
    assert elapsed_s >= 0.01


def timed(call):
    import time

    start = time.perf_counter()
    return call(), time.perf_counter() - start


def test_keyword_arguments_are_checked_through_the_latency_wrapper():
    with pytest.raises(ConfigError, match="Did you mean 'max_turns'"):
        check_kwargs(Latency(FrozenLake, 0.0), {"max_turn": 3}, given_as="env_kwargs", reserved=1)


def test_environments_share_nothing_with_each_other():
    envs = [Countdown(TASK) for _ in range(4)]
    seen: list[Any] = []

    def play(env: Countdown) -> None:
        env.reset()
        seen.append([env.step(Action("x")).observation for _ in range(3)])

    threads = [threading.Thread(target=play, args=(env,)) for env in envs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["x 0", "x 1", "x 2"]] * 4
