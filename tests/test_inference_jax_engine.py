"""The built-in engine: exact numbers, cache reuse, updates, compilations, death."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentlab.bench.engine_load import gather
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.jax_engine import JaxEngine
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import tiny_model
from agentlab.models.attention import attend
from agentlab.tracing import now_ns, spans
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

MODEL = tiny_model(seed=0)
OTHER = tiny_model(seed=1)
SLOT = 192
SHAPES = Shapes(
    decode_rows=(2, 8), prefill=(PrefillSize(1, 32), PrefillSize(4, 16)), contexts=(SLOT,), prefill_contexts=(SLOT,)
)


def new_engine(**options: Any) -> JaxEngine:
    return JaxEngine(MODEL, **{"num_slots": 8, "tokens_per_slot": SLOT, "max_dispatch": 4, "shapes": SHAPES, **options})


def ask(id: str, prompt: tuple[int, ...], *, session: str | None = None, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(id, session or id, prompt, SamplingParams(**{"max_tokens": 8, **sampling}))


def serve(engine: JaxEngine, body: Callable[[], Awaitable[Any]]) -> Any:
    """What `body` returns, while the engine serves."""

    async def main() -> Any:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            result = await body()
            serving.cancel_scope.cancel()
        return result

    return anyio.run(main)


@jax.jit
def forward(params: Any, tokens: jax.Array) -> jax.Array:
    """Log-probabilities [T, V] by one full pass over tokens [1, T], without any cache."""
    from dataclasses import replace

    decoder = replace(MODEL, params=params).decoder()
    size = tokens.shape[1]
    mask = jnp.tril(jnp.ones((1, size, size), bool))
    scale = MODEL.config.attention_scale
    hidden = decoder(tokens, jnp.arange(size)[None], lambda _, q, k, v: attend(q, k, v, mask, scale=scale))
    return jax.nn.log_softmax(decoder.logits(hidden)[0])


def expected_logprobs(request: GenerationRequest, completion: Completion, params: Any = MODEL.params) -> np.ndarray:
    """[N, V]: the model's log-probabilities where the completion's tokens were sampled."""
    row = (request.prompt + completion.tokens)[:SLOT]
    padded = np.zeros((1, SLOT), np.int32)
    padded[0, : len(row)] = row
    first = len(request.prompt) - 1
    return np.asarray(forward(params, padded))[first : first + len(completion.tokens)]


def check_exact(request: GenerationRequest, completion: Completion) -> None:
    """Greedy tokens are the full pass's, and log-probabilities are equal to 1e-3."""
    expected = expected_logprobs(request, completion)
    chosen = expected[np.arange(len(completion.tokens)), list(completion.tokens)]
    np.testing.assert_allclose(completion.logprobs, chosen, atol=1e-3)
    if request.sampling.temperature == 0:
        np.testing.assert_allclose(chosen, expected.max(axis=1), atol=1e-4)


def test_a_conversation_prefills_only_what_is_new():
    engine = new_engine()

    async def body() -> tuple[int, int]:
        prompt, new = tuple(range(60, 100)), 40
        for turn in range(4):
            request = ask(f"turn {turn}", prompt, session="s", temperature=0.0 if turn % 2 else 1.0, seed=turn)
            completion = await engine.generate(request)
            check_exact(request, completion)
            assert completion.num_prefilled <= (40 if turn == 0 else 26)
            prompt += completion.tokens + tuple(range(100, 125))
            new += 25 * (turn < 3)
        return engine.stats().tokens_prefilled, new

    prefilled, new = serve(engine, body)
    assert prefilled <= 1.05 * new


def test_a_group_prefills_its_prompt_once_and_its_members_differ_and_repeat():
    prompt = tuple(range(100, 220))
    requests = [ask(str(i), prompt, seed=1000 + i) for i in range(8)]
    engine, again = new_engine(), new_engine()
    completions = serve(engine, lambda: gather(engine, requests))
    assert engine.stats().tokens_prefilled <= 1.1 * len(prompt)
    assert len({c.tokens for c in completions}) == 8
    for request, completion in zip(requests, completions, strict=True):
        check_exact(request, completion)
    assert [c.tokens for c in serve(again, lambda: gather(again, requests))] == [c.tokens for c in completions]


