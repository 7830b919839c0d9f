"""The forward pass against PyTorch's transformers, and against itself in the shapes that callers use."""

import functools
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
QUICK = {"xla_backend_optimization_level": 0}
"""Compiles fast what is run once."""
TINY = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def tiny():
    return tiny_model()


def attention_over(config, mask_of):
    """The decoder's attention over masks that `mask_of` gives for a layer's window."""

    def attention(layer, q, k, v):
        mask = mask_of(config.window(layer))
        return attend(q, k, v, mask, scale=config.attention_scale, soft_cap=config.attention_soft_cap)

    return attention


@functools.partial(jax.jit, static_argnames=("config", "remat"), compiler_options=QUICK)
def packed_logits(params, tokens, positions, segments, *, config, remat=False):
    decoder = nnx.merge(decoder_structure(config), params)
    attention = attention_over(config, lambda window: segment_mask(segments, positions, window))
    return decoder.logits(decoder(tokens, positions, attention, remat=remat))


def logits_of(model: Model, tokens, positions, segments, *, remat: bool = False) -> np.ndarray:
    rows = (jnp.asarray(x, jnp.int32) for x in (tokens, positions, segments))
    return np.asarray(packed_logits(model.params, *rows, config=model.config, remat=remat))


def logits_of_rows(model: Model, tokens) -> np.ndarray:
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    return logits_of(model, tokens, positions, np.ones_like(tokens))


@functools.partial(jax.jit, static_argnames="config", compiler_options=QUICK)
def chunk_logits(params, keys, values, tokens, start, *, config):
    """Logits of a chunk of tokens [B, T] behind `start` cached ones; the cache with them, [L, B, length, Hkv, Dh]."""
    decoder = nnx.merge(decoder_structure(config), params)
    cache = {"k": keys, "v": values}
    batch, size = tokens.shape
    distance = start + jnp.arange(size)[:, None] - jnp.arange(keys.shape[2])

    def attention(layer, q, k, v):
        for name, new in (("k", k), ("v", v)):
            cache[name] = jax.lax.dynamic_update_slice(cache[name], new[None], (layer, 0, start, 0, 0))

        def mask_of(window):
            seen = (distance >= 0) & (distance < (window or distance.size))
            return jnp.broadcast_to(seen, (batch, *seen.shape))

        return attention_over(config, mask_of)(layer, q, cache["k"][layer], cache["v"][layer])

    positions = jnp.broadcast_to(start + jnp.arange(size), tokens.shape)
    return decoder.logits(decoder(tokens, positions, attention)), cache["k"], cache["v"]


def logits_in_chunks(model: Model, tokens: np.ndarray, sizes: list[int]) -> np.ndarray:
    config, length = model.config, tokens.shape[1]
    assert sum(sizes) == length
    keys = values = jnp.zeros((config.num_layers, len(tokens), length, config.num_kv_heads, config.head_dim))
    start, parts = 0, []
    for size in sizes:
        chunk = jnp.asarray(tokens[:, start : start + size])
        logits, keys, values = chunk_logits(model.params, keys, values, chunk, start, config=config)
        parts.append(logits)
        start += size
    return np.concatenate(parts, axis=1)


@pytest.fixture(scope="module", params=TINY)
def pair(request, tmp_path_factory, tiny):
    """A tiny checkpoint of transformers, loaded, and what transformers answers: tokens [2, 40], logits [2, 40, V]."""
    folder = shutil.copytree(FIXTURES / request.param, tmp_path_factory.mktemp("model") / request.param)
    tiny.tokenizer.save_pretrained(folder)
    return load_model(folder), np.load(folder / "reference.npz")


def assert_close(logits: np.ndarray, reference: np.ndarray) -> None:
    assert logits.dtype == np.float32
    assert np.abs(logits - reference).max() <= 2e-5 * np.abs(reference).max()


@pytest.fixture(scope="module")
def rows(pair):
    """Our logits of three rows that share one program: the two sequences alone, and both packed into one."""
    model, reference = pair
    one, two = reference["tokens"]
    first, second = one[:17], two
    tokens = np.zeros((3, 60), np.int32)
    positions, segments = np.zeros_like(tokens), np.full_like(tokens, -1)
    for row, pieces in enumerate([(one,), (two,), (first, second)]):
        at = 0
        for number, piece in enumerate(pieces, start=1):
            place = np.s_[row, at : at + len(piece)]
            tokens[place], positions[place], segments[place] = piece, np.arange(len(piece)), number
            at += len(piece)
    return logits_of(model, tokens, positions, segments)


def test_logits_are_those_of_pytorch(pair, rows):
    assert_close(rows[:2, :40], pair[1]["logits"])


def test_packed_rows_give_the_logits_of_pytorch(pair, rows):
    first, second = pair[1]["logits"]
    assert_close(rows[2, :17], first[:17])
    assert_close(rows[2, 17:57], second)


def test_prefill_and_decode_give_the_logits_of_pytorch(pair):
    model, reference = pair
    assert_close(logits_in_chunks(model, reference["tokens"], [8, 8, 8] + [1] * 16), reference["logits"])


def test_chunks_from_left_to_right_give_the_logits_of_pytorch(pair):
    model, reference = pair
    assert_close(logits_in_chunks(model, reference["tokens"], [8] * 5), reference["logits"])


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


@pytest.fixture(scope="module")
def smollm2():
    """The model, what was stored of it, and its logits of each stored row, padded to one length."""
    model = load_model("HuggingFaceTB/SmolLM2-135M-Instruct")
    stored = json.loads((FIXTURES / "smollm2.json").read_text())
    rows = [*(row["ids"] + row["greedy"] for row in stored["greedy"]), stored["ids"]]
    length = max(map(len, rows))
    return model, stored, logits_of_rows(model, np.array([row + [0] * (length - len(row)) for row in rows]))


@pytest.mark.model
def test_smollm2_continues_prompts_as_pytorch_does(smollm2):
    model, stored, logits = smollm2
    assert len(stored["greedy"]) == 5
    for row, best in zip(stored["greedy"], logits.argmax(axis=-1), strict=False):
        chat = [{"role": "user", "content": row["prompt"]}]
        text = model.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert model.tokenizer(text, add_special_tokens=False)["input_ids"] == row["ids"]
        begin = len(row["ids"]) - 1
        assert best[begin : begin + 64].tolist() == row["greedy"]


@pytest.mark.model
def test_smollm2_has_the_perplexity_that_pytorch_gives_it(smollm2):
    model, stored, logits = smollm2
    ids = model.tokenizer(stored["text"], add_special_tokens=False)["input_ids"]
    assert ids == stored["ids"]
    logprobs = np.asarray(jax.nn.log_softmax(logits[-1, : len(ids) - 1]))
    perplexity = np.exp(-np.take_along_axis(logprobs, np.array(ids[1:])[:, None], axis=-1).mean())
    assert perplexity == pytest.approx(stored["perplexity"], rel=1e-3)
