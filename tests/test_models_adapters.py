"""Adapters in peft's files: those that peft wrote, with its logits, and those that peft is to read."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adapter_cases import FIXTURES, MODULES, NAMES, array_of, logits_of, stored_model, updates
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import agentlab as al
from agentlab.errors import ConfigError, ModelError
from agentlab.models import add_lora, merged
from agentlab.models.config import LORA_TARGETS
from agentlab.models.hub_config import FAMILIES

ADAPTERS = FIXTURES / "adapters"
UNIFORM = ("llama_three_heads", "llama_one_kv_head_tied", "qwen2", "qwen2_windows_untied", "qwen3")
UNIFORM += ("gemma2_caps_one_kv_head", "gemma3_two_rotary_bases")
"""Those of one rank and scale on the same layers in every block."""


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    """(name, a tiny model of transformers, its tokens, peft's logits with the adapters)"""
    name = request.param
    model = stored_model(name, tmp_path_factory.mktemp("model"))
    tokens = np.load(FIXTURES / "models" / name / "reference.npz")["tokens"]
    return name, model, tokens, np.load(ADAPTERS / name / "logits.npz")["logits"]


@pytest.fixture
def folder(tmp_path):
    """Adapters of `qwen2` that the test may damage."""
    return shutil.copytree(ADAPTERS / "qwen2", tmp_path / "adapters")


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory):
    return stored_model("qwen2", tmp_path_factory.mktemp("model"))


