"""Adapters in and out of training: what a run saves at any moment, and training that goes on from loaded ones."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import optax
import pytest
from adapter_cases import (
    FIXTURES,
    array_of,
    largest_difference,
    learner,
    logits_of,
    paid_by_text,
    stored_model,
    trained,
)
from safetensors.numpy import load_file

import agentlab as al
from agentlab.errors import ConfigError
from agentlab.models import add_lora, merged
from agentlab.models.hub_config import FAMILIES
from agentlab.training import TrainConfig, Trainer
from agentlab.training.quantized import on_grid
from agentlab.viz.previews import memory_plan

SAID = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "abab"}]
TEACH = {"lora_rank": 4, "learning_rate": 0.1, "conversations_per_step": 2, "optimizer": optax.sgd}


@pytest.fixture(scope="module")
def model():
    return al.tiny_model(seed=1)


@pytest.fixture(scope="module")
def half(model, tmp_path_factory):
    """`model` with adapters of two updates."""
    _, run = taught(model, 2)
    return al.load_adapters(model, al.save_adapters(run, tmp_path_factory.mktemp("half") / "saved"))


def taught(model, steps, **config):
    """(the trainer, its run)"""
    trainer = al.SFTTrainer(model=model, config=al.SFTConfig(**TEACH | config))
    return trainer, trainer.train([SAID], steps=steps).wait()


def of_family(model_type):
    windows = {} if model_type == "llama" else {"windows": (5, None)}
    local = {"local_rope_theta": 100.0} if model_type == "gemma3_text" else {}
    return al.tiny_model(model_type=model_type, tied_embeddings=model_type != "qwen3", **windows, **local)


# -- out ------------------------------------------------------------------------------------------


def test_the_adapters_of_a_run_on_its_model_are_the_policy_that_it_published(model, tmp_path):
    made, run = trained(model, lora_alpha=6.0)
    saved = al.save_adapters(run, tmp_path / "run")
    again = al.load_adapters(model, saved)
    assert again.config.lora.rank == 4 and again.config.lora.alpha == 6.0
    assert largest_difference(model, made.policy.params) > 1e-4
    assert largest_difference(merged(again), made.policy.params) < 1e-6
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == model.name
    of_learner = al.save_adapters(made, tmp_path / "learner") / "adapter_model.safetensors"
    assert of_learner.read_bytes() == (saved / "adapter_model.safetensors").read_bytes()


def test_a_run_that_goes_on_gives_the_adapters_of_its_newest_policy(model, tmp_path):
    after, once = {}, threading.Lock()

    def reward(task, answer):
        run = al.current_run()
        steps = len(run.metrics)
        with once:  # of the workers that play at the same time
            if steps and steps not in after:
                after[steps] = al.save_adapters(run, tmp_path / f"after {steps}")
        return paid_by_text(task, answer)

    learner(model, reward_fn=reward).train(al.tasks.arithmetic(seed=0), steps=3).wait()
    assert set(after) == {1, 2}
    for steps, folder in after.items():
        shorter, _ = trained(model, steps=steps)
        wanted = load_file(al.save_adapters(shorter, tmp_path / f"run of {steps}") / "adapter_model.safetensors")
        got = load_file(folder / "adapter_model.safetensors")
        assert wanted.keys() == got.keys()
        for key in wanted:
            np.testing.assert_array_equal(got[key], wanted[key])


def test_a_policy_carries_its_adapters_without_a_copy(model):
    trainer = Trainer(model, TrainConfig(lora_rank=4))
    trainer.update([])
    for name, array in trainer.state()["trained"].items():
        assert trainer.policy.adapters.stacked[name] is array


def test_adapters_that_are_frozen_are_saved_with_the_others(model, tmp_path):
    made, run = trained(model, frozen=lambda name: ".mlp." in name or ".0." in name)
    again = al.load_adapters(model, al.save_adapters(run, tmp_path / "saved"))
    assert largest_difference(merged(again), made.policy.params) < 1e-6
    assert not array_of(again, 1, "up_proj", "lora_b").any() and not array_of(again, 0, "q_proj", "lora_b").any()
    assert array_of(again, 1, "q_proj", "lora_b").any()


def test_adapters_that_were_trained_on_a_quantised_base_belong_to_that(model, tmp_path):
    pytest.importorskip("qwix")
    made, run = trained(model, base_type="int8")
    saved = al.save_adapters(run, tmp_path / "saved")
    assert largest_difference(merged(al.load_adapters(on_grid(model, "int8"), saved)), made.policy.params) < 1e-6
    assert largest_difference(merged(al.load_adapters(model, saved)), made.policy.params) > 1e-5


def test_a_run_without_adapters_says_where_its_weights_are(model, tmp_path):
    _, run = trained(model, lora_rank=0, learning_rate=1e-3)
    with pytest.raises(ConfigError, match=r"has no adapters to save.*save_model\(learner\.trained_model"):
        al.save_adapters(run, tmp_path / "saved")
    with pytest.raises(ConfigError, match="after its first update"):
        al.save_adapters(learner(model), tmp_path / "saved")


def test_adapters_on_weights_that_had_been_trained_need_the_name_of_those(model, tmp_path):
    taught_first, _ = taught(model, 1, lora_rank=0)
    made, run = trained(taught_first.trained_model)
    with pytest.raises(ConfigError, match="base must name the model that the adapters belong to"):
        al.save_adapters(run, tmp_path / "adapters")
    base = al.save_model(taught_first.trained_model, tmp_path / "base")
    saved = al.save_adapters(run, tmp_path / "adapters", base=base)
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    again = al.load_adapters(al.load_model(base), saved)
    assert largest_difference(merged(again), made.policy.params) < 1e-6


# -- in, and on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", FAMILIES)
def test_training_goes_on_from_loaded_adapters_as_if_it_had_never_stopped(model_type, tmp_path):
    model = of_family(model_type)
    unbroken, _ = taught(model, 4)
    first, run = taught(model, 2)
    loaded = al.load_adapters(model, al.save_adapters(run, tmp_path / "half"))
    tokens = np.arange(3, 43).reshape(2, 20)
    wanted = logits_of(first.trained_model, tokens)
    assert np.abs(logits_of(loaded, tokens) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    resumed, run = taught(loaded, 2)
    assert largest_difference(model, unbroken.policy.params) > 1e-3
    assert largest_difference(resumed.trained_model, unbroken.policy.params) < 1e-6
    again = al.load_adapters(model, al.save_adapters(run, tmp_path / "whole"))
    assert largest_difference(merged(again), unbroken.policy.params) < 1e-6


@pytest.mark.parametrize("name", ["gemma2_caps_one_kv_head", "llama3_rope", "llama_linear_rope_tied"])
def test_the_engine_samples_from_the_adapters_of_peft_and_the_trainer_agrees(name, tmp_path):
    base = stored_model(name, tmp_path / "model")
    tokenizer = al.tiny_model().tokenizer
    wide = al.tiny_model(**{**vars(base.config), "vocab_size": len(tokenizer), "max_position": 512, "lora": None})
    adapted = al.load_adapters(wide, FIXTURES / "adapters" / name)
    made = learner(adapted, "jax", lora_rank=adapted.config.lora.rank)
    assert largest_difference(made.trained_model, merged(adapted).params) == 0
    run = made.train(al.tasks.arithmetic(seed=0), steps=3).wait()
    assert max(row["logprob_gap_max"] for row in run.metrics) < 1e-3
    assert largest_difference(merged(adapted), made.policy.params) > 1e-4
    again = al.load_adapters(wide, al.save_adapters(run, tmp_path / "saved"))
    assert again.config == adapted.config
    assert largest_difference(merged(again), made.policy.params) < 1e-6


def test_zeros_that_fill_up_a_rank_stay_zeros(tmp_path):
    name = "llama3_rope"
    base = stored_model(name, tmp_path / "model")
    wide = al.tiny_model(**{**vars(base.config), "vocab_size": 259, "max_position": 512, "lora": None})
    _, run = taught(al.load_adapters(wide, FIXTURES / "adapters" / name), 2, lora_rank=5, optimizer=None)
    for key, array in load_file(al.save_adapters(run, tmp_path / "saved") / "adapter_model.safetensors").items():
        rank = 5 if "down_proj" in key else 3 if "layers.1.self_attn.q_proj" in key else 2
        surplus, own = (array[rank:], array[:rank]) if "lora_A" in key else (array[:, rank:], array[:, :rank])
        assert not surplus.any() and own.any()


def test_loaded_adapters_that_are_frozen_stay_in_what_is_published(model, half, tmp_path):
    made, run = trained(half, frozen=lambda name: ".mlp." in name)
    again = al.load_adapters(model, al.save_adapters(run, tmp_path / "whole"))
    assert largest_difference(merged(again), made.policy.params) < 1e-6
    up, before = (array_of(one, 0, "up_proj", "lora_b") for one in (again, half))
    np.testing.assert_array_equal(up, before)
    assert up.any()


def test_a_run_from_loaded_adapters_is_resumed_from_its_checkpoint(model, half, tmp_path):
    whole, _ = trained(half, steps=3)
    trained(half, steps=2, tmp_path=tmp_path / "checkpoints")
    fresh = learner(half)
    tasks = al.tasks.arithmetic(seed=0)
    resumed = fresh.train(tasks, steps=3, checkpoint_dir=tmp_path / "checkpoints", resume=True).wait()
    assert largest_difference(whole.trained_model, fresh.policy.params) == 0
    with pytest.raises(ConfigError, match=r"model\.shape\.lora"):
        learner(model).train(tasks, steps=3, checkpoint_dir=tmp_path / "checkpoints", resume=True)
    nothing_left = learner(half).train(tasks, steps=3, checkpoint_dir=tmp_path / "checkpoints", resume=True).wait()
    saved = [al.save_adapters(run, tmp_path / str(place)) for place, run in enumerate((resumed, nothing_left))]
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in saved)
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])


def test_the_reference_is_the_model_with_the_loaded_adapters(half):
    _, run = trained(half, steps=2, engine="jax", beta=0.1)
    assert run.metrics[0]["kl"] == pytest.approx(0, abs=1e-6) and run.metrics[1]["kl"] > 1e-6


FRONTS = {
    "GRPO": learner,
    "SFT": lambda model, **options: al.SFTTrainer(model=model, config=al.SFTConfig(**options)),
    "trainer": lambda model, **options: Trainer(model, TrainConfig(**options)),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lora_rank": 16},
            r"those of the adapters that tiny-1 has, 4 and 6, got 16 and None\. Set lora_rank=4",
        ),
        ({"lora_rank": 4, "lora_alpha": 8.0}, r"has, 4 and 6, got 4 and 8"),
        ({"lora_rank": 0}, r"lora_rank=0 trains all weights, but tiny-1 has adapters\. Set lora_rank=4"),
    ],
)
def test_options_that_differ_from_the_loaded_adapters_are_refused(front, options, message, model):
    with pytest.raises(ConfigError, match=message):
        FRONTS[front](add_lora(model, 4, alpha=6.0), **options)


def test_a_model_is_marked_as_changed_once_its_weights_are(model):
    assert not model.changed and not learner(model).trained_model.changed
    adapted = add_lora(model, 4)
    assert not adapted.changed and merged(adapted).changed and learner(adapted).trained_model.changed
    made, _ = trained(model, steps=1)
    assert made.trained_model.changed and not made.trained_model.config.lora


def test_the_memory_of_a_run_is_the_same_whether_its_adapters_are_fresh_or_loaded(model):
    config = replace(learner(model).config, lora_rank=4)
    assert memory_plan(add_lora(model, 4), config) == memory_plan(model, config)


def test_episodes_are_played_with_the_loaded_adapters_by_a_learner_and_by_an_engine_alone(model, tmp_path):
    _, run = taught(model, 30, learning_rate=1e-2, optimizer=optax.adam)
    loaded = al.load_adapters(model, al.save_adapters(run, tmp_path / "taught"))
    made, task = learner(loaded, "jax", temperature=0.1), {"id": "x", "prompt": "Say it."}
    roles = {"agent_class": al.ModelAgent, "env_class": al.TaskEnvironment, "env_kwargs": {"reward_fn": paid_by_text}}
    engine = al.JaxEngine(loaded, num_slots=2, tokens_per_slot=256)
    alone = al.run_episode(engine, task, config=made.config, **roles)
    assert [answer.turns[0].response for answer in (made.run_episode(task), alone)] == ["abab", "abab"]


ON_DEVICES = """
import sys
import jax, numpy as np
from jax.sharding import Mesh
import agentlab as al
from agentlab.models import merged
from agentlab.models.sharding import param_shardings
from agentlab.models.tree import flat_arrays
from adapter_cases import largest_difference, learner, logits_of

