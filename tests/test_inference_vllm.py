"""vLLM as engine: what it answers, whose weights it uses, and what happens when it dies."""

from collections.abc import Iterator
from dataclasses import replace

import anyio
import jax
import numpy as np
import pytest
from training_cases import plain_logprobs
from vllm_cases import in_process_engine, needs_vllm, server_engine, small_model

from agentlab.errors import ConfigError
from agentlab.inference import Engine, JaxEngine, VLLMEngine, VLLMServerEngine
from agentlab.models import Model, add_lora, load_model, tiny_model
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

pytestmark = [pytest.mark.vllm, needs_vllm, pytest.mark.timeout(900)]

CONTEXT = 512
MODEL, OTHER = small_model(0), small_model(1)
PROMPT = tuple(MODEL.tokenizer.encode("What is six times seven?"))


@pytest.fixture(scope="module")
def server() -> Iterator[VLLMServerEngine]:
    with server_engine(MODEL, CONTEXT) as engine:
        yield engine


@pytest.fixture(scope="module")
def in_process() -> Iterator[VLLMEngine]:
    with in_process_engine(MODEL, CONTEXT) as engine:
        yield engine


@pytest.fixture(params=["server", "in_process"])
def engine(request: pytest.FixtureRequest) -> Engine:
    engine: Engine = request.getfixturevalue(request.param)
    engine.update_policy(Policy(0, MODEL.params))
    return engine


def ask(id: str, prompt: tuple[int, ...] = PROMPT, **sampling: object) -> GenerationRequest:
    return GenerationRequest(id, id, prompt, SamplingParams(**{"max_tokens": 8, **sampling}))


def served(engine: Engine, requests: list[GenerationRequest]) -> list[Completion]:
    done: dict[str, Completion] = {}

    async def one(request: GenerationRequest) -> None:
        done[request.id] = await engine.generate(request)

    async def main() -> None:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            async with anyio.create_task_group() as asking:
                for request in requests:
                    asking.start_soon(one, request)
            serving.cancel_scope.cancel()

    anyio.run(main)
    return [done[request.id] for request in requests]


def test_greedy_tokens_equal_those_of_the_built_in_engine(engine):
    prompts = [PROMPT, PROMPT[:3], PROMPT + PROMPT]
    requests = [ask(str(i), prompt, temperature=0.0, max_tokens=24) for i, prompt in enumerate(prompts)]
    ours = served(JaxEngine(MODEL, num_slots=4, tokens_per_slot=CONTEXT), requests)
    theirs = served(engine, requests)
    assert [c.tokens for c in theirs] == [c.tokens for c in ours]
    assert [c.finish_reason for c in theirs] == [c.finish_reason for c in ours]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_logprobs_are_those_the_trainer_computes(engine, temperature):
    completion = served(engine, [ask("a", temperature=temperature, max_tokens=24, seed=3)])[0]
    assert len(completion.tokens) > 4
    found = plain_logprobs(MODEL, PROMPT + completion.tokens, temperature)[-len(completion.tokens) :]
    np.testing.assert_allclose(completion.logprobs, found, atol=5e-3)


@pytest.mark.parametrize("only_one_left", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.9999}])
def test_a_distribution_cut_to_one_token_gives_the_greedy_ones_with_certainty(engine, only_one_left):
    requests = [ask("greedy", temperature=0.0), ask("cut", seed=3, **only_one_left)]
    greedy, cut = served(engine, requests)
    assert cut.tokens == greedy.tokens
    np.testing.assert_allclose(cut.logprobs, 0.0, atol=1e-4)


def test_a_full_context_and_a_prompt_that_never_fits_harm_nobody(engine):
    requests = [
        ask("fits", temperature=0.0),
        ask("full", (5,) * CONTEXT),
        ask("over", (5,) * (CONTEXT + 50)),
        ask("nearly", (5,) * (CONTEXT - 3), seed=5, max_tokens=50),
    ]
    fits, full, over, nearly = served(engine, requests)
    assert fits.finish_reason in ("length", "stop")
    assert (full.finish_reason, full.tokens, over.finish_reason, over.tokens) == ("context", (), "context", ())
    assert (nearly.finish_reason, len(nearly.tokens)) == ("context", 3)


def test_new_weights_answer_as_a_cold_engine_of_theirs(engine):
    request = ask("a", temperature=0.0, max_tokens=16)
    cold = served(JaxEngine(OTHER, num_slots=1, tokens_per_slot=CONTEXT), [request])[0]
    before = served(engine, [request])[0]
    engine.update_policy(Policy(5, OTHER.params))
    after = served(engine, [request])[0]
    assert after.tokens == cold.tokens != before.tokens
    assert set(after.policy_versions) == {5}
    assert engine.stats().policy_version == 5


