"""Gymnasium environments as text: what is told, how actions are read, seeds, limits, closing."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from agentlab.environments import GymEnvironment, check_environment
from agentlab.environments.gym import NotAnAction, plain, read_action, tell
from agentlab.errors import ConfigError, RewardError
from agentlab.types import Action, Task

LAKE = {"env_id": "FrozenLake-v1", "make_kwargs": {"is_slippery": False, "render_mode": "ansi"}}
MOVES = ["left", "down", "right", "up"]


def task(**data: Any) -> Task:
    return Task("t", "Cross the lake.", data)


class Walk(gymnasium.Env):
    """Counts up to 3; told as an array, steered by two numbers."""

    observation_space = spaces.Box(-9, 9, (2,))
    action_space = spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)
    closed = 0
    newest: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        Walk.newest = self
        self.at = self.np_random.integers(0, 3, 2).astype(np.float32)
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.at = self.at + action
        return self.at, np.float32(self.at.sum()), False, False, {"prob": 1.0}

    def close(self) -> None:
        type(self).closed += 1


def test_a_lake_is_drawn_steered_by_names_and_crossed():
    env = GymEnvironment(task(), actions=MOVES, **LAKE)
    first, _ = env.reset()
    assert first == "Cross the lake.\n[S]FFF\nFHFH\nFFFH\nHFFG"
    results = [env.step(Action(f"I go {move}.")) for move in ("Down", "down", "right", "right", "down", "right")]
    assert results[0].observation.splitlines()[-4:] == ["SFFF", "[F]HFH", "FFFH", "HFFG"]
    assert [(r.reward, r.done) for r in results] == [(0.0, False)] * 5 + [(1.0, True)]
    env.close()


def test_text_that_names_no_action_takes_a_turn_and_says_what_can_be_done():
    env = GymEnvironment(task(), actions=MOVES, max_turns=2, **LAKE)
    env.reset()
    result = env.step(Action("upwards"))
    assert result.observation == "'upwards' is no action. Answer left, down, right, up."
    assert (result.reward, result.done, result.info["invalid_action"]) == (0.0, False, True)
    assert env.step(Action("hm")).info["truncation"] == "max_turns"
    env.close()


def test_the_environments_own_limit_is_a_truncation():
    env = GymEnvironment(task(), "FrozenLake-v1", make_kwargs={"max_episode_steps": 1, "is_slippery": False})
    assert env.reset()[0] == "Cross the lake.\n0"
    result = env.step(Action("0"))
    assert result.done and result.info["truncation"] == "max_turns"
    env.close()


def test_an_array_is_told_in_numbers_and_steered_by_numbers():
    env = GymEnvironment(task(seed=5), Walk)
    first, _ = env.reset()
    begin = Walk.newest.at
    assert first == f"Cross the lake.\n[{begin[0]:.4g}, {begin[1]:.4g}]"
    result = env.step(Action("I choose [0.5, -0.25]"))
    assert result.observation == f"[{begin[0] + 0.5:.4g}, {begin[1] - 0.25:.4g}]"
    assert result.reward == pytest.approx(begin.sum() + 0.25) and isinstance(result.reward, float)
    assert "no action" in env.step(Action("[7, 7]")).observation
    before = Walk.closed
    env.close()
    assert Walk.closed == before + 1


def test_observation_and_action_may_be_read_by_functions_of_ones_own():
    def act(text: str) -> int:
        return {"north": 3, "south": 1}[text] if text in ("north", "south") else int(text)

    env = GymEnvironment(task(), observe=lambda observation, info: f"at {observation}", act=act, **LAKE)
    assert env.reset()[0] == "Cross the lake.\nat 0"
    assert env.step(Action("south")).observation == "at 4"
    assert "'west' is no action: invalid literal" in env.step(Action("west")).observation
    assert env.step(Action(2)).done
    env.close()


def test_a_task_begins_alike_each_time_and_other_tasks_do_not():
    def begun(**data: Any) -> str:
        return GymEnvironment(Task(data.pop("id", "t"), "", data), Walk).reset()[0]

    assert begun(seed=1) == begun(seed=1) == begun(seed=1, id="u")
    assert begun(id="a") == begun(id="a")
    assert len({begun(id=str(number)) for number in range(20)}) > 3


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (np.int64(3), "3"),
        (0.123456, "0.1235"),
        ("hi", "hi"),
        (np.asarray(2.5), "2.5"),
        (np.arange(4).reshape(2, 2), "[0, 1, 2, 3]"),
        ({"a": 1, "b": (2, np.asarray([0.5]))}, "a: 1\nb: 2, [0.5]"),
        (np.zeros(100), f"[{', '.join(['0'] * 64)}, … (shape (100,))]"),
    ],
)
def test_what_is_observed_is_told(observation, text):
    assert tell(observation) == text


@pytest.mark.parametrize(
    ("space", "text", "action"),
    [
        (spaces.Discrete(3), "not 0 but 2", 2),
        (spaces.Discrete(3, start=-1), "-1", -1),
        (spaces.MultiDiscrete([3, 4]), "[1, 3]", [1, 3]),
        (spaces.MultiBinary(2), "0 1", [0, 1]),
        (spaces.Discrete(3, start=-1), "I take −1.", -1),
        (spaces.Discrete(2000), "1,234", 1234),
        (spaces.MultiDiscrete([3, 4]), "1,3", [1, 3]),
        (spaces.MultiDiscrete([300, 300]), "[1,234]", [1, 234]),
        (spaces.MultiDiscrete([3, 4]), "In 2 words: 1 and 3", [1, 3]),
        (spaces.Box(-1, 1, (2,), np.float64), "push (1/2, −0.5)", [0.5, -0.5]),
        (spaces.Box(-1, 1, (2,), np.float64), ".5 and -5e-1", [0.5, -0.5]),
        (spaces.MultiDiscrete([3, 4]), "I take [a step]: 1 3", [1, 3]),
        (spaces.Box(-9, 9, (2, 2), np.float64), "[[1, 2], [3, -4]]", [[1, 2], [3, -4]]),
        (spaces.Text(5), "abc", "abc"),
    ],
)
def test_an_action_is_read_out_of_text(space, text, action):
    assert np.array_equal(read_action(text, space), action)


@pytest.mark.parametrize("text", ["[0, 1, 2]", "[0, 1.7]", "0-1", "[0, −1]", "[1]", "0 1/2", "[0, 1e999]", "0, x1"])
def test_a_list_that_is_not_quite_an_action_is_refused(text):
    with pytest.raises(NotAnAction, match=r"Answer with 2 numbers .* \[0, 0\]"):
        read_action(text, spaces.MultiDiscrete([3, 4]))
    with pytest.raises(NotAnAction):
        read_action("[256, 1]", spaces.MultiBinary(2))


@pytest.mark.parametrize(
    "text", ["", "3", "-1", "−1", "1.5", "1e0", "one", "9" * 5000, "2-1", "3/1", "x1", "10^1", "1:1", "2x"]
)
def test_what_is_no_action_is_refused(text):
    with pytest.raises(NotAnAction, match="Answer a number from 0 to 2"):
        read_action(text, spaces.Discrete(3))


def test_reasoning_names_no_action():
    assert read_action("<think>2, or [0, 1]?</think>\n[1, 0]", spaces.MultiBinary(2)).tolist() == [1, 0]
    assert read_action("<think>left?</think>right", spaces.Discrete(2), ("left", "right")) == 1
    for space in (spaces.MultiBinary(2), spaces.Discrete(3)):
        with pytest.raises(NotAnAction):
            read_action("<think>[1, 0], so 1", space)


def test_colours_become_brackets_or_go():
    assert plain("\x1b[41mS\x1b[0mF \x1b[34;1mG\x1b[0m\n") == "[S]F G"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"env_id": "FrozenLak-v1"}, "cannot make 'FrozenLak-v1'"),
        ({"env_id": "FrozenLake-v1", "actions": ["left"]}, "one name for each of 4"),
        ({"env_id": Walk, "actions": ["left"]}, "one name for each of 0"),
    ],
)
def test_what_cannot_be_made_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        GymEnvironment(task(), **options)


def test_actions_that_cannot_be_text_need_a_function():
    class Composed(Walk):
        action_space = spaces.Dict({"a": spaces.Discrete(2)})

    env = GymEnvironment(task(), Composed)
    env.reset()
    with pytest.raises(ConfigError, match="Give act="):
        env.step(Action("1"))


def test_a_reward_that_is_no_number_is_an_error():
    class Broken(FrozenLakeEnv):
        def step(self, action: int) -> Any:
            return (*super().step(action)[:1], float("nan"), False, False, {})

    env = GymEnvironment(task(), Broken)
    env.reset()
    with pytest.raises(RewardError, match="must be finite"):
        env.step(Action("0"))


def test_the_checker_finds_nothing_wrong():
    assert check_environment(GymEnvironment, task(), actions=["down", "x", "right"], env_kwargs={**LAKE}) == ()
