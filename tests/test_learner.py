"""The whole path on a tiny model: episodes on the JAX engine, updates on the learner thread, weights swapped in."""

import threading

import jax
import numpy as np
import pytest

import agentlab as al
from agentlab.errors import ConfigError, RunError
from agentlab.models.hub_config import FAMILIES

CALCULATOR = {"calculator": al.tools.Calculator}
SMALL = {"group_size": 4, "groups_per_step": 2, "max_concurrency": 8, "max_tokens": 6, "tokens_per_slot": 512}


@pytest.fixture(scope="module")
def model():
    return al.tiny_model(seed=1)


def length_reward(task, answer):
    """Rises with the answer's length, so that groups of a random model differ."""
    return min(len(answer), 12) / 12


def tool_learner(model, **config):
    return al.GRPOLearner(
        model=model,
        agent_class=al.ToolAgent,
        agent_kwargs={"system_prompt": "Add.", "tool_map": CALCULATOR, "tool_parser_name": "short"},
        env_class=al.ToolEnvironment,
        env_kwargs={"tool_map": CALCULATOR, "reward_fn": length_reward, "max_turns": 2},
        config=al.GRPOConfig(**(SMALL | config)),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_training_changes_the_weights_and_serves_them_and_leaves_no_thread(family):
    model = al.tiny_model(seed=1, model_type=family)
    before = [np.asarray(leaf).copy() for leaf in jax.tree.leaves(model.params)]
    learner = tool_learner(model, learning_rate=1e-2)
    run = learner.train(al.tasks.arithmetic(seed=0), steps=3).wait()
    assert run.status == "finished" and len(run.metrics) == 3
    assert run.snapshot().engine.policy_version == learner.policy.version == 3
    engine = run.snapshot().engine
    assert engine.num_compiled == engine.num_programs > 0 and engine.compilations == 0
    assert [row["compiled_late"] for row in run.metrics] == [0, 0, 0]
    assert any(row["grad_norm"] > 0 for row in run.metrics)
    after = jax.tree.leaves(learner.policy.params)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(before, jax.tree.leaves(model.params), strict=True))
    assert not [t for t in threading.enumerate() if t.name in ("agentlab-loop", "agentlab-engine", "agentlab-learner")]


def test_under_the_same_weights_sampler_and_trainer_agree(model):
    run = tool_learner(model, max_off_policy_steps=0).train(al.tasks.arithmetic(seed=0), steps=1).wait()
    assert run.metrics[0]["logprob_gap_max"] < 1e-3
    assert run.metrics[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-3)


def test_a_second_run_goes_on_from_the_first(model):
    learner = tool_learner(model)
    learner.train(al.tasks.arithmetic(seed=0), steps=1).wait()
    run = learner.train(al.tasks.arithmetic(seed=1), steps=2).wait()
    assert learner.policy.version == 3 and run.snapshot().counts.stale == 0
    assert max(row["staleness_max"] for row in run.metrics) <= 1


def test_the_same_seed_plays_the_same_episodes(model):
    first, second = (tool_learner(model, seed=3).evaluate(al.tasks.arithmetic(seed=5, count=4)) for _ in range(2))
    assert [t.tokens for t in first.trajectories] == [t.tokens for t in second.trajectories]


def test_a_frozen_lake_is_walked_and_trained_on(model):
    learner = al.GRPOLearner(
        model=model,
        agent_class=al.FrozenLakeAgent,
        env_class=al.FrozenLake,
        env_kwargs={"hint": "goal", "max_turns": 2},
        config=al.GRPOConfig(**(SMALL | {"tokens_per_slot": 1024})),
    )
    run = learner.train(al.tasks.frozen_lake(seed=0), steps=1).wait()
    assert len(run.metrics) == 1 and run.snapshot().failures == {}
    assert {len(t.turns) for t in run.trajectories} == {2}


