"""Self-play: two agents at one game through the ordinary rollout, a trained record for each."""

from typing import Any

import pytest

import agentlab as al
from agentlab.agents import ModelAgent
from agentlab.environments import Move, Nim, SelfPlay, TwoPlayerGame
from agentlab.errors import ConfigError
from agentlab.inference import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, evaluate, run_episode

SEVEN = {"prompt": "Play Nim.", "stones": 7}


def groups_of(engine: Any, game: Any, tasks: Any, **config: Any) -> list[Any]:
    options = {"group_size": 4, "groups_per_step": 2} | config
    orchestrator = RolloutOrchestrator(
        engine, agent_class=ModelAgent, env_class=game, config=RolloutConfig(**options), min_scored=0
    )
    return list(orchestrator.iterate(tasks))


def perfect(request: Any, prompt: str) -> str:
    """Leaves a multiple of 4 where it can."""
    stones = int(prompt.rsplit("There are ", 1)[1].split()[0])
    return str(stones % 4 or 1)


def test_each_player_is_an_episode_of_its_own_with_its_own_reward():
    groups = groups_of(ScriptedEngine(perfect), SelfPlay(Nim), [SEVEN] * 3)
    for group in groups:
        assert [t.reward for t in group.trajectories] == [1.0, -1.0] * 2
        assert [t.turns[-1].info["player"] for t in group.trajectories] == [0, 1] * 2
        first, second = group.trajectories[:2]
        assert [turn.response for turn in first.turns] == ["3", "3"]
        assert [turn.response for turn in second.turns] == ["1"]
        assert "The other took 3. There are 4 stones." in second.messages[0]["content"]
        assert "The other took 1. There are 3 stones." in first.messages[2]["content"]
        assert all(sum(t.loss_mask) == t.num_sampled > 0 for t in group.trajectories)


@pytest.mark.parametrize("said", ["many", "2 or 1", "−1", "1.5", "2-1"])
def test_an_illegal_move_takes_one_stone_and_costs_a_tenth(said):
    (group,) = groups_of(ScriptedEngine(said), SelfPlay(Nim), [{"prompt": "", "stones": 2}], group_size=2)
    assert [round(t.reward, 6) for t in group.trajectories] == [-1.1, 0.9]


def test_a_player_without_a_partner_fails_and_says_how_to_get_one():
    room = SelfPlay(Nim, partner_timeout_s=0.05)
    alone = run_episode(ScriptedEngine("1"), SEVEN, agent_class=ModelAgent, env_class=room)
    assert "make group_size (k in evaluate) even" in alone.failure.error
    (group,) = groups_of(ScriptedEngine(perfect), room, [SEVEN], group_size=3)
    assert [t.scored for t in group.trajectories] == [True, True, False]


def test_when_one_leaves_the_other_has_no_reward_and_the_game_is_closed():
    closed = []

    class Closing(Nim):
        def close(self) -> None:
            closed.append(self.stones)

    class Leaver(ModelAgent):
        def update_from_env(self, observation, reward, done, info) -> None:
            super().update_from_env(observation, reward, done, info)
            if "The other took" in str(observation):
                raise RuntimeError("I leave")

    orchestrator = RolloutOrchestrator(
        ScriptedEngine("1"),
        agent_class=Leaver,
        env_class=SelfPlay(Closing),
        config=RolloutConfig(group_size=2, groups_per_step=1),
        min_scored=0,
    )
    (group,) = orchestrator.iterate([SEVEN])
    errors = [t.failure.error for t in group.trajectories]
    assert "The other player left" in errors[0] and "I leave" in errors[1]
    assert closed == [6]


def test_a_game_that_ends_before_a_players_first_turn_is_no_episode_for_that_player():
    class Sudden(TwoPlayerGame):
        """Ends with the first move."""

        def begin(self) -> Any:
            return "go", "go"

        def play(self, player: int, action: Any) -> Move:
            return Move(("won", "lost"), (1.0, -1.0), True)

    (group,) = groups_of(ScriptedEngine("x"), SelfPlay(Sudden), [SEVEN], group_size=2)
    first, second = group.trajectories
    assert first.reward == 1.0 and "before this player's first turn" in second.failure.error


def test_games_of_an_evaluation_and_of_another_rollout_are_kept_apart():
    room = SelfPlay(Nim)
    options = {"agent_class": ModelAgent, "env_class": room, "k": 2}
    found = [evaluate(ScriptedEngine(perfect), [SEVEN], **options) for _ in range(2)]
    assert [f.mean_reward for f in found] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SelfPlay(Nim, partner_timeout_s=0), "partner_timeout_s must be above 0"),
        (lambda: SelfPlay(Nim)(al.Task("t", ""), mots=3), "Did you mean 'most'"),
        (lambda: Nim(al.Task("t", "", {"stones": 0})), "at least 1 stone"),
    ],
)
def test_impossible_games_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


GYM = {"env_id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"], "max_turns": 2}


@pytest.mark.parametrize(
    ("env_class", "env_kwargs"),
    [(SelfPlay(Nim), {}), (al.environments.GymEnvironment, GYM)],
    ids=["self-play", "gym"],
)
def test_a_tiny_model_is_trained_for_a_few_updates(env_class, env_kwargs):
    learner = al.GRPOLearner(
        model=al.tiny_model(seed=1, num_layers=1, hidden_size=32, intermediate_size=32),
        agent_class=ModelAgent,
        env_class=env_class,
        env_kwargs=env_kwargs,
        config=al.GRPOConfig(
            group_size=4,
            groups_per_step=1,
            max_concurrency=4,
            max_tokens=3,
            tokens_per_slot=512,
            max_off_policy_steps=0,
        ),
    )
    tasks = [{"prompt": "Go.", "stones": 2, "seed": n} for n in range(2)]
    run = learner.train(tasks, steps=2).wait()
    assert len(run.metrics) == 2 and run.snapshot().failures == {}
    if not env_kwargs:
        assert all(row["grad_norm"] > 0 for row in run.metrics)
        assert run.metrics[0]["reward_mean"] == pytest.approx(-0.1)
