"""The trainer: learns, publishes, compiles once, and says what it measured."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_cases import group_of, plain_logprobs, random_group, trajectory

from agentlab.errors import ConfigError
from agentlab.models import tiny_model
from agentlab.models.tree import flat_arrays
from agentlab.training import TrainConfig, Trainer, algorithms, check_trainable
from agentlab.types import SamplingParams

SMALL = {"row_tokens": 64, "micro_batch_tokens": 64, "logit_chunk_tokens": 16}


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def bandit_group(model, params, rng, *, wanted=7, size=16, version=0):
    """One token after a short prompt, sampled by the policy; the reward is 1 for the wanted one of eight."""
    prompt = [70, 71, 72]
    logprobs = np.stack([plain_logprobs(model, [*prompt, arm], params=params)[3] for arm in range(4, 12)])
    chances = np.exp(logprobs) / np.exp(logprobs).sum()
    arms = rng.choice(8, size, p=0.5 * chances + 0.5 / 8)
    made = [
        trajectory(
            [*prompt, 4 + arm], [0, 0, 0, 1], [0, 0, 0, logprobs[arm]], reward=float(4 + arm == wanted), version=version
        )
        for arm in arms
    ]
    return group_of(made), chances[wanted - 4]


@pytest.mark.parametrize(("lora_rank", "learning_rate"), [(4, 1e-2), (0, 3e-3)])
def test_a_bandit_is_learned_within_a_few_updates(model, lora_rank, learning_rate):
    trainer = Trainer(model, TrainConfig(lora_rank=lora_rank, learning_rate=learning_rate, **SMALL))
    rng = np.random.default_rng(0)
    chances = []
    for _ in range(8):
        group, chance = bandit_group(model, trainer.policy.params, rng, version=trainer.version)
        chances.append(chance)
        trainer.update([group])
    assert chances[0] < 0.3
    assert chances[-1] > 0.8


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_the_first_ratio_of_every_token_is_one_at_the_sampling_temperature(model, temperature):
    groups = [random_group(model, seed, temperature=temperature, prompt=6, longest=8) for seed in (1, 2)]
    metrics = Trainer(model, TrainConfig(lora_rank=4, **SMALL), temperature=temperature).update(groups).metrics
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["logprob_gap_max"] < 1e-4
    assert metrics["clip_share"] == 0.0


def test_the_published_weights_are_those_that_the_trainer_scores_with(model):
    for lora_rank in (4, 0):
        trainer = Trainer(model, TrainConfig(lora_rank=lora_rank, learning_rate=1e-2, **SMALL))
        policy = trainer.update([random_group(model, 1, prompt=6, longest=8)]).policy
        assert jax.tree.structure(policy.params) == jax.tree.structure(model.params)
        after = [random_group_under(model, policy.params)]
        metrics = trainer.update(after).metrics
        assert metrics["logprob_gap_max"] < 1e-4
        assert metrics["staleness_max"] == 0.0


def random_group_under(model, params):
    group = random_group(model, 5, prompt=6, longest=8)
    made = [
        trajectory(t.tokens, t.loss_mask, plain_logprobs(model, t.tokens, params=params), reward=t.reward, version=1)
        for t in group.trajectories
    ]
    return group_of(made)


@pytest.mark.parametrize("lora_rank", [4, 0])
def test_published_weights_are_never_changed_or_deleted_by_later_updates(model, lora_rank):
    trainer = Trainer(model, TrainConfig(lora_rank=lora_rank, learning_rate=1e-2, **SMALL))
    group = random_group(model, 1, prompt=6, longest=8)
    first = trainer.update([group]).policy
    kept = jax.tree.map(np.array, first.params)
    original = jax.tree.map(np.array, model.params)
    second = trainer.update([group]).policy
    assert (first.version, second.version) == (1, 2)
    jax.tree.map(np.testing.assert_array_equal, first.params, kept)
    jax.tree.map(np.testing.assert_array_equal, model.params, original)
    name = ("layers", 0, "mlp", "up_proj", "weight")
    assert (flat_arrays(second.params)[name] != flat_arrays(first.params)[name]).any()


def test_nothing_is_compiled_after_the_first_update_of_each_shape(model):
    options = TrainConfig(lora_rank=4, beta=0.1, learning_rate=1e-2, **SMALL)
    trainer, second = Trainer(model, options), Trainer(model, options)
    groups = [random_group(model, seed, prompt=6, longest=8) for seed in range(3)]
    trainer.update(groups)
    compiled = []
    listen = jax.monitoring.register_event_duration_secs_listener
    listen(lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None)
    trainer.update(groups[::-1])
    trainer.update(groups[:2])
    second.update(groups)
    assert compiled == []


def test_a_group_that_teaches_nothing_leaves_the_weights_but_counts_as_an_update(model):
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL))
    equal = group_of([trajectory([5, 6, 7], [0, 0, 1], reward=0.1, episode=e) for e in range(7)])
    result = trainer.update([equal])
    assert result.policy.version == trainer.version == 1
    assert result.policy.params is model.params
    assert result.metrics["loss"] == 0.0
    assert result.metrics["skipped_groups"] == 1.0
    assert result.metrics["tokens"] == 0.0
    assert math.isnan(result.metrics["ratio_mean"])


def test_an_update_without_any_group_changes_nothing(model):
    result = Trainer(model, TrainConfig(lora_rank=4, **SMALL)).update([])
    assert result.policy.params is model.params
    assert math.isnan(result.metrics["reward_mean"])


def test_a_gradient_that_is_not_finite_is_skipped_counted_and_reported(model):
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL))
    broken = group_of([trajectory([5, 6, e], [0, 0, 1], [0, 0, math.nan], reward=e) for e in (3.0, 4.0)], "broken")
    result = trainer.update([broken])
    assert result.metrics["nonfinite"] == 1.0
    assert result.policy.params is model.params
    assert "broken" in result.notes[0]
    good = trainer.update([random_group(model, 1, prompt=6, longest=8)])
    assert good.metrics["nonfinite"] == 0.0
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(good.policy.params))


@pytest.mark.parametrize("lora_rank", [4, 0])
def test_the_divergence_is_measured_from_the_untrained_model(model, lora_rank):
    group = random_group(model, 1, prompt=6, longest=8)
    options = TrainConfig(lora_rank=lora_rank, learning_rate=1e-2, beta=0.1, **SMALL)
    trainer = Trainer(model, options)
    first = trainer.update([group])
    assert first.metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    second = trainer.update([group])
    expected = []
    for t in group.trajectories:
        now = plain_logprobs(model, t.tokens, params=first.policy.params)
        d = plain_logprobs(model, t.tokens) - now
        expected += [math.exp(x) - x - 1 for x, m in zip(d, t.loss_mask, strict=True) if m]
    assert second.metrics["kl"] == pytest.approx(np.mean(expected), rel=1e-2)
    assert second.metrics["kl"] > 1e-5


def test_a_divergence_in_the_reward_is_taken_off_token_by_token(model):
    group = random_group(model, 1, prompt=6, longest=8, noise=0.3)
    options = {"lora_rank": 4, "learning_rate": 1e-2, **SMALL}
    penalized = Trainer(model, TrainConfig(beta=0.5, algorithm=algorithms.reinforce_pp, **options)).update([group])
    costs = []
    for t in group.trajectories:
        gap = np.asarray(t.logprobs) - plain_logprobs(model, t.tokens)
        costs.append(0.5 * gap[np.asarray(t.loss_mask) == 1])

    def with_costs(plays, advantages):
        known = [dataclasses.replace(play, penalties=cost) for play, cost in zip(plays, costs, strict=True)]
        return algorithms.reinforce_pp.credit(known, advantages)

    by_hand = dataclasses.replace(algorithms.reinforce_pp, credit=with_costs)
    expected = Trainer(model, TrainConfig(algorithm=by_hand, **options)).update([group])
    plain = Trainer(model, TrainConfig(algorithm=algorithms.reinforce_pp, **options)).update([group])
    assert penalized.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-4)
    assert abs(plain.metrics["grad_norm"] / expected.metrics["grad_norm"] - 1) > 5e-3


def test_metrics_say_what_happened(model):
    groups = [random_group(model, seed, prompt=6, longest=8) for seed in (1, 2)]
    metrics = (
        Trainer(model, TrainConfig(lora_rank=4, warmup_steps=3, learning_rate=4e-4, **SMALL)).update(groups).metrics
    )
    rewards = [r for group in groups for r in group.rewards]
    sampled = sum(t.num_sampled for group in groups for t in group.trajectories)
    assert metrics["reward_mean"] == pytest.approx(np.mean(rewards))
    assert metrics["reward_std"] == pytest.approx(np.std(rewards))
    assert metrics["solve_rate"] == np.mean(np.asarray(rewards) >= 1.0)
    assert metrics["learning_rate"] == pytest.approx(1e-4)
    assert metrics["sampled_tokens"] == sampled
    assert metrics["groups"] == 2.0
    assert metrics["tokens"] < sum(len(t.tokens) for group in groups for t in group.trajectories)
    assert 0 < metrics["padding_share"] < 1
    assert 0 < metrics["entropy"] < math.log(model.config.vocab_size)
    assert metrics["grad_norm"] > 0
    assert metrics["tokens_per_s"] == pytest.approx(metrics["tokens"] / metrics["seconds"])
    assert all(isinstance(value, float) for value in metrics.values())


def test_two_epochs_are_two_steps_on_the_same_groups(model):
    group = random_group(model, 1, prompt=6, longest=8)
    result = Trainer(model, TrainConfig(lora_rank=4, learning_rate=1e-2, epochs_per_batch=2, **SMALL)).update([group])
    assert result.policy.version == 1
    assert result.metrics["ratio_max"] > 1.001


def test_training_goes_on_from_a_checkpoint_bit_for_bit(model, tmp_path):
    options = TrainConfig(lora_rank=4, learning_rate=1e-2, warmup_steps=3, **SMALL)
    group = random_group(model, 1, prompt=6, longest=8)
    unbroken = Trainer(model, options)
    unbroken.update([group])
    unbroken.save(tmp_path / "run")
    resumed = Trainer(model, options)
    resumed.restore(tmp_path / "run")
    assert resumed.version == resumed.policy.version == 1
    jax.tree.map(np.testing.assert_array_equal, resumed.policy.params, unbroken.policy.params)
    one, other = unbroken.update([group]), resumed.update([group])
    jax.tree.map(np.testing.assert_array_equal, one.policy.params, other.policy.params)
    assert one.metrics["learning_rate"] == other.metrics["learning_rate"]


def test_the_newest_checkpoint_is_restored_and_old_ones_go(model, tmp_path):
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL))
    for _ in range(4):
        trainer.update([])
        trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]
    resumed = Trainer(model, TrainConfig(lora_rank=4, **SMALL))
    resumed.restore(tmp_path)
    assert resumed.version == 4


def test_a_checkpoint_of_another_configuration_or_none_is_refused(model, tmp_path):
    trainer = Trainer(model, TrainConfig(lora_rank=4, **SMALL))
    with pytest.raises(ConfigError, match="no such folder"):
        trainer.restore(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds none"):
        trainer.restore(tmp_path)
    trainer.save(tmp_path)
    with pytest.raises(ConfigError, match="lora_rank: 4 there, 8 here"):
        Trainer(model, TrainConfig(lora_rank=8, **SMALL)).restore(tmp_path)


def test_sampling_that_the_trainer_cannot_reproduce_is_refused():
    check_trainable(SamplingParams(temperature=0.7))
    cuts = ({"top_p": 0.9}, "top_p=1.0"), ({"top_k": 5}, "top_k=0"), ({"min_p": 0.1}, "min_p=0.0")
    for wrong, reason in (*cuts, ({"temperature": 0.0}, "above 0")):
        with pytest.raises(ConfigError, match=reason):
            check_trainable(SamplingParams(**wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"beta": -0.1},
        {"clip_low": 1.5},
        {"lora_rank": -1},
        {"epochs_per_batch": 0},
        {"micro_batch_tokens": 100},
        {"learning_rat": 1e-3},
    ],
)
def test_impossible_options_are_refused_with_their_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TrainConfig(**wrong)


def test_a_temperature_of_zero_is_refused(model):
    with pytest.raises(ConfigError, match="above 0"):
        Trainer(model, temperature=0.0)


def test_half_precision_models_train_float32_adapters_and_publish_their_own_type(model):
    half = tiny_model(dtype=jnp.bfloat16, num_layers=1)
    trainer = Trainer(half, TrainConfig(lora_rank=1, learning_rate=1e-2, **SMALL))
    policy = trainer.update([random_group(model, 1, prompt=6, longest=8)]).policy
    assert {leaf.dtype for leaf in jax.tree.leaves(policy.params)} == {jnp.dtype(jnp.bfloat16)}
