"""Optimizers of optax, schedules, frozen parts, quantised bases, and gradients that are not finite."""

import functools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_cases import group_of, plain_logprobs, random_group, trajectory

from agentlab.errors import ConfigError
from agentlab.models import tiny_model
from agentlab.models.tree import flat_arrays
from agentlab.training import TrainConfig, Trainer
from agentlab.training.optimizer import step, update_rule
from agentlab.training.quantized import on_grid

SMALL = {"row_tokens": 64, "micro_batch_tokens": 64, "logit_chunk_tokens": 16}


@pytest.fixture(scope="module")
def model():
    return tiny_model(num_layers=2)


def test_an_optimizer_of_optax_is_stepped_as_by_hand_on_a_schedule():
    schedule = optax.linear_schedule(1e-2, 0.0, 4)
    rule = update_rule(schedule, 1, 0.0, 1e9, functools.partial(optax.sgd, momentum=0.9))
    weights = {"w": jnp.asarray([1.0, 2.0])}
    state, velocity, expected = rule.optimizer.init(weights), np.zeros(2), np.asarray([1.0, 2.0])
    for number, rate in enumerate([1e-2 * 0.5, 7.5e-3, 5e-3]):
        gradient = np.asarray([0.5, -1.0]) * (number + 1)
        assert float(rule.learning_rate(number)) == pytest.approx(rate)
        weights, state, taken = step(rule, weights, state, {"w": jnp.asarray(gradient, jnp.float32)}, {})
        velocity = 0.9 * velocity + gradient
        expected -= rate * velocity
        assert float(taken["grad_norm"]) == pytest.approx(np.linalg.norm(gradient))
    np.testing.assert_allclose(weights["w"], expected, rtol=1e-6)


def test_what_is_not_a_function_of_the_learning_rate_is_refused():
    with pytest.raises(ConfigError, match="optimizer must be a function that makes"):
        update_rule(1e-3, 0, 0.0, 1.0, lambda rate: rate)
    with pytest.raises(ConfigError, match="weight_decay=0.1 is AdamW's"):
        TrainConfig(optimizer=optax.lion, weight_decay=0.1)
    with pytest.raises(ConfigError, match="optimizer must be a function or None, got GradientTransformation"):
        TrainConfig(optimizer=optax.adam(1e-3))


def test_frozen_weights_keep_every_bit_and_the_others_learn(model):
    def frozen(name):
        return name.startswith("layers.0.") or name == "embed_tokens"

    options = TrainConfig(lora_rank=0, frozen=frozen, weight_decay=0.1, learning_rate=1e-2, **SMALL)
    trainer = Trainer(model, options)
    trainer.update([random_group(model, 1, prompt=6, longest=8)])
    before, after = flat_arrays(model.params), flat_arrays(trainer.policy.params)
    for path, array in after.items():
        same = bool((array == before[path]).all())
        assert same == frozen(".".join(map(str, path))), path


def test_freezing_everything_is_refused(model):
    with pytest.raises(ConfigError, match="leave something to train"):
        Trainer(model, TrainConfig(frozen=lambda name: True, **SMALL))


def test_the_micro_batch_whose_gradient_is_not_finite_is_named(model):
    good = random_group(model, 1, prompt=40, longest=20)
    broken = group_of(
        [trajectory([5] * 40 + [e] * 20, [0] * 40 + [1] * 20, [math.nan] * 60, reward=e) for e in (3.0, 4.0)], "broken"
    )
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL))
    result = trainer.update([good, broken])
    assert result.metrics["nonfinite"] == 1.0
    assert result.policy.params is model.params
    assert result.notes[0].endswith("Groups in them: broken.")


def test_layers_that_are_not_stacked_give_the_same_update(model):
    group = random_group(model, 1, prompt=6, longest=8)
    one, other = (
        Trainer(model, TrainConfig(lora_rank=4, scan_layers=scan, learning_rate=1e-2, **SMALL)).update([group])
        for scan in (True, False)
    )
    assert one.metrics["grad_norm"] == pytest.approx(other.metrics["grad_norm"], rel=1e-5)
    for ours, theirs in zip(*map(jax.tree.leaves, (one.policy.params, other.policy.params)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_without_qwix_a_quantised_base_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    with pytest.raises(ConfigError, match=r'pip install "agentlab\[qlora\]"'):
        Trainer(model, TrainConfig(base_type="nf4", **SMALL))
    with pytest.raises(ConfigError, match="needs adapters"):
        TrainConfig(base_type="nf4", lora_rank=0)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_quantised_base_is_sampled_from_and_trained_as_the_same_policy(model, kind):
    pytest.importorskip("qwix")
    rounded = on_grid(model, kind)
    again = on_grid(rounded, kind)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), again.params, rounded.params)
    name = ("layers", 0, "mlp", "up_proj", "weight")
    assert 0 < np.abs(flat_arrays(rounded.params)[name] - flat_arrays(model.params)[name]).max() < 0.2
    group = random_group(rounded, 1, prompt=6, longest=8)
    trainer = Trainer(rounded, TrainConfig(lora_rank=4, base_type=kind, learning_rate=1e-2, **SMALL))
    result = trainer.update([group])
    assert result.metrics["ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert result.metrics["grad_norm"] > 0
    tokens = group.trajectories[0].tokens
    assert (
        np.abs(plain_logprobs(rounded, tokens, params=result.policy.params) - plain_logprobs(rounded, tokens)).max() > 0
    )