def test_a_request_in_flight_goes_on_under_new_weights_and_every_token_names_its_own(engine):
    seen: list[Completion] = []

    async def talk(name: str) -> None:
        while not any(len(set(c.policy_versions)) > 1 for c in seen):
            seen.append(await engine.generate(ask(name, (5,), max_tokens=CONTEXT - 2, temperature=0.0)))

    async def main() -> None:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as serving:
                serving.start_soon(engine.serve)
                async with anyio.create_task_group() as asking:
                    for i in range(16):
                        asking.start_soon(talk, str(i))
                    for version in range(11, 1000):
                        if any(len(set(c.policy_versions)) > 1 for c in seen):
                            break
                        engine.update_policy(Policy(version, MODEL.params))
                        await anyio.sleep(0.2)
                serving.cancel_scope.cancel()

    anyio.run(main)
    for completion in seen:
        assert list(completion.policy_versions) == sorted(completion.policy_versions)
        assert completion.finish_reason in ("length", "stop", "context")


def test_an_update_while_requests_run_leaves_nothing_of_the_old_weights_in_the_cache(engine):
    """vLLM resets its prefix cache only when no request holds a part of it."""
    prompt = PROMPT * 12
    request = ask("a", prompt, temperature=0.0, max_tokens=16)
    cold = served(JaxEngine(OTHER, num_slots=1, tokens_per_slot=CONTEXT), [request])[0]
    under_way: list[bool] = []

    async def main() -> Completion:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            await engine.generate(request)
            ended: list[Completion] = []

            async def others(seed: int) -> None:
                while not under_way:
                    ended.append(await engine.generate(ask(f"o{seed}", prompt[:64], max_tokens=400, seed=seed)))

            async with anyio.create_task_group() as asking:
                for seed in range(16):
                    asking.start_soon(others, seed)
                while not ended:
                    await anyio.sleep(0.01)
                engine.update_policy(Policy(7, OTHER.params))
                after = await engine.generate(request)
                under_way.append(True)
            serving.cancel_scope.cancel()
        return after

    after = anyio.run(main)
    assert after.tokens == cold.tokens
    assert set(after.policy_versions) == {7}
    np.testing.assert_allclose(after.logprobs, cold.logprobs, atol=5e-3)


def test_an_older_version_may_be_given_after_a_newer_one(engine):
    request = ask("a", temperature=0.0, max_tokens=16)
    cold = [served(JaxEngine(m, num_slots=1, tokens_per_slot=CONTEXT), [request])[0].tokens for m in (MODEL, OTHER)]
    found = []
    for version, model in ((9, MODEL), (2, OTHER), (2, MODEL)):
        engine.update_policy(Policy(version, model.params))
        found.append(served(engine, [request])[0])
    assert [set(c.policy_versions) for c in found] == [{9}, {2}, {2}]
    assert [c.tokens for c in found] == [cold[0], cold[1], cold[0]]


@pytest.mark.parametrize("pause", ["wait", "abort"])
def test_an_update_that_waits_or_ends_requests_leaves_every_completion_to_one_policy(server, pause):
    engine = VLLMServerEngine(server.urls, model=MODEL, pause=pause)
    seen: list[Completion] = []

    async def talk(seed: int) -> None:
        while len({version for c in seen for version in c.policy_versions}) < 4:
            seen.append(await engine.generate(ask(str(seed), (5,), max_tokens=200, seed=seed)))

    async def main() -> None:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            with anyio.fail_after(120):
                async with anyio.create_task_group() as asking:
                    for seed in range(8):
                        asking.start_soon(talk, seed)
                    for version in range(1, 4):
                        while not any(version - 1 in c.policy_versions for c in seen):
                            await anyio.sleep(0.01)
                        engine.update_policy(Policy(version, OTHER.params))
            serving.cancel_scope.cancel()

    anyio.run(main)
    assert {len(set(c.policy_versions)) for c in seen} == {1}
    assert all(c.finish_reason in ("length", "stop") for c in seen)


