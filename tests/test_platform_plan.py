"""A plan says where engine and trainer run and what memory that takes, before anything is allocated."""

from dataclasses import replace

import pytest

from agentlab.errors import ConfigError
from agentlab.learner import GRPOConfig
from agentlab.models.config import DecoderConfig
from agentlab.platform import Device, Platform, plan
from agentlab.platform.placement import adapter_parameters, memory_needs

SMOLLM2 = DecoderConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
    tied_embeddings=True,
)  # fmt: skip
LARGE = replace(SMOLLM2, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8,
                head_dim=128)  # fmt: skip
GIB = 2**30


def machine(count, *, kind="TPU v5 lite", memory=16 * GIB, platform="tpu", main=None):
    return Platform("kaggle", "3.12", "linux", 8, main, (Device(platform, kind, memory),) * count)


def test_one_device_does_both_and_eight_are_split():
    one, eight = (plan(SMOLLM2, GRPOConfig(), machine=machine(count)) for count in (1, 8))
    assert one.mode == "colocated" and one.engine == one.trainer == (0,)
    assert eight.mode == "disaggregated"
    assert eight.engine == (0, 1, 2, 3) and eight.trainer == (4, 5, 6, 7)
    assert one.fits and eight.fits and one.check() is one


def test_processor_cores_do_both_in_the_memory_that_they_share():
    found = plan(SMOLLM2, GRPOConfig(), machine=machine(8, kind="cpu", memory=None, platform="cpu", main=12 * GIB))
    assert found.mode == "colocated" and found.limit_bytes == int(12 * GIB * 0.92)


def test_a_model_too_large_for_half_of_the_devices_is_spread_over_all():
    lean = GRPOConfig(num_slots=8, tokens_per_slot=512, remat=True, lora_rank=0)

    def placed(gib, **options):
        return plan(LARGE, lean, machine=machine(2, memory=gib * GIB), **options)

    tight = next(gib for gib in range(8, 400) if placed(gib, mode="colocated").fits)
    assert not placed(tight, mode="disaggregated").fits
    found = placed(tight)
    assert found.mode == "colocated" and found.engine == found.trainer == (0, 1) and found.fits


def test_what_does_not_fit_is_refused_with_what_to_lower_and_then_fits():
    config = GRPOConfig(max_concurrency=512, tokens_per_slot=2048)
    crowded = plan(SMOLLM2, config, machine=machine(1))
    assert not crowded.fits
    with pytest.raises(ConfigError, match="must fit into the memory of its devices") as error:
        crowded.check()
    assert "keys and values" in str(error.value) and "num_slots" in str(error.value)
    for text in crowded.advice:
        if text.startswith("It would fit with num_slots="):
            slots = int(text.removesuffix(".").partition("=")[2])
            assert plan(SMOLLM2, replace(config, num_slots=slots), machine=machine(1)).fits
            break
    else:
        raise AssertionError("nothing was advised that would make it fit")


def test_decoding_that_would_wait_long_for_a_micro_batch_is_told():
    slow = machine(1, kind="cpu", memory=None, platform="cpu", main=64 * GIB)
    told = plan(SMOLLM2, GRPOConfig(micro_batch_tokens=8192), machine=slow)
    assert any("lower micro_batch_tokens to" in text for text in told.advice)
    assert not plan(SMOLLM2, GRPOConfig(), machine=machine(1)).advice


def test_the_estimate_counts_weights_adapters_and_cache_exactly():
    config = GRPOConfig(num_slots=8, tokens_per_slot=1024, lora_rank=16)
    needs = {need.name: need.size_bytes for need in memory_needs(SMOLLM2, config, 4)}
    assert needs["weights that sample"] == 4 * 134_515_008
    assert needs["keys and values"] == 8 * 1024 * 30 * 2 * 3 * 64 * 4 * 3 // 2
    per_layer = 16 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))
    assert adapter_parameters(SMOLLM2, 16) == 30 * per_layer
    assert needs["optimizer state"] == 2 * 4 * 30 * per_layer


def test_frozen_weights_need_room_for_one_layer_or_for_their_quantised_copy():
    def frozen(**options):
        needs = memory_needs(SMOLLM2, GRPOConfig(**options), 4)
        return next(need.size_bytes for need in needs if need.name == "frozen weights")

    per_layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    assert frozen(lora_rank=16) == 4 * per_layer
    assert frozen(lora_rank=16, base_type="int8") == 30 * per_layer * 17 // 16
    assert frozen(lora_rank=16, base_type="nf4") == 30 * per_layer * 9 // 16
    assert frozen(lora_rank=0) == 0


def test_it_reads_as_a_table():
    text = str(plan(SMOLLM2, GRPOConfig(), machine=machine(8)))
    assert text.startswith("Plan: disaggregated on 8 x TPU v5 lite (4 sample, 4 train), about ")
    assert "optimizer state" in text and "GiB" in text


def test_a_split_of_one_device_is_refused():
    with pytest.raises(ConfigError, match="needs at least 2 devices, got 1"):
        plan(SMOLLM2, GRPOConfig(), machine=machine(1), mode="disaggregated")


def test_the_number_of_devices_that_sample_can_be_chosen():
    found = plan(SMOLLM2, GRPOConfig(), machine=machine(8), mode="disaggregated", engine_devices=3)
    assert found.engine == (0, 1, 2) and found.trainer == (3, 4, 5, 6, 7)
    assert "(3 sample, 5 train)" in found.line()
    for wrong in (0, 8, -1):
        with pytest.raises(ConfigError, match=f"engine_devices must lie between 1 and 7, got {wrong}: there are 8"):
            plan(SMOLLM2, GRPOConfig(), machine=machine(8), mode="disaggregated", engine_devices=wrong)
    with pytest.raises(ConfigError, match="engine_devices must be left out where every device samples and trains"):
        plan(SMOLLM2, GRPOConfig(), machine=machine(8), mode="colocated", engine_devices=3)


def test_devices_that_train_apart_hold_all_weights_each_and_those_that_sample_a_share():
    config = GRPOConfig(num_slots=8, tokens_per_slot=1024, lora_rank=0)
    needs = {need.name: need.size_bytes for need in memory_needs(SMOLLM2, config, 4) if need.where == "trainer"}
    shared, copied = (
        plan(SMOLLM2, config, machine=machine(8), mode="disaggregated", engine_devices=number) for number in (3, 4)
    )
    assert shared.device_bytes("trainer") == copied.device_bytes("trainer") == sum(needs.values())
    weights, cache = 4 * SMOLLM2.num_parameters, 8 * 1024 * 30 * 2 * 3 * 64 * 4 * 3 // 2
    assert shared.device_bytes("engine") == weights + 2 * -(-weights // 3) + cache // 3
    assert copied.device_bytes("engine") == weights + 2 * -(-weights // 4) + cache, "3 heads cannot be shared by 4"
    assert " each" in str(copied)


def test_a_micro_batch_that_is_one_row_already_is_made_shorter_by_shorter_rows():
    slow = machine(1, kind="cpu", memory=None, platform="cpu", main=64 * GIB)
    (told,) = plan(SMOLLM2, GRPOConfig(micro_batch_tokens=512, row_tokens=512), machine=slow).advice
    assert told.endswith("lower row_tokens and micro_batch_tokens.")