def edit_config(folder: Path, **changes) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def assert_equal_logits(got: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_there_are_adapters_of_every_family():
    configs = [json.loads((FIXTURES / "models" / name / "config.json").read_text()) for name in NAMES]
    assert {config["model_type"] for config in configs} == set(FAMILIES)


def test_adapters_of_peft_give_its_logits(pair):
    name, model, tokens, wanted = pair
    adapted = al.load_adapters(model, ADAPTERS / name)
    assert_equal_logits(logits_of(adapted, tokens), wanted)
    assert_equal_logits(logits_of(merged(adapted), tokens), wanted)
    assert np.abs(logits_of(model, tokens) - wanted).max() > 0.1


def test_a_model_with_adapters_is_saved_with_them_folded_in(pair, tmp_path):
    name, model, tokens, wanted = pair
    saved = al.save_model(al.load_adapters(model, ADAPTERS / name), tmp_path / "model")
    assert_equal_logits(logits_of(al.load_model(saved), tokens), wanted)


def test_what_is_saved_again_is_what_peft_wrote(pair, tmp_path):
    name, model, tokens, wanted = pair
    saved = al.save_adapters(al.load_adapters(model, ADAPTERS / name), tmp_path / "saved", base=name)
    theirs, ours = (load_file(at / "adapter_model.safetensors") for at in (ADAPTERS / name, saved))
    config, written = (json.loads((at / "adapter_config.json").read_text()) for at in (ADAPTERS / name, saved))
    if name in UNIFORM:
        assert theirs.keys() == ours.keys()
        for key in theirs:
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
        for key in set(written) - {"target_modules", "lora_dropout"}:
            assert written[key] == config[key] or (key, config[key]) == ("init_lora_weights", "gaussian"), key
    assert theirs.keys() <= ours.keys()
    assert_equal_logits(logits_of(al.load_adapters(model, saved), tokens), wanted)


def test_peft_reads_what_was_saved_and_gives_the_same_logits(pair, tmp_path):
    peft = pytest.importorskip("peft", reason="no peft here: pip install peft torch")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, model, tokens, wanted = pair
    saved = al.save_adapters(al.load_adapters(model, ADAPTERS / name), tmp_path / "saved")
    base = transformers.AutoModelForCausalLM.from_pretrained(
        FIXTURES / "models" / name, dtype=torch.float32, attn_implementation="eager"
    )
    adapted = peft.PeftModel.from_pretrained(base, saved).eval()
    assert not [key for key in peft.PeftModel.load_adapter(adapted, saved, "again").missing_keys if ".again." in key]
    with torch.no_grad():
        assert_equal_logits(adapted(torch.from_numpy(tokens.astype(np.int64))).logits.numpy(), wanted)


def test_a_learners_rank_for_all_layers_is_that_of_the_highest_filled_up_with_zeros(tmp_path):
    model = stored_model("llama3_rope", tmp_path)
    adapted = al.load_adapters(model, ADAPTERS / "llama3_rope")
    assert adapted.config.lora.rank == 5
    a, b = (array_of(adapted, 0, "k_proj", kind) for kind in ("lora_a", "lora_b"))
    assert a[:2].any() and b[:, :2].any() and not a[2:].any() and not b[:, 2:].any()


@st.composite
def settings_of_peft(draw):
    """(options of a peft file, the rank of each kind of layer, how each is scaled by peft's own rule)"""
    targets = draw(st.lists(st.sampled_from(LORA_TARGETS), min_size=1, max_size=7, unique=True))
    ranks, alphas = st.integers(1, 5), st.integers(1, 32)
    options = {"r": draw(ranks), "lora_alpha": draw(alphas), "use_rslora": draw(st.booleans())}
    options |= {"rank_pattern": draw(st.dictionaries(st.sampled_from(LORA_TARGETS), ranks))}
    options |= {"alpha_pattern": draw(st.dictionaries(st.sampled_from(LORA_TARGETS), alphas))}
    rank = {name: options["rank_pattern"].get(name, options["r"]) for name in targets}
    divisor = {name: math.sqrt(rank[name]) if options["use_rslora"] else rank[name] for name in targets}
    scale = {name: options["alpha_pattern"].get(name, options["lora_alpha"]) / divisor[name] for name in targets}
    return {**options, "target_modules": targets}, rank, scale


@given(drawn=settings_of_peft())
def test_ranks_and_scales_by_layer_add_what_pefts_rule_says_and_survive_a_round_trip(drawn, tmp_path_factory):
    options, rank, scale = drawn
    model, folder = al.tiny_model(num_layers=1, hidden_size=16, intermediate_size=24), tmp_path_factory.mktemp("drawn")
    rng, tensors = np.random.default_rng(0), {}
    for name in options["target_modules"]:
        out, inside = array_of(model, 0, name, "weight").shape
        key = f"base_model.model.model.layers.0.{MODULES[name]}.{name}"
        tensors[f"{key}.lora_A.weight"] = rng.standard_normal((rank[name], inside), np.float32)
        tensors[f"{key}.lora_B.weight"] = rng.standard_normal((out, rank[name]), np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny-0", **options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    adapted = al.load_adapters(model, folder)
    saved = al.save_adapters(adapted, folder / "saved")
    written = json.loads((saved / "adapter_config.json").read_text())
    wanted = updates(tensors, lambda layer, _: scale[layer.rpartition(".")[2]])
    got = updates(load_file(saved / "adapter_model.safetensors"), lambda _, rows: written["lora_alpha"] / rows)
    assert wanted.keys() == got.keys()
    folded = merged(adapted)
    for layer, change in wanted.items():
        name = layer.rpartition(".")[2]
        np.testing.assert_allclose(got[layer], change, rtol=1e-5, atol=1e-5)
        before, after = (array_of(one, 0, name, "weight") for one in (model, folded))
        np.testing.assert_allclose(after, before + change, rtol=1e-4, atol=1e-4)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"),
        ("init_lora_weights", "loftq"),
        ("layer_replication", [[0, 2], [1, 2]]),
        ("trainable_token_indices", [3]),
        ("target_parameters", ["mlp.experts"]),
        ("use_qalora", True),
        ("alora_invocation_tokens", [1, 2]),
        ("arrow_config", {"top_k": 2}),
        ("kasa_config", {"rank": 2}),
        ("megatron_config", {"a": 1}),
        ("task_type", "SEQ_CLS"),
        ("peft_type", "IA3"),
        ("peft_type", None),
        ("an_option_of_next_year", True),
    ],
)
def test_an_option_that_changes_what_is_computed_is_refused_by_name(option, value, qwen2, folder):
    edit_config(folder, **{option: value})
    with pytest.raises(ModelError, match=rf"adapter_config\.json says {option}=.*merge_and_unload"):
        al.load_adapters(qwen2, folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 0},
        {"r": "four"},
        {"r": 2.5},
        {"lora_alpha": float("inf")},
        {"lora_alpha": "much"},
        {"rank_pattern": {"q_proj": 0}},
        {"rank_pattern": {"q_proj(": 4}},
        {"rank_pattern": ["q_proj"]},
        {"target_modules": "q_proj("},
        {"target_modules": 7},
        {"target_modules": [1]},
        {"exclude_modules": "("},
    ],
)
def test_impossible_values_are_refused(changes, qwen2, folder):
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match="describes impossible adapters"):
        al.load_adapters(qwen2, folder)