def test_a_model_agent_answers_in_a_task_environment(model):
    learner = al.GRPOLearner(
        model=model,
        agent_class=al.ModelAgent,
        agent_kwargs={"system_prompt": "Be brief."},
        env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": length_reward},
        config=al.GRPOConfig(**SMALL),
    )
    trajectory = learner.run_episode({"question": "How are you?"})
    assert trajectory.failure is None and 0 <= trajectory.reward <= 1
    assert sum(trajectory.loss_mask) == trajectory.num_sampled > 0


def test_a_run_can_be_looked_at_when_it_has_ended(model, tmp_path):
    run = tool_learner(model).train(al.tasks.arithmetic(seed=0), steps=1).wait()
    stages = {span.stage for span in run.spans()}
    assert {"rollout", "model_call", "decode", "prefill", "step", "train", "queue"} <= stages
    assert run.save_trace(tmp_path / "run.pftrace").stat().st_size > 1000
    assert "device" in str(run.diagnose())
    assert "finished, step 1 of 1" in repr(run)
    assert run.timeline().get_xlabel()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rte": 1e-3}, "no option 'learning_rte'. Did you mean 'learning_rate'"),
        ({"max_tokens": 600}, "tokens_per_slot must be above max_tokens=600"),
        ({"top_k": 5}, "Training needs top_k=0"),
        ({"min_p": 0.1}, "Training needs min_p=0.0"),
        ({"stop": "</tool>"}, "stop must be a list or tuple of non-empty texts, got str"),
        ({"temperature": "1.0"}, "temperature must be a number, got str"),
        ({"lora_rank": 1.5}, "lora_rank must be a whole number, got float"),
        ({"max_tokens": True}, "max_tokens must be a whole number, got bool"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number or a function, got float: nan"),
        ({"tokens_per_slot": 10**6}, "tokens_per_slot must be at most"),
        ({"temperature": 0.0}, "Training needs a temperature above 0"),
    ],
)
def test_options_that_cannot_work_are_refused_at_construction(model, options, message):
    with pytest.raises(ConfigError, match=message):
        tool_learner(model, **options)


def test_a_wrong_model_agent_or_number_of_steps_is_refused_at_once(model):
    with pytest.raises(ConfigError, match=r"model must be a Model, got str.*al.load_model"):
        tool_learner("HuggingFaceTB/SmolLM2-135M-Instruct")
    with pytest.raises(ConfigError, match="steps must be at least 1, got 0"):
        tool_learner(model).train(al.tasks.arithmetic(), steps=0)
    with pytest.raises(ConfigError, match="steps must be a whole number, got float: nan"):
        tool_learner(model).train(al.tasks.arithmetic(), steps=float("nan"))
    for tasks, message in (([], "at least one task"), (None, "must be an iterable"), (["hi"], "Task 0 must be")):
        with pytest.raises(ConfigError, match=message):
            tool_learner(model).train(tasks, steps=1)
    with pytest.raises(ConfigError, match="agent_class must make a ConversationAgentBase, got dict"):
        al.GRPOLearner(model=model, agent_class=dict, env_class=al.FrozenLake)


def test_after_a_stop_in_the_middle_of_an_update_the_next_run_goes_on_from_the_last_weights(model):
    learner = tool_learner(model)
    run = learner.train(al.tasks.arithmetic(seed=0), steps=1000)
    while run.snapshot().step < 2:
        threading.Event().wait(0.01)
    run.stop()
    at_stop = learner.policy.version
    for _ in range(600):
        try:
            following = learner.train(al.tasks.arithmetic(seed=1), steps=2)
            break
        except RunError:  # the update that was under way
            threading.Event().wait(0.05)
    following.wait()
    assert learner.policy.version - 2 in (at_stop, at_stop + 1), "the update under way at the stop counts, or had ended"
    assert following.snapshot().counts.stale == 0
    assert following.metrics[0]["logprob_gap_max"] < 1e-3
