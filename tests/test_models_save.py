"""What save_model writes, against folders that transformers wrote."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from agentlab.errors import ConfigError, ModelError
from agentlab.models import load_model, save_model, tiny_model
from agentlab.models.hub_config import FAMILIES, read_config, write_config
from agentlab.models.safetensors_file import read_safetensors

FIXTURES = Path(__file__).parent / "fixtures" / "models"
NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
NOT_OURS = {"initializer_range", "pad_token_id", "transformers_version", "use_cache", "pretraining_tp"}
"""Keys of transformers' config that say nothing about a finished model."""
NOT_OURS |= {"max_window_layers"}  # layer_types says it, and both are written


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model(num_layers=1).tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_folder_holds_what_transformers_wrote(name, tokenizer, tmp_path):
    folder = shutil.copytree(FIXTURES / name, tmp_path / name)
    tokenizer.save_pretrained(folder)
    saved = save_model(load_model(folder), tmp_path / "saved")
    wanted, got = load_file(folder / "model.safetensors"), load_file(saved / "model.safetensors")
    assert wanted.keys() == got.keys()
    for key in wanted:
        np.testing.assert_array_equal(got[key], wanted[key])
    theirs, ours = (json.loads((at / "config.json").read_text()) for at in (folder, saved))
    for key, value in theirs.items():
        if key in NOT_OURS or key.startswith("_") or value in (None, False):
            continue
        assert ours[key] == value, key


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_config_of_each_family_is_read_back_as_it_was_written(model_type):
    options = {"windows": (5, None, 5)} if model_type != "llama" else {}
    if model_type == "gemma3_text":
        options["local_rope_theta"] = 100.0
    config = tiny_model(model_type=model_type, num_layers=3, **options).config
    back = read_config(json.loads(json.dumps(write_config(config))), source="here")
    assert replace(back, query_pre_attn_scalar=None) == config


@pytest.mark.parametrize("wrong", [{"post_norms": True}, {"windows": (4, None)}, {"logit_soft_cap": 3.0}])
def test_a_model_that_its_family_cannot_describe_is_not_written(wrong):
    with pytest.raises(ConfigError, match=f"no llama model whose {next(iter(wrong))} is"):
        write_config(tiny_model(**wrong).config)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden_activation": "relu"}, "activation 'relu'"),
        ({"use_bidirectional_attention": True}, "lets tokens see later ones"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "for each of its 2 layers"),
        ({"sliding_window": None}, "impossible model"),
        ({"partial_rotary_factor": 0.5}, "only a part of each head"),
    ],
)
def test_a_variant_of_gemma_that_cannot_be_run_is_refused(changes, expected):
    raw = write_config(tiny_model(model_type="gemma2", windows=(5, None)).config)
    with pytest.raises(ModelError, match=expected):
        read_config({**raw, **changes}, source="here")


SAVED = (FIXTURES / "qwen2" / "model.safetensors").read_bytes()


@settings(max_examples=60)
@given(kept=st.integers(0, len(SAVED) - 1))
def test_a_file_cut_anywhere_is_refused(kept, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "model.safetensors"
    path.write_bytes(SAVED[:kept])
    with pytest.raises(ModelError, match=r"must be a complete safetensors file"):
        read_safetensors(path)


@settings(max_examples=100)
@given(place=st.integers(0, 1500), value=st.integers(0, 255))
def test_a_damaged_header_is_an_error_of_ours_or_leaves_every_tensor_inside_of_the_file(place, value, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "model.safetensors"
    path.write_bytes(SAVED[:place] + bytes([value]) + SAVED[place + 1 :])
    try:
        tensors = read_safetensors(path)
    except ModelError:
        return
    for tensor in tensors.values():
        assert sum(len(rows) for _, rows in tensor.blocks()) == tensor.shape[0]


def test_a_tensor_in_two_files_is_refused(tokenizer, tmp_path):
    folder = shutil.copytree(FIXTURES / "qwen2", tmp_path / "model")
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    with pytest.raises(ModelError, match=r"a\.safetensors and b\.safetensors both hold"):
        load_model(folder)