@pytest.mark.parametrize("option", ["r", "lora_alpha", "target_modules"])
def test_a_config_without_what_it_needs_names_it(option, qwen2, folder):
    edit_config(folder, **{option: None})
    with pytest.raises(ModelError, match=f"must say '{option}'"):
        al.load_adapters(qwen2, folder)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: (t.pop(f"{Q}.lora_A.weight"), t.pop(f"{Q}.lora_B.weight")), "exactly the 14 layers .* has 13"),
        (lambda t: t.pop(f"{Q}.lora_B.weight"), r"lora_B of .*q_proj must be \[24, 4\] .* and is missing"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.ones((3, 24), np.float32)}), r"rank 4, and is \[3, 24\]"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.full((4, 24), np.nan, np.float32)}), "must hold finite numbers"),
        (lambda t: t.update({"base_model.model.lm_head.weight": np.ones((40, 24), np.float32)}), "and holds .*lm_head"),
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": np.ones(24, np.float32)}), "lora_magnitude_vector"),
        (
            lambda t: t.update({Q.replace("layers.0", "layers.9") + ".lora_A.weight": np.ones((4, 24), np.float32)}),
            "holds adapters on 1 layers that",
        ),
        (lambda t: t.clear(), "exactly the 14 layers .* has 0"),
    ],
)
def test_a_file_that_is_not_what_its_config_says_is_refused(change, message, qwen2, folder):
    edit_weights(folder, change)
    with pytest.raises(ModelError, match=message):
        al.load_adapters(qwen2, folder)


def test_adapters_that_the_config_does_not_name_are_refused_and_not_left_out(qwen2, folder):
    edit_config(folder, target_modules=["q_proj", "v_proj"])
    with pytest.raises(ModelError, match="exactly the 4 layers .* has 14"):
        al.load_adapters(qwen2, folder)


def test_adapters_of_another_model_are_refused(folder):
    with pytest.raises(ModelError, match=r"for this model and rank 4"):
        al.load_adapters(al.tiny_model(model_type="qwen2"), folder)


def test_a_folder_that_is_none_or_holds_no_weights_is_named(qwen2, folder, tmp_path):
    with pytest.raises(ModelError, match=r"adapter_config\.json must exist"):
        al.load_adapters(qwen2, tmp_path / "nowhere")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"must hold adapter_model\.safetensors"):
        al.load_adapters(qwen2, folder)


def test_a_model_gets_adapters_once(qwen2, folder):
    with pytest.raises(ConfigError, match="has adapters already"):
        al.load_adapters(al.load_adapters(qwen2, folder), folder)


def test_another_base_on_the_hub_is_told_and_a_copy_of_the_same_is_not(qwen2, folder):
    named = replace(qwen2, name="somebody/tiny-qwen2")
    edit_config(folder, base_model_name_or_path="Other/Tiny-Qwen2")
    al.load_adapters(named, folder)
    edit_config(folder, base_model_name_or_path="Other/Tiny-Qwen2-Instruct")
    with pytest.warns(UserWarning, match="belong to Other/Tiny-Qwen2-Instruct, and they are put on somebody"):
        al.load_adapters(named, folder)


# -- types and folders ----------------------------------------------------------------------------


def test_adapters_stay_float32_on_a_model_of_half_precision_and_are_saved_without_loss(tmp_path):
    model = stored_model("gemma2_caps_one_kv_head", tmp_path / "model", dtype="bfloat16")
    adapted = al.load_adapters(model, ADAPTERS / "gemma2_caps_one_kv_head")
    tokens = np.load(FIXTURES / "models" / "gemma2_caps_one_kv_head" / "reference.npz")["tokens"]
    wanted = np.load(ADAPTERS / "gemma2_caps_one_kv_head" / "logits.npz")["logits"]
    assert np.abs(logits_of(adapted, tokens) - wanted).max() < 0.2
    theirs = load_file(ADAPTERS / "gemma2_caps_one_kv_head" / "adapter_model.safetensors")
    ours = load_file(al.save_adapters(adapted, tmp_path / "saved") / "adapter_model.safetensors")
    for key in theirs:
        np.testing.assert_array_equal(ours[key], theirs[key])


@pytest.mark.parametrize("model_type", FAMILIES)
def test_fresh_adapters_of_every_family_are_read_back_as_they_were(model_type, tmp_path):
    model = al.tiny_model(model_type=model_type, dtype=jnp.bfloat16)
    adapted = add_lora(model, 3, alpha=5.5, targets=("v_proj", "down_proj"))
    again = al.load_adapters(model, al.save_adapters(adapted, tmp_path / "saved"))
    assert again.config == adapted.config
    for one, other in zip(jax.tree.leaves(again.params), jax.tree.leaves(adapted.params), strict=True):
        np.testing.assert_array_equal(one.astype(jnp.float32), other.astype(jnp.float32))


def test_saving_refuses_a_model_without_adapters_and_a_folder_that_holds_something(qwen2, folder, tmp_path):
    with pytest.raises(ConfigError, match="has no adapters to save"):
        al.save_adapters(qwen2, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ModelError, match="must be a new or an empty folder"):
        al.save_adapters(al.load_adapters(qwen2, folder), folder)
    with pytest.raises(ConfigError, match="takes a run, a learner or a model, got dict"):
        al.save_adapters({"lora_a": 1}, tmp_path / "new")
