"""Slots and cache planned from memory: as many as fit, never more, and numbers where nothing fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import ConfigError
from agentlab.inference.jax_engine import JaxEngine
from agentlab.inference.memory import WORKING_SHARE, MemoryPlan, plan_memory
from agentlab.models import tiny_model
from agentlab.platform.detect import free_memory_bytes, usable_memory_bytes

MODEL = tiny_model(seed=0)
SLOT_BYTES = 2 * 2 * 2 * 16 * 64 * 4
"""Keys and values of 2 layers with 2 heads of 16 numbers, 64 tokens, float32."""


def plan(**options) -> MemoryPlan:
    usual = {
        "num_slots": None,
        "max_slots": 32,
        "tokens_per_slot": 64,
        "item_bytes": 4,
        "free_bytes": None,
        "share": 0.5,
    }
    return plan_memory(MODEL.config, **{**usual, **options})


@given(free_bytes=st.integers(0, 10**8), share=st.floats(0.01, 1.0), max_slots=st.integers(1, 300))
def test_a_plan_takes_all_slots_that_fit_and_none_that_does_not(free_bytes, share, max_slots):
    usable = free_bytes * share
    needed = SLOT_BYTES * (1 + WORKING_SHARE)
    if usable < needed:
        with pytest.raises(ConfigError, match="one slot of 64 tokens need"):
            plan(free_bytes=free_bytes, share=share, max_slots=max_slots)
        return
    made = plan(free_bytes=free_bytes, share=share, max_slots=max_slots)
    assert made.cache_bytes == made.num_slots * SLOT_BYTES
    assert made.num_slots * needed <= usable
    assert made.num_slots == max_slots or (made.num_slots + 1) * needed > usable


def test_slots_that_do_not_fit_are_refused_with_numbers():
    with pytest.raises(ConfigError, match=r"50% of the 0.00 GB.*8 slots of 64 tokens need .* GB.*; 4 would fit"):
        plan(num_slots=8, free_bytes=int(4.5 * SLOT_BYTES * 1.5 * 2))
    assert plan(num_slots=8, free_bytes=int(8.5 * SLOT_BYTES * 1.5 * 2)).num_slots == 8


def test_an_engine_plans_its_slots_and_says_so():
    engine = JaxEngine(MODEL, tokens_per_slot=64, max_slots=5)
    assert engine.plan.num_slots == engine.stats().num_slots == 5
    assert str(engine.plan).startswith("5 slots of 64 tokens: 0.00 GB of cache (free: ")
    with pytest.raises(ConfigError, match="would fit"):
        JaxEngine(MODEL, num_slots=10**9, tokens_per_slot=64)


def test_free_memory_is_a_part_of_the_machines():
    free, whole = free_memory_bytes(), usable_memory_bytes()
    assert free is None or whole is None or 0 < free <= whole
