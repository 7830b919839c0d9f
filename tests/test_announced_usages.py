"""Usages as this field's announcements print them: each runs with its imports changed and its dots filled in."""

from typing import Any

import gymnasium as gym
import pytest

import agentlab as al
from agentlab import Action, BaseTaskEnv, ConversationAgentBase, EnvStepResult, GRPOLearner, ModelAgent, ToolAgent
from agentlab.errors import ConfigError
from agentlab.inference import ScriptedEngine
from agentlab.rollout import run_episode
from agentlab.tools import Calculator as CalculatorClass

SYSTEM_PROMPT = "Answer with a number."


class MyAgent(ConversationAgentBase):
    """An agent of one's own: the last word of a turn is its action."""

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        words = response.split()
        return Action(words[-1] if words else "")


class MyEnv(BaseTaskEnv):
    """An environment of one's own, over Gymnasium."""

    def _initial_observation(self) -> Any:
        self.env = gym.make("FrozenLake-v1", is_slippery=False)
        observation, _ = self.env.reset(seed=self.task.data.get("seed", 0))
        return observation

    def _step_impl(self, action: Any) -> EnvStepResult:
        move = {"left": 0, "down": 1, "right": 2, "up": 3}.get(action.value, 0)
        obs, reward, terminated, truncated, info = self.env.step(move)
        done = terminated or truncated
        return EnvStepResult(obs, reward, done, info)

    def close(self) -> None:
        self.env.close()


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """The dots: a model and options that are quick."""
    options = {"group_size": 2, "groups_per_step": 1, "max_concurrency": 2, "max_tokens": 3, "tokens_per_slot": 512}
    model = al.tiny_model(seed=1, num_layers=1, hidden_size=32, intermediate_size=32)
    return {"model": model, "config": al.GRPOConfig(**options)}


def test_a_learner_takes_the_class_of_an_agent_and_its_keyword_arguments(small):
    learner = GRPOLearner(
        agent_class=ModelAgent,
        agent_kwargs={"system_prompt": SYSTEM_PROMPT},
        env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": lambda task, answer: float(len(answer))},
        **small,
    )
    trajectory = learner.run_episode({"question": "1 + 1?"})
    assert trajectory.failure is None
    assert trajectory.messages[0]["content"] == SYSTEM_PROMPT


def test_a_learner_takes_an_agent_and_an_environment_of_ones_own(small):
    learner = GRPOLearner(agent_class=MyAgent, env_class=MyEnv, **small)
    run = learner.train([{"prompt": "", "seed": 3}], steps=1).wait()
    assert run.status == "finished" and run.snapshot().failures == {}
    assert run.trajectories[0].messages[0] == {"role": "user", "content": "0"}


def test_an_agent_and_an_environment_of_ones_own_play_as_they_say():
    moves = ["I go down", "down", "right", "right", "down", "right"]
    trajectory = run_episode(ScriptedEngine(moves), {"prompt": ""}, agent_class=MyAgent, env_class=MyEnv)
    assert trajectory.failure is None and trajectory.reward == 1.0
    assert [turn.action.value for turn in trajectory.turns] == ["down", "down", "right", "right", "down", "right"]
    assert [turn.observation for turn in trajectory.turns] == [4, 8, 9, 10, 14, 15]
    assert trajectory.turns[-1].info["prob"] == 1.0


def test_a_tool_agent_takes_a_syntax_and_classes_of_tools():
    tools = {"calculator": CalculatorClass}
    answers = ["```tool_code\nprint(calculator(expression='6 * 7'))\n```", "It is 42."]
    trajectory = run_episode(
        ScriptedEngine(answers),
        {"prompt": "What is 6 * 7?", "answer": 42},
        agent_class=ToolAgent,
        agent_kwargs={"system_prompt": SYSTEM_PROMPT, "tool_parser_name": "gemma", "tool_map": tools},
        env_class=al.ToolEnvironment,
        env_kwargs={"tool_map": tools, "reward_fn": al.rewards.same_number},
    )
    assert trajectory.reward == 1.0
    assert trajectory.turns[0].observation[0].text == "42"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"agent_class": ModelAgent, "agent_kwargs": {"system_promt": "S"}}, "Did you mean 'system_prompt'"),
        ({"agent_class": MyAgent, "agent_kwargs": {"tool_map": {}}}, "MyAgent takes no argument 'tool_map'"),
        ({"agent_class": ToolAgent, "agent_kwargs": {"tool_parser_name": "gema"}}, "Did you mean 'gemma'"),
        ({"agent_class": MyAgent, "env_kwargs": {"max_turn": 3}}, "Did you mean 'max_turns'"),
    ],
)
def test_keyword_arguments_are_checked_when_the_learner_is_made(small, options, says):
    with pytest.raises(ConfigError, match=says):
        GRPOLearner(env_class=MyEnv, **options, **small)
