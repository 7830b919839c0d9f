"""FrozenLake as text."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.environments import FrozenLake
from agentlab.errors import ConfigError
from agentlab.tasks import frozen_lake
from agentlab.tasks.lake import lake_map, shortest_way
from agentlab.types import Action, Task

MAP = ("SFF", "FHF", "FFG")
MISSPELT: Any = "wey"
TASK = Task("t", "Cross it.", {"map": MAP})


def opened(**options):
    env = FrozenLake(TASK, **options)
    observation, _ = env.reset()
    return env, observation


def test_the_first_observation_is_the_prompt_and_the_map():
    _, observation = opened()
    assert observation == "Cross it.\nMap (A you, G goal, O hole, . ice):\nA . .\n. O .\n. . G"


def test_moves_reach_the_goal_and_earn_1():
    env, _ = opened()
    results = [env.step(Action(move)) for move in ("down", "DOWN", "right", " right ")]
    assert [(result.reward, result.done) for result in results] == [(0, False)] * 3 + [(1, True)]
    assert results[1].observation.endswith(". . .\n. O .\nA . G")
    assert results[-1].observation == "You reached the goal."
    env.close()


def test_a_hole_ends_the_walk_with_nothing():
    env, _ = opened()
    env.step(Action("right"))
    fallen = env.step(Action("down"))
    assert (fallen.observation, fallen.reward, fallen.done) == ("You fell into a hole.", 0, True)


def test_what_is_no_move_takes_a_turn_and_is_said():
    env, _ = opened(max_turns=2)
    refused = env.step(Action("I stay here"))
    assert refused.observation.startswith("'i stay here' is no move. Answer left, right, up or down.")
    assert refused.observation.endswith("A . .\n. O .\n. . G")
    assert env.step(Action("down")).info["truncation"] == "max_turns"


def test_a_hint_names_the_goal_and_a_good_move():
    assert opened(hint="goal")[1].endswith("The goal is 2 down and 2 right.")
    assert opened(hint="way")[1].endswith("The goal is 2 down and 2 right. A good move is down.")


@given(seed=st.integers(0, 500), size=st.integers(2, 6))
def test_following_the_hint_always_reaches_the_goal(seed, size):
    env = FrozenLake(seed, size, hint="way")
    observation, _ = env.reset()
    result = None
    while result is None or not result.done:
        move = re.search(r"A good move is (\w+)", observation if result is None else result.observation)
        assert move
        result = env.step(Action(move[1]))
    assert result.reward == 1
    assert env.turn == len(shortest_way(lake_map(seed, size), (0, 0)) or ())


def test_slipping_is_the_same_again_for_the_same_seed():
    task = next(iter(frozen_lake(seed=3)))

    def walk() -> list[object]:
        env = FrozenLake(task, is_slippery=True)
        env.reset()
        seen = []
        for _ in range(10):
            seen.append(env.step(Action("right")))
            if seen[-1].done:
                break
        return seen

    assert walk() == walk()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FrozenLake(TASK, hint=MISSPELT), "Did you mean 'way'"),
        (lambda: FrozenLake(Task("t", "")), r"data\['seed'\]"),
        (lambda: FrozenLake(Task("t", "", {"map": ["SF", "XG"]})), "rows of S, F, H and G"),
        (lambda: FrozenLake(Task("t", "", {"map": ["SFF", "FG"]})), "rows of S, F, H and G"),
        (lambda: FrozenLake(0, size=1), "size must lie in 2 to 32"),
    ],
)
def test_an_impossible_lake_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
