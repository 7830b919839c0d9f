"""Every family, option and way of training: what is published keeps its form, and engine and trainer agree."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_cases import group_of, random_group, trajectory

from agentlab.inference.jax_engine import JaxEngine
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import Model, load_model, save_model, tiny_model
from agentlab.models.config import LORA_TARGETS, RopeScaling
from agentlab.models.tree import flat_arrays, with_arrays
from agentlab.training import TrainConfig, Trainer
from agentlab.types import GenerationRequest, SamplingParams, TrajectoryGroup

SLOT, GROUP, UPDATES = 32, 4, 5
SHAPES = Shapes(decode_rows=(GROUP,), prefill=(PrefillSize(GROUP, 16),), contexts=(SLOT,), prefill_contexts=(SLOT,))
LOCAL = (6, None)
"""A window shorter than the prompt in the first layer."""

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, all biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "llama, untied, scaled rotation": {
        "tied_embeddings": False,
        "rope_scaling": RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16),
    },
    "qwen2": {"model_type": "qwen2"},
    "qwen2, untied, windows": {"model_type": "qwen2", "tied_embeddings": False, "windows": LOCAL},
    "qwen2, square projections": {"model_type": "qwen2", "num_kv_heads": 4, "intermediate_size": 64},
    "qwen3": {"model_type": "qwen3"},
    "qwen3, untied, biases, windows": {
        "model_type": "qwen3",
        "tied_embeddings": False,
        "qkv_bias": True,
        "output_bias": True,
        "windows": LOCAL,
    },
    "gemma2": {
        "model_type": "gemma2",
        "windows": LOCAL,
        "attention_soft_cap": 5.0,
        "logit_soft_cap": 3.0,
        "query_pre_attn_scalar": 32,
    },
    "gemma2, untied, biases": {
        "model_type": "gemma2",
        "query_pre_attn_scalar": 16,
        "tied_embeddings": False,
        "qkv_bias": True,
        "output_bias": True,
    },
    "gemma3": {"model_type": "gemma3_text", "windows": LOCAL, "local_rope_theta": 100.0, "query_pre_attn_scalar": 32},
    "gemma3, untied, biases": {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 16,
        "tied_embeddings": False,
        "qkv_bias": True,
        "output_bias": True,
    },
}


def first_layer(name: str) -> bool:
    return name.startswith("layers.0.")


def biases_and_norms(name: str) -> bool:
    return name.endswith(".bias") or "norm" in name


WAYS: dict[str, dict[str, Any]] = {
    "LoRA": {"lora_rank": 4},
    "LoRA, layers apart": {"lora_rank": 4, "scan_layers": False},
    "LoRA, first layer frozen": {"lora_rank": 4, "frozen": first_layer},
    "QLoRA, 4 bits": {"lora_rank": 4, "base_type": "nf4"},
    "QLoRA, 8 bits, first layer frozen": {"lora_rank": 4, "base_type": "int8", "frozen": first_layer},
    "full": {"lora_rank": 0},
    "full, first layer frozen": {"lora_rank": 0, "frozen": first_layer},
    "full, biases and norms frozen": {"lora_rank": 0, "frozen": biases_and_norms},
}


@pytest.fixture(autouse=True)
def _programs_are_forgotten():
    """Each case compiles its own. XLA maps memory for every program, and a process may have 65,530 maps."""
    yield
    jax.clear_caches()


def random_model(options: dict[str, Any], dtype: Any = jnp.float32) -> Model:
    """A tiny model in which nothing is 0 or 1, as biases and norms of `tiny_model` are."""
    model = tiny_model(0, dtype=dtype, **options)
    rng = np.random.default_rng(7)
    arrays = {
        path: (array + 0.1 * rng.standard_normal(array.shape)).astype(array.dtype)
        for path, array in flat_arrays(model.params).items()
    }
    return replace(model, params=with_arrays(model.params, arrays))


def new_trainer(model: Model, way: dict[str, Any]) -> Trainer:
    sizes = {"row_tokens": 128, "micro_batch_tokens": 128, "logit_chunk_tokens": 64}
    return Trainer(model, TrainConfig(learning_rate=1e-2, **sizes, **way))


def assert_equal(params: Any, wanted: Any) -> None:
    ours, theirs = flat_arrays(params), flat_arrays(wanted)
    assert ours.keys() == theirs.keys()
    for path, array in theirs.items():
        np.testing.assert_array_equal(ours[path], array, err_msg=str(path))


def form(params: Any) -> dict[Any, Any]:
    return {path: (array.shape, array.dtype) for path, array in flat_arrays(params).items()}


async def sampled_group(engine: JaxEngine, seed: int) -> TrajectoryGroup:
    """Texts that the engine samples after one prompt, with the log-probabilities that it gives; random rewards."""
    rng = np.random.default_rng(seed)
    prompt = tuple(rng.integers(3, 200, 12).tolist())
    made: dict[int, Any] = {}

    async def ask(episode: int) -> None:
        name = f"{seed}/{episode}"
        sampling = SamplingParams(max_tokens=10, seed=seed * GROUP + episode)
        done = await engine.generate(GenerationRequest(name, name, prompt, sampling))
        before = [0] * len(prompt)
        made[episode] = trajectory(
            prompt + done.tokens,
            before + [1] * len(done.tokens),
            [0.0] * len(prompt) + list(done.logprobs),
            reward=float(rng.normal()),
            group=str(seed),
            episode=episode,
            version=done.policy_versions[0],
        )

    async with anyio.create_task_group() as group:
        for episode in range(GROUP):
            group.start_soon(ask, episode)
    return group_of([made[episode] for episode in range(GROUP)], str(seed))


def updates_from_an_engine(model: Model, trainer: Trainer, after_update: Callable[[Trainer], None]) -> list[float]:
    """Sample and update by turns. Largest difference of the two sides' log-probabilities, per update."""
    gaps = []

    async def main() -> None:
        engine = JaxEngine(
            replace(model, params=trainer.policy.params),
            num_slots=GROUP,
            tokens_per_slot=SLOT,
            max_dispatch=4,
            shapes=SHAPES,
            compilation_cache=False,
        )
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            for number in range(UPDATES + 1):
                result = trainer.update([await sampled_group(engine, number)])
                gaps.append(result.metrics["logprob_gap_max"])
                engine.update_policy(result.policy)
                after_update(trainer)
            serving.cancel_scope.cancel()

    anyio.run(main)
    return gaps