folder, saved = sys.argv[1:]
mesh, tokens = Mesh(np.array(jax.devices()).reshape(2, 2), ("fsdp", "tensor")), np.arange(3, 35).reshape(2, 16)
one, laid = (al.load_adapters(al.load_model(folder, mesh=over), sys.argv[2]) for over in (None, mesh))
arrays = flat_arrays(laid.params)
wanted = param_shardings(laid.config, mesh, arrays)
assert all(array.sharding.is_equivalent_to(wanted[path], array.ndim) for path, array in arrays.items())
assert np.abs(logits_of(laid, tokens) - logits_of(one, tokens)).max() < 1e-5
made = learner(one, "jax", placement="disaggregated")
run = made.train(al.tasks.arithmetic(seed=0), steps=1).wait()
assert run.metrics[0]["logprob_gap_max"] < 1e-3
again = al.load_adapters(al.load_model(folder), al.save_adapters(run, f"{saved} trained"))
params = jax.device_put(made.policy.params, jax.devices()[0])
assert largest_difference(merged(again), params) < 1e-6
assert largest_difference(merged(one), params) > 1e-4
"""


def test_adapters_lie_and_train_where_their_model_does(model, half, tmp_path):
    folder, saved = al.save_model(model, tmp_path / "model"), al.save_adapters(half, tmp_path / "adapters")
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (Path(__file__).parent, *sys.path)))
    done = subprocess.run(
        [sys.executable, "-c", ON_DEVICES, folder, saved], capture_output=True, text=True, env=environment, timeout=110
    )
    assert done.returncode == 0, done.stderr