def test_a_new_session_shares_nothing_that_older_weights_computed():
    engine, cold = new_engine(), new_engine()
    prompt = tuple(range(100, 180))

    async def body() -> Completion:
        await engine.generate(ask("before", prompt))
        engine.update_policy(Policy(1, OTHER.params))
        return await engine.generate(ask("after", prompt, temperature=0.0))

    after = serve(engine, body)
    cold.update_policy(Policy(1, OTHER.params))
    request = ask("cold", prompt, temperature=0.0)
    expected = serve(cold, lambda: cold.generate(request))
    assert after.num_prefilled == len(prompt)
    assert after.tokens == expected.tokens
    np.testing.assert_allclose(after.logprobs, expected.logprobs, atol=1e-5)
    chosen = expected_logprobs(request, after, OTHER.params).max(axis=1)
    np.testing.assert_allclose(after.logprobs, chosen, atol=1e-3)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_conversation_keeps_its_cache_over_an_update_unless_asked_otherwise(recompute):
    engine = new_engine(recompute_on_update=recompute)
    prompt = tuple(range(100, 160))

    async def body() -> tuple[GenerationRequest, Completion]:
        first = await engine.generate(ask("first", prompt, session="s"))
        engine.update_policy(Policy(1, OTHER.params))
        request = ask("second", prompt + first.tokens + (77,) * 9, session="s", temperature=0.0)
        return request, await engine.generate(request)

    request, second = serve(engine, body)
    assert second.num_prefilled == (len(request.prompt) if recompute else 10)
    exact = expected_logprobs(request, second, OTHER.params).max(axis=1)
    assert np.allclose(second.logprobs, exact, atol=1e-3) == recompute


def test_after_warm_up_nothing_is_compiled_and_a_second_engine_compiles_nothing():
    engine, started_ns = new_engine(num_slots=4), now_ns()
    assert engine.warm_up(progress=False) == 5
    assert sum(s.stage == "compile" for s in spans(started_ns)) == 5
    rng = np.random.default_rng(0)
    requests = [
        ask(str(i), tuple(rng.integers(3, 250, rng.integers(1, SLOT)).tolist()), max_tokens=6, top_p=0.9, seed=i)
        for i in range(60)
    ]
    serve(engine, lambda: gather(engine, requests))
    second = new_engine(num_slots=4)
    serve(second, lambda: gather(second, requests[:8]))
    assert sum(s.stage == "compile" for s in spans(started_ns)) == 5
    assert engine.stats().compilations == second.stats().compilations == 0


def test_device_work_is_traced_and_adds_up_to_the_busy_time():
    engine, started_ns = new_engine(), now_ns()
    serve(engine, lambda: engine.generate(ask("a", tuple(range(50, 130)))))
    mine = [s for s in spans(started_ns) if s.thread == "agentlab-engine"]
    work = [s for s in mine if s.stage in ("prefill", "decode")]
    assert sum(s.tags["tokens"] for s in work if s.stage == "prefill") == 80
    assert sum(s.duration_s for s in work) == pytest.approx(engine.stats().busy_s)
    assert [s.stage for s in mine].count("queueing") == 1


def test_the_death_of_the_engine_reaches_those_who_wait_and_those_who_come(monkeypatch):
    engine = new_engine()
    engine.warm_up(progress=False)
    heard: list[EngineError] = []

    async def waiter() -> None:
        with pytest.raises(EngineError, match="died: RuntimeError: the device is gone") as caught:
            await engine.generate(ask("a", (5, 6, 7)))
        heard.append(caught.value)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(EngineError) as caught:
                await engine.serve()
            heard.append(caught.value)
        await waiter()
        with pytest.raises(EngineError):
            await engine.serve()

    def gone(*_: Any, **__: Any) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr("agentlab.inference.programs.prefill", gone)
    anyio.run(main)
    assert len(heard) == 5
    assert all(isinstance(error.__cause__, RuntimeError) for error in heard)
    with pytest.raises(EngineError):
        engine.update_policy(Policy(1, MODEL.params))


def test_parameters_of_another_structure_are_refused_by_name():
    engine = new_engine()
    with pytest.raises(ConfigError, match=r"embed_tokens.*must have shape \(259, 64\), got \(259, 32\)"):
        engine.update_policy(Policy(1, tiny_model(hidden_size=32).params))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_slots": 0}, "num_slots must be at least 1"),
        ({"tokens_per_slot": 5000}, "the model's context of 4096"),
        ({"num_slots": 9}, "decode_rows must reach num_slots=9"),
        ({"tokens_per_slot": 100}, "must be tokens_per_slot=100"),
    ],
)
def test_impossible_sizes_are_refused_at_construction(options, words):
    with pytest.raises(ConfigError, match=words):
        new_engine(**options)