def cases() -> list[Any]:
    """Every option with every way. In the normal suite adapters on all options, and all ways on one of each kind."""
    quick = {"qwen2, square projections", "gemma3, untied, biases"}
    return [
        pytest.param(options, way, marks=[] if way == "LoRA" or options in quick else [pytest.mark.slow])
        for options in MODELS
        for way in WAYS
    ]


@pytest.mark.parametrize(("options", "way"), cases())
def test_the_engine_follows_the_trainer_through_five_updates(options, way):
    model = random_model(MODELS[options])
    trainer = new_trainer(model, WAYS[way])

    def keeps_its_form(trainer: Trainer) -> None:
        assert form(trainer.policy.params) == form(model.params)

    gaps = updates_from_an_engine(model, trainer, keeps_its_form)
    assert max(gaps) < 1e-4, gaps


@pytest.mark.parametrize(("options", "way"), cases())
def test_saved_loaded_and_resumed_weights_are_the_trained_ones(options, way, tmp_path):
    model = random_model(MODELS[options])
    trainer = new_trainer(model, WAYS[way])
    groups = [random_group(model, seed, size=3, prompt=6, longest=8) for seed in range(UPDATES)]
    for group in groups[:3]:
        trainer.update([group])
    trainer.save(tmp_path / "checkpoint")
    resumed = new_trainer(model, WAYS[way])
    resumed.restore(tmp_path / "checkpoint")
    assert_equal(resumed.policy.params, trainer.policy.params)
    for group in groups[3:]:
        trainer.update([group])
        resumed.update([group])
    assert_equal(resumed.policy.params, trainer.policy.params)
    trained = replace(model, params=trainer.policy.params)
    loaded = load_model(save_model(trained, tmp_path / "model"))
    assert loaded.config == model.config
    assert_equal(loaded.params, trained.params)


@pytest.mark.parametrize("options", MODELS)
@pytest.mark.parametrize("way", ["LoRA", "full"])
def test_what_is_frozen_or_has_no_adapter_is_published_untouched_in_every_type(options, way):
    model = random_model(MODELS[options], jnp.bfloat16)
    trainer = new_trainer(model, WAYS[way] | {"frozen": first_layer})
    trainer.update([random_group(model, 1, size=3, prompt=6, longest=8)])
    before, after = flat_arrays(model.params), flat_arrays(trainer.policy.params)
    assert form(trainer.policy.params) == form(model.params)
    changed = {path for path in before if (before[path] != after[path]).any()}
    wanted = {path for path in before if path[:2] != ("layers", 0)}
    if way == "LoRA":
        wanted = {path for path in wanted if path[-1] == "weight" and path[-2] in LORA_TARGETS}
    assert changed <= wanted
    assert {path[2:] for path in changed} == {path[2:] for path in wanted}
