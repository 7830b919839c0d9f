"""What a run measures of its model calls: waiting, reading, sampling, and what the engine's cache saved."""

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.inference import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.rollout.calls import ModelCalls
from agentlab.types import Completion, EngineStats, GenerationRequest, SamplingParams


def call(prompt: int, computed: int, queued_s: float = 0.0, tokens: int = 2) -> tuple[GenerationRequest, Completion]:
    request = GenerationRequest("a", "a", tuple(range(prompt)), SamplingParams())
    some = (1,) * tokens
    return request, Completion("a", some, some, some, "stop", num_prefilled=computed, queued_s=queued_s, decode_s=2.0)


def test_means_are_over_the_calls_since_the_last_look():
    calls = ModelCalls()
    calls.add(*call(10, 10, 1.0))
    calls.add(*call(30, 10, 3.0))
    found = calls.measures(EngineStats(cache_used=0.25))
    wanted = {"call_queued_s": 2.0, "call_prefill_s": 0.0, "call_decode_s": 2.0}
    assert found == {**wanted, "prompt_cached_share": 0.5, "cache_used": 0.25}
    assert all(math.isnan(value) for value in calls.measures(EngineStats()).values())


def test_calls_that_nobody_asks_about_are_not_piled_up():
    calls, one = ModelCalls(), call(10, 10)
    calls.add(*one)
    tracemalloc.start()
    for _ in range(5_000):
        calls.add(*one)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 50_000
    assert calls.measures(EngineStats())["call_decode_s"] == 2.0


def test_a_call_that_never_reached_the_engine_counts_nothing():
    calls = ModelCalls()
    calls.add(*call(10, 0, tokens=0))
    assert math.isnan(calls.measures(EngineStats())["prompt_cached_share"])


@given(st.lists(st.integers(1, 100).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1))
def test_the_cached_share_is_that_of_all_prompt_tokens(sizes):
    calls = ModelCalls()
    for prompt, computed in sizes:
        calls.add(*call(prompt, computed))
    share = calls.measures(EngineStats())["prompt_cached_share"]
    assert share == pytest.approx(1 - sum(c for _, c in sizes) / sum(p for p, _ in sizes))


def test_an_orchestrator_measures_the_calls_of_its_episodes():
    import agentlab as al

    class Talk(al.BaseTaskEnv):
        def _initial_observation(self):
            return "hello"

        def _step_impl(self, action):
            return al.EnvStepResult("go on", 1.0, self.turn == 1, {})

    engine = ScriptedEngine("yes", latency_s=0.001, token_rate=1000.0)
    orchestrator = RolloutOrchestrator(
        engine=engine, agent_class=al.ModelAgent, env_class=Talk, config=RolloutConfig(group_size=2, groups_per_step=1)
    )
    assert len(list(orchestrator.iterate([{"prompt": "?"}] * 2))) == 2
    found, stats = orchestrator.calls.measures(engine.stats()), engine.stats()
    prompts = stats.tokens_cached + stats.tokens_prefilled
    assert found["prompt_cached_share"] == pytest.approx(stats.tokens_cached / prompts)
    assert found["prompt_cached_share"] > 0
    assert found["call_prefill_s"] == 0.001
    assert found["call_decode_s"] > 0
