"""Both front doors on a tiny model: teaching by example, and going on from a checkpoint in a fresh learner."""

import math

import jax
import numpy as np
import pytest

import agentlab as al
from agentlab.errors import ConfigError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout.episode import stable_seed

SMALL = {"group_size": 4, "groups_per_step": 2, "max_concurrency": 8, "max_tokens": 6, "tokens_per_slot": 512}
TEACH = {"lora_rank": 0, "learning_rate": 1e-2, "conversations_per_step": 4}


@pytest.fixture(scope="module")
def model():
    return al.tiny_model(seed=1)


def paid_by_text(task, answer):
    """Differs between answers and tasks, so that every group teaches something."""
    return stable_seed(task.id, answer) / 2**31


def scripted(model):
    """An engine whose answers depend on the request alone."""

    def answer(request, prompt):
        return f"{request.sampling.seed % 97}"

    return ScriptedEngine(answer, tokenizer=model.tokenizer)


def learner(model, engine=None, system_prompt="", **config):
    return al.GRPOLearner(
        model=model,
        agent_class=al.ModelAgent,
        agent_kwargs={"system_prompt": system_prompt},
        env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": paid_by_text},
        config=al.GRPOConfig(**(SMALL | {"max_off_policy_steps": 0, "learning_rate": 1e-2} | config)),
        engine=engine,
    )


def groups_by_update(run):
    """The groups of each update, from the spans of the learner thread."""
    spans = sorted((span for span in run.spans() if span.stage == "train"), key=lambda span: span.start_ns)
    return [list(span.tags["groups"]) for span in spans]


def params_of(one):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(one.policy.params)]


def test_with_a_scripted_engine_a_resumed_run_has_the_unbroken_ones_losses_bit_for_bit(model, tmp_path):
    tasks = al.tasks.arithmetic(seed=0)
    whole = learner(model, scripted)
    unbroken = whole.train(tasks, steps=4).wait()
    learner(model, scripted).train(tasks, steps=2, checkpoint_dir=tmp_path).wait()
    fresh = learner(model, scripted)
    resumed = fresh.train(tasks, steps=4, checkpoint_dir=tmp_path, resume=True).wait()
    for name in ("loss", "grad_norm", "reward_mean", "entropy", "learning_rate"):
        assert [row[name] for row in resumed.metrics] == [row[name] for row in unbroken.metrics]
    assert groups_by_update(resumed) == groups_by_update(unbroken)[2:]
    for ours, theirs in zip(params_of(fresh), params_of(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_with_the_jax_engine_the_same_tasks_arrive_in_the_same_updates(model, tmp_path):
    tasks = al.tasks.arithmetic(seed=0)
    unbroken = learner(model).train(tasks, steps=3).wait()
    learner(model).train(tasks, steps=1, checkpoint_dir=tmp_path).wait()
    resumed = learner(model).train(tasks, steps=3, checkpoint_dir=tmp_path, resume=True).wait()
    assert groups_by_update(resumed) == groups_by_update(unbroken)[1:]
    assert [row["step"] for row in resumed.metrics] == [1, 2, 3]
    assert resumed.snapshot().engine.policy_version == 3
    assert max(row["logprob_gap_max"] for row in resumed.metrics) < 1e-3


def test_another_configuration_agent_or_model_is_refused_with_the_differences(model, tmp_path):
    tasks = al.tasks.arithmetic(seed=0)
    learner(model, scripted).train(tasks, steps=1, checkpoint_dir=tmp_path).wait()
    again = {"steps": 2, "checkpoint_dir": tmp_path, "resume": True}
    with pytest.raises(ConfigError, match=r"config\.learning_rate: 0\.01 there, 0\.5 here"):
        learner(model, scripted, learning_rate=0.5).train(tasks, **again)
    with pytest.raises(ConfigError, match=r"model\.weights: '\w+' there, '\w+' here"):
        learner(al.tiny_model(seed=2), scripted).train(tasks, **again)
    with pytest.raises(ConfigError, match=r"roles\.agent_kwargs\.system_prompt: '' there, 'Be brief\.' here"):
        learner(model, scripted, system_prompt="Be brief.").train(tasks, **again)
    with pytest.raises(ConfigError, match="must hold no checkpoints of another run"):
        learner(model, scripted).train(tasks, steps=2, checkpoint_dir=tmp_path)
    assert learner(model, scripted, max_concurrency=3).train(tasks, **again).wait().status == "finished"


def test_examples_are_learned_and_the_taught_model_is_given_back(model, tmp_path):
    said = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "abab"}]
    trainer = al.SFTTrainer(model=model, config=al.SFTConfig(**TEACH))
    run = trainer.train([said], steps=12, checkpoint_dir=tmp_path).wait()
    losses = [row["loss"] for row in run.metrics]
    assert losses[0] == pytest.approx(math.log(model.config.vocab_size), rel=0.2) and losses[-1] < 0.3
    assert run.status == "finished" and "loss" in repr(run)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 12
    answer = learner(trainer.trained_model, temperature=0.1).run_episode({"id": "x", "prompt": "Say it."})
    assert answer.turns[0].response == "abab"
    assert trainer.trained_model.params is not model.params


def test_teaching_by_example_can_be_resumed_and_is_the_same(model, tmp_path):
    shown = [
        [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "ab" * (n % 3 + 1)}] for n in range(7)
    ]
    whole, first, fresh = (al.SFTTrainer(model=model, config=al.SFTConfig(**TEACH)) for _ in range(3))
    unbroken = whole.train(shown, steps=6).wait()
    first.train(shown, steps=3, checkpoint_dir=tmp_path).wait()
    resumed = fresh.train(shown, steps=6, checkpoint_dir=tmp_path, resume=True).wait()
    assert [row["loss"] for row in resumed.metrics] == [row["loss"] for row in unbroken.metrics]


def test_every_metric_that_a_run_emits_is_in_the_glossary_and_the_other_way_round(model):
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ab"}]
    played = learner(model, scripted).train(al.tasks.arithmetic(seed=0), steps=1).wait().metrics[0]
    shown = al.SFTTrainer(model=model, config=al.SFTConfig(**TEACH)).train([said], steps=1).wait().metrics[0]
    assert set(played) == set(al.glossary.METRICS) - {"reward/<part>"}
    assert set(shown) < set(played) and {"loss", "tokens_per_s", "step"} <= set(shown)
    assert not {"reward_mean", "ratio_mean", "staleness_max", "kl"} & set(shown)
    assert all(f"| `{name}` | " in al.glossary.table() for name in al.glossary.METRICS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.1}, "beta means nothing to SFTTrainer"),
        ({"conversations_per_step": 0}, "conversations_per_step must be at least 1"),
        ({"max_conversation_tokens": -1}, "max_conversation_tokens must be 0"),
        ({"group_size": 4}, "SFTConfig has no option 'group_size'"),
    ],
)
def test_options_that_mean_nothing_to_examples_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        al.SFTConfig(**options)


def test_the_plan_of_a_learner_is_there_before_anything_is_allocated(model):
    assert str(learner(model).plan).startswith("Plan: colocated on ")
