"""Weights that a loader could leave out in silence: heads beside embeddings, frequencies, second copies, adapters."""

import json
import shutil
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from adapter_cases import FIXTURES, logits_of, stored_model
from safetensors.numpy import load_file, save_file

import agentlab as al
from agentlab.errors import ModelError
from agentlab.models import load_model, save_model, tiny_model
from agentlab.models.gguf_reader import read_gguf
from agentlab.models.tree import flat_arrays

UNTIED = (
    "llama_three_heads",
    "qwen2_windows_untied",
    "qwen3",
    "gemma2_no_caps_untied_biases",
    "gemma3_untied_usual_pattern",
)
"""One of each family."""
TIED = (
    "llama_one_kv_head_tied",
    "qwen2",
    "qwen3_windows_biases_tied",
    "gemma2_caps_one_kv_head",
    "gemma3_two_rotary_bases",
)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def copy(name: str, folder: Path) -> Path:
    stored_model(name, folder)
    return folder


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def shard(folder: Path) -> None:
    """Head and embedding into files of their own."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {"a.safetensors": [HEAD], "b.safetensors": [EMBEDDING]}
    parts["c.safetensors"] = [name for name in tensors if name not in (HEAD, EMBEDDING)]
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, folder / file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", UNTIED)
def test_a_head_that_its_config_calls_tied_but_is_different_is_used_as_transformers_does(name, sharded, tmp_path):
    folder = copy(name, tmp_path / "model")
    edit_config(folder, tie_word_embeddings=True)
    if sharded:
        shard(folder)
    with pytest.warns(UserWarning, match=r"lm_head\.weight and model\.embed_tokens\.weight are different .* untied"):
        model = load_model(folder)
    assert not model.config.tied_embeddings
    stored = np.load(FIXTURES / "models" / name / "reference.npz")
    difference = np.abs(logits_of(model, stored["tokens"]) - stored["logits"]).max()
    assert difference <= 1e-5 * np.abs(stored["logits"]).max()
    again = load_model(save_model(model, tmp_path / "saved"))
    heads = [flat_arrays(one.params)["lm_head",] for one in (again, model)]
    np.testing.assert_array_equal(*heads)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", TIED)
def test_a_head_that_is_the_embedding_stays_tied_in_whatever_type_it_is_stored(name, dtype, tmp_path):
    folder = copy(name, tmp_path / "model")

    def add_head(tensors):
        tensors[EMBEDDING] = tensors[EMBEDDING].astype(ml_dtypes.bfloat16).astype(np.float32)
        tensors[HEAD] = tensors[EMBEDDING].astype(dtype)

    edit_weights(folder, add_head)
    model = load_model(folder)
    assert model.config.tied_embeddings and ("lm_head",) not in flat_arrays(model.params)


def test_blocks_of_different_sizes_are_compared_row_by_row(tmp_path):
    model = tiny_model(num_layers=1, vocab_size=40_000, hidden_size=32)
    folder = save_model(model, tmp_path / "model")
    edit_weights(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].astype(np.float64)}))
    assert load_model(folder).config.tied_embeddings

    def change_the_last(tensors):
        tensors[HEAD][-1, -1] += 1

    edit_weights(folder, change_the_last)
    with pytest.warns(UserWarning, match="different weights"):
        assert not load_model(folder).config.tied_embeddings


@pytest.mark.parametrize("name", TIED)
def test_a_head_alone_is_the_embedding_too_where_the_config_ties_them(name, tmp_path):
    folder = copy(name, tmp_path / "model")
    edit_weights(folder, lambda tensors: tensors.update({HEAD: tensors.pop(EMBEDDING)}))
    stored = np.load(folder / "reference.npz")
    difference = np.abs(logits_of(load_model(folder), stored["tokens"]) - stored["logits"]).max()
    assert difference <= 1e-5 * np.abs(stored["logits"]).max()


@pytest.mark.parametrize("name", UNTIED)
def test_an_untied_config_without_a_head_is_refused_and_says_how_to_tie(name, tmp_path):
    folder = copy(name, tmp_path / "model")
    edit_weights(folder, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(ModelError, match=r"1 missing \(lm_head\.weight\).* must say tie_word_embeddings: true"):
        load_model(folder)


def test_a_head_of_another_shape_than_the_embedding_is_refused(tmp_path):
    folder = copy("qwen2", tmp_path / "model")
    edit_weights(folder, lambda tensors: tensors.update({HEAD: np.zeros((41, 24), np.float32)}))
    with pytest.warns(UserWarning, match="different weights"), pytest.raises(ModelError, match="1 misshapen"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("llama_three_heads", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen3", "model.layers.1.self_attn.o_proj.bias"),
        ("qwen2", "model.layers.0.mlp.up_proj.bias"),
        ("gemma3_untied_usual_pattern", "model.layers.2.self_attn.k_proj.bias"),
        ("qwen2", "lm_head.bias"),
    ],
)
def test_a_bias_that_the_config_does_not_know_is_refused_by_name(name, extra, tmp_path):
    folder = copy(name, tmp_path / "model")
    edit_weights(folder, lambda tensors: tensors.update({extra: np.zeros(8, np.float32)}))
    with pytest.raises(ModelError, match=rf"1 unknown \({extra}\)"):
        load_model(folder)


@pytest.mark.parametrize("name", ["llama_three_heads", "qwen3", "gemma2_caps_one_kv_head"])
def test_biases_that_the_config_promises_and_the_file_lacks_are_refused_by_name(name, tmp_path):
    folder = copy(name, tmp_path / "model")
    edit_config(folder, attention_bias=True)
    with pytest.raises(ModelError, match=r"missing \(model\.layers\.0\.self_attn\.\w_proj\.bias"):
        load_model(folder)


def stored_frequencies(folder: Path, factor: float, dtype=np.float32) -> None:
    head_dim = json.loads((folder / "config.json").read_text())["head_dim"]
    frequencies = (factor / 1e4 ** (np.arange(0, head_dim, 2) / head_dim)).astype(dtype)
    edit_weights(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": frequencies}))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_stored_rotary_frequencies_of_the_config_are_no_news(dtype, tmp_path):
    folder = copy("llama_three_heads", tmp_path / "model")
    stored_frequencies(folder, 1.0, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(folder)


def test_stored_rotary_frequencies_of_another_base_are_told(tmp_path):
    folder = copy("llama_three_heads", tmp_path / "model")
    stored_frequencies(folder, 0.25)
    with pytest.warns(UserWarning, match="holds other rotary frequencies than follow from the config"):
        load_model(folder)


def test_one_file_beside_an_index_of_others_is_refused(tmp_path):
    folder = copy("qwen3", tmp_path / "model")
    single = (folder / "model.safetensors").read_bytes()
    shard(folder)
    (folder / "model.safetensors").write_bytes(single)
    with pytest.raises(ModelError, match="must hold one set of weights, and holds two"):
        load_model(folder)


def test_numbers_beyond_float32_are_refused_and_do_not_become_infinity(tmp_path):
    folder = copy("qwen3", tmp_path / "model")
    edit_weights(folder, lambda tensors: tensors.update({"model.norm.weight": np.full(24, 1e300)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight must hold finite numbers"):
        load_model(folder)


def test_a_folder_with_adapters_is_not_taken_for_the_model_without_them(tmp_path):
    with pytest.raises(ModelError, match=r"holds adapters \(adapter_config\.json\).*al\.load_adapters"):
        load_model(FIXTURES / "adapters" / "qwen2")
    folder = copy("qwen2", tmp_path / "model")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(FIXTURES / "adapters" / "qwen2" / file, folder)
    with pytest.raises(ModelError, match="move the adapters to a folder of their own"):
        al.load_model(folder)


def test_a_gguf_file_that_holds_a_tensor_twice_is_refused(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for name in ("one", "two"):
        writer.add_tensor(name, np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = tmp_path / "model.gguf"
    assert len(read_gguf(path).tensors) == 2
    path.write_bytes(path.read_bytes().replace(b"two", b"one"))
    with pytest.raises(ModelError, match="holds the tensor one twice"):
        read_gguf(path)
