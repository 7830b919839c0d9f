"""The forward pass against PyTorch's transformers, and against itself in the shapes that callers use."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from agentlab.models import Model, load_model, tiny_model
from agentlab.models.attention import attend, segment_mask
from agentlab.models.decoder import Decoder, decoder_structure

FIXTURES = Path(__file__).parent / "fixtures" / "models"
TINY = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def tiny():
    return tiny_model()


def logits_of(model: Model, tokens, positions, segments, *, remat: bool = False) -> np.ndarray:
    def forward(params, tokens, positions, segments):
        decoder = nnx.merge(decoder_structure(model.config), params)
        mask = segment_mask(segments, positions)

        def attention(layer, q, k, v):
            return attend(q, k, v, mask, scale=model.config.attention_scale)

        return decoder.logits(decoder(tokens, positions, attention, remat=remat))

    return np.asarray(
        jax.jit(forward)(model.params, *(jnp.asarray(x, jnp.int32) for x in (tokens, positions, segments)))
    )


def logits_of_rows(model: Model, tokens) -> np.ndarray:
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    return logits_of(model, tokens, positions, np.ones_like(tokens))


@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_pytorch(name, tmp_path, tiny):
    folder = shutil.copytree(FIXTURES / name, tmp_path / name)
    tiny.tokenizer.save_pretrained(folder)
    model = load_model(folder)
    reference = np.load(folder / "reference.npz")
    logits = logits_of_rows(model, reference["tokens"])
    assert logits.dtype == np.float32
    assert np.abs(logits - reference["logits"]).max() <= 2e-5 * np.abs(reference["logits"]).max()


def test_packed_rows_give_the_logits_of_separate_rows(tiny):
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 259, 9), rng.integers(0, 259, 14)
    packed = np.concatenate([first, second, [0, 0, 0]])[None]
    segments = np.array([[1] * 9 + [2] * 14 + [-1] * 3])
    positions = np.concatenate([np.arange(9), np.arange(14), [0, 0, 0]])[None]
    together = logits_of(tiny, packed, positions, segments)
    np.testing.assert_allclose(together[0, :9], logits_of_rows(tiny, first[None])[0], atol=2e-5)
    np.testing.assert_allclose(together[0, 9:23], logits_of_rows(tiny, second[None])[0], atol=2e-5)
    assert np.isfinite(together).all()


def test_a_shared_prefix_gives_the_logits_of_the_whole_sequences(tiny):
    rng = np.random.default_rng(1)
    prefix, first, second = (rng.integers(0, 259, size) for size in (7, 5, 8))
    packed = np.concatenate([prefix, first, second])[None]
    segments = np.array([[0] * 7 + [1] * 5 + [2] * 8])
    positions = np.concatenate([np.arange(7), 7 + np.arange(5), 7 + np.arange(8)])[None]
    together = logits_of(tiny, packed, positions, segments)
    whole_first = logits_of_rows(tiny, np.concatenate([prefix, first])[None])
    whole_second = logits_of_rows(tiny, np.concatenate([prefix, second])[None])
    np.testing.assert_allclose(together[0, :12], whole_first[0], atol=2e-5)
    np.testing.assert_allclose(together[0, 12:], whole_second[0, 7:], atol=2e-5)


def test_token_by_token_over_a_cache_gives_the_logits_of_the_full_pass(tiny):
    config, length = tiny.config, 12
    tokens = np.random.default_rng(2).integers(0, 259, (2, length))
    shape = (config.num_layers, 2, length, config.num_kv_heads, config.head_dim)

    def step(params, keys, values, token, position):
        decoder = nnx.merge(decoder_structure(config), params)
        cache = {"k": keys, "v": values}

        def attention(layer, q, k, v):
            for name, new in (("k", k), ("v", v)):
                cache[name] = jax.lax.dynamic_update_slice(cache[name], new[None], (layer, 0, position, 0, 0))
            mask = jnp.broadcast_to(jnp.arange(length) <= position, (2, 1, length))
            return attend(q, cache["k"][layer], cache["v"][layer], mask, scale=config.attention_scale)

        hidden = decoder(token[:, None], jnp.full((2, 1), position), attention)
        return decoder.logits(hidden[:, 0]), cache["k"], cache["v"]

    step = jax.jit(step)
    keys, values, rows = jnp.zeros(shape), jnp.zeros(shape), []
    for position in range(length):
        logits, keys, values = step(tiny.params, keys, values, jnp.asarray(tokens[:, position]), position)
        rows.append(logits)
    np.testing.assert_allclose(np.stack(rows, axis=1), logits_of_rows(tiny, tokens), atol=2e-5)


def test_computing_layers_again_in_the_backward_pass_changes_no_logits(tiny):
    tokens = np.arange(20)[None]
    args = (tokens, np.arange(20)[None], np.ones((1, 20)))
    np.testing.assert_array_equal(logits_of(tiny, *args), logits_of(tiny, *args, remat=True))


def test_a_window_hides_what_lies_further_back():
    positions = jnp.arange(5)[None]
    mask = segment_mask(jnp.ones((1, 5), int), positions, window=2)[0]
    assert mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]


def test_padding_sees_only_itself_and_nobody_sees_it():
    segments = jnp.array([[0, 1, -1, -1, 2]])
    mask = segment_mask(segments, jnp.array([[0, 1, 0, 0, 1]]))[0]
    assert mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]


def test_a_soft_cap_bounds_the_scores():
    q = jnp.full((1, 1, 1, 2), 100.0)
    k = jnp.array([100.0, -100.0]).reshape(1, 2, 1, 1) * jnp.ones((1, 2, 1, 2))
    v = jnp.array([1.0, 0.0]).reshape(1, 2, 1, 1) * jnp.ones((1, 2, 1, 2))
    out = attend(q, k, v, jnp.ones((1, 1, 2), bool), scale=1.0, soft_cap=1.0)
    np.testing.assert_allclose(out, np.exp(1) / (np.exp(1) + np.exp(-1)), rtol=1e-6)


def test_half_precision_weights_give_float32_logits_near_the_full_ones(tiny):
    half = tiny_model(dtype=jnp.bfloat16)
    tokens = np.arange(30)[None]
    logits = logits_of_rows(half, tokens)
    assert logits.dtype == np.float32
    assert np.abs(logits - logits_of_rows(tiny, tokens)).max() < 0.25


def test_the_structure_of_a_config_is_that_of_a_decoder_made_from_it():
    small = tiny_model(num_layers=1)
    graph, params = nnx.split(Decoder(small.config, rngs=nnx.Rngs(3)))
    assert graph == decoder_structure(small.config)
    assert jax.tree.structure(params) == jax.tree.structure(small.params)
    assert sum(array.size for array in jax.tree.leaves(params)) == small.config.num_parameters


@pytest.mark.model
def test_smollm2_continues_prompts_as_pytorch_does():
    model = load_model("HuggingFaceTB/SmolLM2-135M-Instruct")
    rows = json.loads((FIXTURES / "smollm2_greedy.json").read_text())
    for row in rows:
        chat = [{"role": "user", "content": row["prompt"]}]
        text = model.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert model.tokenizer(text, add_special_tokens=False)["input_ids"] == row["ids"]
    wholes = [row["ids"] + row["greedy"] for row in rows]
    length = max(map(len, wholes))
    tokens = np.array([whole + [0] * (length - len(whole)) for whole in wholes])
    best = logits_of_rows(model, tokens).argmax(axis=-1)
    for row, whole, chosen in zip(rows, wholes, best, strict=True):
        assert chosen[len(row["ids"]) - 1 : len(whole) - 1].tolist() == row["greedy"]
