"""What load_model reads, what save_model writes, and what each of them refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agentlab.errors import ConfigError, ModelError
from agentlab.models import add_lora, load_model, merge_lora, save_model, tiny_model
from agentlab.models.config import DecoderConfig, RopeScaling
from agentlab.models.gguf_file import BLOCK_NAMES, TOP_NAMES
from agentlab.models.hub_config import read_config, write_config
from agentlab.models.tree import flat_arrays, with_arrays
from agentlab.models.weights import named_arrays


@pytest.fixture(scope="module")
def tiny():
    return tiny_model()


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    return save_model(tiny, tmp_path_factory.mktemp("saved") / "tiny")


@pytest.fixture
def folder(saved, tmp_path):
    """A saved model that the test may damage."""
    return shutil.copytree(saved, tmp_path / "model")


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def same_arrays(one, other) -> bool:
    left, right = named_arrays(one), named_arrays(other)
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)


# -- folders --------------------------------------------------------------------------------------


def test_a_saved_model_is_loaded_back_exactly(tiny, saved):
    loaded = load_model(saved)
    assert loaded.config == tiny.config
    assert same_arrays(loaded.params, tiny.params)
    text = "héllo <|im_end|>\n"
    assert loaded.tokenizer(text)["input_ids"] == tiny.tokenizer(text)["input_ids"]
    chat = [{"role": "user", "content": "hi"}]
    assert loaded.tokenizer.apply_chat_template(chat, tokenize=False) == tiny.tokenizer.apply_chat_template(
        chat, tokenize=False
    )


def test_a_saved_model_names_what_older_readers_need(saved):
    config = json.loads((saved / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10_000.0
    assert json.loads((saved / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_half_precision_survives_saving_and_loading(tmp_path):
    half = tiny_model(dtype=jnp.bfloat16, num_layers=1)
    loaded = load_model(save_model(half, tmp_path / "half"), dtype="bfloat16")
    assert same_arrays(loaded.params, half.params)


def test_weights_in_several_files_are_read_through_their_index(tiny, folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same_arrays(load_model(folder).params, tiny.params)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"must hold b\.safetensors, which its index names"):
        load_model(folder)


def test_saving_refuses_a_folder_that_holds_something(tiny, tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ModelError, match="must be a new or an empty folder"):
        save_model(tiny, tmp_path)
    assert (tmp_path / "kept").read_text() == "mine"


def test_a_failed_save_leaves_nothing_behind(tiny, tmp_path):
    class Broken:
        def save_pretrained(self, folder):
            raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"No space left on device.*Nothing was left"):
        save_model(replace(tiny, tokenizer=Broken()), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_tensor_is_named(folder):
    edit_weights(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"must hold exactly .* 1 missing \(model\.norm\.weight\)"):
        load_model(folder)


def test_an_unknown_tensor_is_named(folder):
    edit_weights(folder, lambda tensors: tensors.update(extra=np.zeros(3, np.float32)))
    with pytest.raises(ModelError, match=r"1 unknown \(extra\)"):
        load_model(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(folder):
    edit_weights(folder, lambda tensors: tensors.update({"model.norm.weight": np.ones(63, np.float32)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight is \[63\] and must be \[64\]"):
        load_model(folder)


def test_weights_that_are_not_numbers_are_refused(folder):
    edit_weights(folder, lambda tensors: tensors.update({"model.norm.weight": np.full(64, np.nan, np.float32)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight must hold finite numbers"):
        load_model(folder)


@pytest.mark.parametrize("kept_bytes", [0, 5, 1000, -1])
def test_a_truncated_weights_file_is_refused(folder, kept_bytes):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(ModelError, match=r"model\.safetensors must be a complete safetensors file"):
        load_model(folder)


def test_a_folder_without_weights_config_or_tokenizer_says_which(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=r"must hold tokenizer\.json"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"must hold its weights as \.safetensors"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json must exist"):
        load_model(folder)


def test_a_damaged_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"The tokenizer in .* cannot be read"):
        load_model(folder)


def test_an_unknown_architecture_names_the_known_ones(folder):
    edit_config(folder, architectures=["MambaForCausalLM"], model_type="mamba")
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling 'yarn'"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads"),
        ({"num_hidden_layers": "many"}, "impossible model"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(folder, changes, expected):
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=expected):
        load_model(folder)


def test_a_config_without_a_size_names_it(folder):
    raw = json.loads((folder / "config.json").read_text())
    del raw["hidden_size"]
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError, match="must say 'hidden_size'"):
        load_model(folder)


def test_a_path_that_is_not_there_is_not_taken_for_a_name(tmp_path):
    with pytest.raises(ModelError, match="there is nothing at"):
        load_model(tmp_path / "no" / "such" / "folder")
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"must be a folder or a \.gguf file"):
        load_model(tmp_path / "weights.bin")


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("scaling", [None, (8.0, 1.0, 4.0, 256)])
def test_a_config_is_read_back_as_it_was_written(model_type, scaling):
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position")
    config = DecoderConfig(
        model_type=model_type,
        vocab_size=11,
        hidden_size=12,
        intermediate_size=13,
        num_layers=2,
        num_heads=6,
        num_kv_heads=3,
        head_dim=2,
        rope_theta=5e5,
        rope_scaling=RopeScaling(**dict(zip(names, scaling, strict=True))) if scaling else None,
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
        bos_token_id=1,
        eos_token_ids=(2, 3),
    )
    assert read_config(json.loads(json.dumps(write_config(config))), source="here") == config


# -- GGUF -----------------------------------------------------------------------------------------


def permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of a query or key projection."""
    rows = weight.shape[0]
    return weight.reshape(num_heads, 2, rows // num_heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model, path: Path, *, architecture="llama", quantised=False, leave_out=()) -> Path:
    config, tokenizer = model.config, model.tokenizer
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = tokenizer.convert_ids_to_tokens(range(config.vocab_size))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([])
    writer.add_eos_token_id(config.eos_token_ids[0])
    writer.add_chat_template(tokenizer.chat_template)
    blocks = {hf: name for name, hf in BLOCK_NAMES.items()}
    tops = {hf: name for name, hf in TOP_NAMES.items()}
    for name, array in named_arrays(model.params).items():
        if "q_proj" in name or "k_proj" in name:
            array = permuted(array, config.num_heads if "q_proj" in name else config.num_kv_heads)
        parts = name.split(".")
        stored = tops.get(name) or f"blk.{parts[2]}.{blocks['.'.join(parts[3:-1])]}.weight"
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and array.ndim == 2 else gguf.GGMLQuantizationType.F32
        if stored not in leave_out:
            writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_gives_the_model_that_was_written_to_it(tiny, tmp_path):
    loaded = load_model(write_gguf(tiny, tmp_path / "tiny.gguf"))
    assert replace(loaded.config, norm_eps=tiny.config.norm_eps) == tiny.config
    assert same_arrays(loaded.params, tiny.params)
    text = "<|im_start|>user\n12 é<|im_end|>"
    assert loaded.tokenizer(text)["input_ids"] == tiny.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text
    assert loaded.tokenizer.chat_template == tiny.tokenizer.chat_template
    assert loaded.tokenizer.eos_token == "<|im_end|>"


def test_quantised_gguf_weights_are_expanded(tiny, tmp_path):
    loaded = load_model(write_gguf(tiny, tmp_path / "tiny.gguf", quantised=True))
    wanted, got = named_arrays(tiny.params), named_arrays(loaded.params)
    for name in wanted:
        assert np.abs(wanted[name] - got[name]).max() <= np.abs(wanted[name]).max() / 127


def test_a_gguf_file_without_a_tensor_names_it(tiny, tmp_path):
    path = write_gguf(tiny, tmp_path / "tiny.gguf", leave_out=("blk.1.ffn_up.weight",))
    with pytest.raises(ModelError, match=r"1 missing \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        load_model(path)


def test_a_gguf_file_of_another_architecture_is_refused(tiny, tmp_path):
    path = write_gguf(tiny, tmp_path / "tiny.gguf", architecture="mamba")
    with pytest.raises(ModelError, match="architecture 'mamba'"):
        load_model(path)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_gguf_file_is_refused(tiny, tmp_path, share):
    path = write_gguf(tiny, tmp_path / "tiny.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError, match=r"tiny\.gguf (must be a complete GGUF file|cannot be read)"):
        load_model(path)


def test_a_file_that_only_ends_in_gguf_is_refused(tmp_path):
    (tmp_path / "fake.gguf").write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(ModelError, match='must begin with the letters "GGUF"'):
        load_model(tmp_path / "fake.gguf")


# -- tiny models and adapters ---------------------------------------------------------------------


def test_the_same_seed_gives_the_same_tiny_model_and_another_another(tiny):
    assert same_arrays(tiny_model().params, tiny.params)
    assert not same_arrays(tiny_model(1).params, tiny.params)


def test_a_tiny_model_refuses_an_unknown_size():
    with pytest.raises(ConfigError, match=r"'num_layer'.*Did you mean 'num_layers'"):
        tiny_model(num_layer=1)


def test_every_text_survives_the_tiny_tokenizer(tiny):
    for text in ("", "a", "naïve café 漢字 🙂\n\t\x00", "<|im_start|>user\nhi<|im_end|>"):
        assert tiny.tokenizer.decode(tiny.tokenizer(text)["input_ids"]) == text


def test_fresh_adapters_change_no_weight_and_share_the_others(tiny):
    adapted = add_lora(tiny, 4)
    assert same_arrays(merge_lora(adapted.config, adapted.params), tiny.params)
    assert flat_arrays(adapted.params)["embed_tokens",] is flat_arrays(tiny.params)["embed_tokens",]


def test_trained_adapters_are_folded_in_and_saved_as_plain_weights(tiny, tmp_path):
    adapted = add_lora(tiny, 2, alpha=6.0, targets=("q_proj",))
    arrays = flat_arrays(adapted.params)
    path = ("layers", 1, "self_attn", "q_proj")
    arrays[*path, "lora_b"] = jnp.ones((64, 2))
    trained = replace(adapted, params=with_arrays(adapted.params, arrays))
    loaded = load_model(save_model(trained, tmp_path / "trained"))
    assert loaded.config == tiny.config
    expected = arrays[*path, "weight"] + 3.0 * jnp.ones((64, 2)) @ arrays[*path, "lora_a"]
    np.testing.assert_allclose(flat_arrays(loaded.params)[*path, "weight"], expected, atol=1e-6)


def test_impossible_adapters_are_refused(tiny):
    with pytest.raises(ConfigError, match="rank of a LoRA adapter must be at least 1, got 0"):
        add_lora(tiny, 0)
    with pytest.raises(ConfigError, match="LoRA targets must be some of q_proj"):
        add_lora(tiny, 1, targets=("query",))
    with pytest.raises(ConfigError, match="has adapters already"):
        add_lora(add_lora(tiny, 1), 1)