def test_adapters_are_served_merged(server):
    adapted = add_lora(MODEL, 4)
    leaves, form = jax.tree.flatten(adapted.params)
    rng = np.random.default_rng(0)
    moved = jax.tree.unflatten(form, [leaf + 0.05 * rng.standard_normal(leaf.shape, np.float32) for leaf in leaves])
    trained = replace(adapted, params=moved)
    engine = VLLMServerEngine(server.urls, model=trained)
    requests = [ask(str(n), PROMPT[: n + 2], temperature=0.0, max_tokens=16) for n in range(3)]
    ours = served(JaxEngine(trained, num_slots=4, tokens_per_slot=CONTEXT), requests)
    theirs = served(engine, requests)
    assert [c.tokens for c in theirs] == [c.tokens for c in ours]
    np.testing.assert_allclose(theirs[0].logprobs, ours[0].logprobs, atol=5e-3)


def test_weights_of_another_shape_are_refused_before_anything_is_touched(engine):
    with pytest.raises(ConfigError, match="structure and shapes"):
        engine.update_policy(Policy(3, tiny_model(seed=0).params))
    assert served(engine, [ask("a", max_tokens=2)])[0].policy_versions == (0, 0)


def test_a_cancelled_request_leaves_nothing_in_the_server(server):
    server.update_policy(Policy(0, MODEL.params))
    left: list[tuple[int, int]] = []

    async def main() -> None:
        async with anyio.create_task_group() as serving:
            serving.start_soon(server.serve)
            await server.generate(ask("first", max_tokens=1))
            async with anyio.create_task_group() as asking:
                for seed in range(200):
                    asking.start_soon(server.generate, ask(str(seed), (5,), max_tokens=CONTEXT - 2, seed=seed))
                with anyio.fail_after(60):
                    while server.stats().num_waiting < 20:
                        await anyio.sleep(0.05)
                asking.cancel_scope.cancel()
            with anyio.fail_after(5):
                while server.stats().num_running + server.stats().num_waiting:
                    await anyio.sleep(0.05)
            left.append((server.stats().num_running, server.stats().num_waiting))
            serving.cancel_scope.cancel()

    anyio.run(main)
    assert left == [(0, 0)]


def test_the_next_turn_of_a_conversation_finds_the_last_one_in_the_cache(engine):
    first = GenerationRequest("1", "talk", PROMPT * 12, SamplingParams(max_tokens=8, temperature=0.0))

    async def main() -> Completion:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            said = (await engine.generate(first)).tokens
            prompt = first.prompt + said + (7, 8)
            second = await engine.generate(GenerationRequest("2", "talk", prompt, first.sampling))
            serving.cancel_scope.cancel()
        return second

    assert anyio.run(main).num_prefilled < len(first.prompt) / 2


FAMILIES = {
    "qwen2": {"num_kv_heads": 4},
    "qwen3": {},
    "gemma2": {"windows": (16, None), "attention_soft_cap": 5.0, "logit_soft_cap": 3.0, "query_pre_attn_scalar": 24},
    "gemma3_text": {"windows": (16, None), "local_rope_theta": 1e4, "rope_theta": 1e6},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_as_the_built_in_engine_and_the_trainer_before_and_after_an_update(family):
    models: list[Model] = [small_model(seed, model_type=family, **FAMILIES[family]) for seed in (0, 1)]
    with server_engine(models[0], CONTEXT) as engine:
        for version, model in enumerate(models):
            engine.update_policy(Policy(version, model.params))
            check_against_ours(engine, model, PROMPT)


@pytest.mark.slow
@pytest.mark.model
def test_smollm2_answers_as_the_built_in_engine_and_the_trainer():
    model = load_model("HuggingFaceTB/SmolLM2-135M-Instruct")
    with server_engine(model, CONTEXT) as engine:
        check_against_ours(engine, model, tuple(model.tokenizer.encode("The capital of France is")))


def check_against_ours(engine: Engine, model: Model, prompt: tuple[int, ...]) -> None:
    """Greedy ids are those of `JaxEngine`, and log-probabilities those of the trainer's forward pass."""
    greedy = ask("greedy", prompt, temperature=0.0, max_tokens=24)
    warm = [ask(str(t), prompt, temperature=t, max_tokens=24, seed=3) for t in (0.6, 1.0, 1.5)]
    ours = served(JaxEngine(model, num_slots=1, tokens_per_slot=CONTEXT), [greedy])[0]
    found, *sampled = served(engine, [greedy, *warm])
    assert found.tokens == ours.tokens
    np.testing.assert_allclose(found.logprobs, ours.logprobs, atol=5e-3)
    for request, completion in zip(warm, sampled, strict=True):
        count = len(completion.tokens)
        wanted = plain_logprobs(model, prompt + completion.tokens, request.sampling.temperature)[-count:]
        np.testing.assert_allclose(completion.logprobs, wanted, atol=5e-3)
