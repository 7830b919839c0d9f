"""learner.check: two episodes before a run, shown with what they need and what looks wrong in them."""

import math
from typing import Any

import pytest

import agentlab as al
from agentlab.environments import BaseTaskEnv
from agentlab.errors import ConfigError
from agentlab.models.tree import flat_arrays
from agentlab.rewards import combine, in_format, same_number
from agentlab.types import EnvStepResult
from agentlab.viz.previews import memory_plan

CALCULATOR = {"calculator": al.tools.Calculator}
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>'
QUESTION = {"prompt": "What is 6 * 7? <b>", "answer": 42}
GROUPS = {"group_size": 2, "groups_per_step": 1, "max_concurrency": 2, "tokens_per_slot": 2048}


@pytest.fixture(scope="module")
def model():
    return al.tiny_model(seed=1, num_layers=1, hidden_size=32, intermediate_size=32)


def learner_of(model: Any, env_class: Any = al.ToolEnvironment, **config: Any) -> al.GRPOLearner:
    reward = combine({"number": (1.0, same_number), "form": (0.1, in_format("answer"))})
    tools = {"tool_map": CALCULATOR, "reward_fn": reward, "max_turns": 3}
    return al.GRPOLearner(
        model=model,
        agent_class=al.ToolAgent,
        agent_kwargs={"system_prompt": "Use it.", "tool_map": CALCULATOR},
        env_class=env_class,
        env_kwargs=tools if env_class is al.ToolEnvironment else {},
        config=al.GRPOConfig(**(GROUPS | config)),
    )


def asked_twice(*answers: str) -> list[str]:
    """Answers for two episodes that are played at once and take the same number of turns."""
    return [answer for answer in answers for _ in range(2)]


def test_two_episodes_are_shown_with_mask_calls_rewards_memory_and_times(model):
    def script(request: Any, prompt: str) -> str:
        if "<|im_start|>user\n42" not in prompt:
            return CALL
        return "<answer>42</answer>" if request.session.endswith("/0") else "I say 41"

    shown = learner_of(model).check([QUESTION], script=script)
    assert [round(t.reward, 6) for t in shown.trajectories] == [1.1, 0.0]
    assert shown.warnings == ()
    html, text = shown._repr_html_(), repr(shown)
    for part in ("Nothing looks wrong", "Reward and its parts", "number", "form", "keys and values of the engine"):
        assert part in html and part in text
    assert (
        "sampled by the policy: trained on" in html
        and "calculator({&quot;expression&quot;: &quot;6 * 7&quot;})" in html
    )
    assert "&lt;b&gt;" in html and "<b>?" not in html
    assert "not measured" in text


def test_with_the_model_itself_times_are_measured(model):
    shown = learner_of(model, max_tokens=4).check([QUESTION])
    assert len(shown.trajectories) == 2
    assert all(math.isfinite(seconds) and seconds >= 0 for seconds in shown.times_s.values())
    assert shown.times_s["reading prompts"] > 0 and shown.times_s["training"] > 0
    assert "not measured" not in repr(shown)


class Early(BaseTaskEnv):
    """Rewards the first turn and goes on."""

    def _initial_observation(self) -> Any:
        return "Go."

    def _step_impl(self, action: Any) -> EnvStepResult:
        return EnvStepResult("More.", float(self.turn == 0) * len(action.value), self.turn == 1)


class Chance(Early):
    """Begins anew each time."""

    count = 0

    def _initial_observation(self) -> Any:
        type(self).count += 1
        return f"Go {self.count}."


class Broken(Early):
    """Fails."""

    def _step_impl(self, action: Any) -> EnvStepResult:
        raise RuntimeError("it broke")


@pytest.mark.parametrize(
    ("options", "script", "says"),
    [
        ({}, "42", "nothing is learned from a group whose rewards are all equal"),
        ({"env_class": Early}, ["a", "ab", "x", "x"], "turn 1 earned 1 although the episode went on"),
        ({"env_class": Chance}, ["a", "ab", "x", "x"], "began with different prompts"),
        ({"env_class": Broken}, "a", "failed in step, turn 1: RuntimeError: it broke"),
        ({"max_tokens": 3}, "a long answer", "turn 1: the answer was cut by max_tokens=3"),
        ({"tokens_per_slot": 700, "max_tokens": 400}, "42", "the context is too short"),
        ({"tokens_per_slot": 300, "max_tokens": 20}, "42", "has an empty loss mask"),
        ({}, CALL, "ran out of turns after 3"),
        ({}, [CALL.replace("6 * 7", "six"), "1"], "tool calls failed"),
    ],
)
def test_each_thing_that_looks_wrong_is_said(model, options, script, says):
    answers = asked_twice(*script) if options.get("env_class") is None and isinstance(script, list) else script
    shown = learner_of(model, **options).check([QUESTION], script=answers)
    assert any(says in warning for warning in shown.warnings), shown.warnings
    assert says.split(":")[0] in repr(shown)


def test_the_memory_plan_counts_what_a_run_holds(model):
    config = learner_of(model, lora_rank=0).config
    plan = memory_plan(model, config)
    weights = sum(array.size for array in flat_arrays(model.params).values())
    assert plan["weights, the engine's and the new ones"] == 2 * 4 * weights
    assert plan["trained weights, their gradients and optimizer state"] == 16 * weights
    assert plan["keys and values of the engine"] == 2 * 2 * 16 * 4 * 2 * 2048
    adapters = memory_plan(model, learner_of(model, lora_rank=2).config)
    inputs_and_outputs = (32 + 64) + 2 * (32 + 32) + (64 + 32) + 3 * (32 + 32)
    assert adapters["trained weights, their gradients and optimizer state"] == 16 * 2 * inputs_and_outputs


def test_streams_of_any_kind_are_checked_and_empty_ones_refused(model):
    async def late() -> Any:
        yield QUESTION

    learner = learner_of(model)
    assert learner.check(late(), script="42").trajectories[0].task.prompt == QUESTION["prompt"]
    with pytest.raises(ConfigError, match="Task 0 must be"):
        learner.check(iter(()), script="42")
