"""What every engine does, written once and run against each of them."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from vllm_cases import in_process_engine, kill_own_core, kill_server, needs_vllm, server_engine, small_model

from agentlab.errors import EngineError
from agentlab.inference import VLLMEngine, VLLMServerEngine
from agentlab.inference.base import Engine
from agentlab.inference.jax_engine import JaxEngine
from agentlab.inference.scripted import ScriptedEngine
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

MODEL = small_model(seed=0)
OTHER = small_model(seed=1)
SLOT = 64
SHAPES = Shapes(decode_rows=(4,), prefill=(PrefillSize(4, 16),), contexts=(SLOT,), prefill_contexts=(SLOT,))
PROMPT = tuple(MODEL.tokenizer.encode("What is six times seven?"))


def jax_engine(num_slots: int = 4) -> Engine:
    return JaxEngine(MODEL, num_slots=num_slots, tokens_per_slot=SLOT, max_dispatch=4, shapes=SHAPES)


def scripted_engine(num_slots: int = 4) -> Engine:
    def script(request: GenerationRequest, prompt: str) -> list[int]:
        return [1 + (request.sampling.seed * 7 + step * step) % 97 for step in range(500)]

    return ScriptedEngine(script, MODEL.tokenizer, num_slots=num_slots, max_context=SLOT, token_rate=1000.0)


@pytest.fixture(scope="module")
def vllm_server() -> Iterator[Engine]:
    with server_engine(MODEL, SLOT) as engine:
        yield engine


@pytest.fixture(scope="module")
def vllm_in_process() -> Iterator[Engine]:
    with in_process_engine(MODEL, SLOT) as engine:
        yield engine


VLLM = [pytest.mark.vllm, needs_vllm, pytest.mark.timeout(900)]


@pytest.fixture(
    params=[
        pytest.param(scripted_engine, id="scripted"),
        pytest.param(jax_engine, id="jax"),
        pytest.param("vllm_server", id="vllm-server", marks=VLLM),
        pytest.param("vllm_in_process", id="vllm-in-process", marks=VLLM),
    ]
)
def make_engine(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    if not isinstance(request.param, str):
        return request.param
    engine: Engine = request.getfixturevalue(request.param)  # one for all tests, since it takes a minute to start

    def as_new(num_slots: int = 4) -> Engine:
        engine.update_policy(Policy(0, MODEL.params))
        return engine

    return as_new


def ask(
    id: str, prompt: tuple[int, ...] = PROMPT, *, session: str | None = None, **sampling: object
) -> GenerationRequest:
    options = {"max_tokens": 8, **sampling}
    return GenerationRequest(id, session or id, prompt, SamplingParams(**options))


def served(engine: Engine, requests: list[GenerationRequest]) -> list[Completion]:
    """The completions of requests that are made at once."""

    async def main() -> list[Completion]:
        done: dict[str, Completion] = {}

        async def one(request: GenerationRequest) -> None:
            done[request.id] = await engine.generate(request)

        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            async with anyio.create_task_group() as asking:
                for request in requests:
                    asking.start_soon(one, request)
            serving.cancel_scope.cancel()
        return [done[request.id] for request in requests]

    return anyio.run(main)


def test_more_requests_than_slots_are_all_answered(make_engine):
    completions = served(make_engine(num_slots=4), [ask(str(i), seed=i) for i in range(10)])
    assert [c.request_id for c in completions] == [str(i) for i in range(10)]
    for completion in completions:
        assert 1 <= len(completion.tokens) <= 8
        assert len(completion.tokens) == len(completion.logprobs) == len(completion.policy_versions)
        assert all(logprob <= 0 for logprob in completion.logprobs)


def test_tokens_depend_on_the_seed_and_not_on_who_shared_the_batch(make_engine):
    alone = [served(make_engine(), [ask("a", seed=seed)])[0].tokens for seed in (3, 4)]
    together = served(make_engine(), [ask(str(seed), seed=seed) for seed in (1, 2, 3, 4, 5, 6)])
    assert [together[2].tokens, together[3].tokens] == alone
    assert len({c.tokens for c in together}) == 6


def test_a_stop_token_ends_the_completion_and_is_its_last_token(make_engine):
    free = served(make_engine(), [ask("a", seed=5)])[0].tokens
    stopped = served(make_engine(), [ask("a", seed=5, stop_token_ids=(free[3],))])[0]
    assert stopped.tokens == free[: free.index(free[3]) + 1]
    assert stopped.finish_reason == "stop"


def test_a_stop_string_is_found_across_tokens_and_what_follows_is_dropped(make_engine):
    free = served(make_engine(), [ask("a", seed=5, max_tokens=12)])[0].tokens
    pairs = {at: MODEL.tokenizer.decode(list(free[at - 2 : at])) for at in range(3, 12)}
    end, wanted = next((at, text) for at, text in pairs.items() if "�" not in text)
    stopped = served(make_engine(), [ask("a", seed=5, max_tokens=12, stop=("never", wanted))])[0]
    assert stopped.tokens == free[:end]
    assert stopped.finish_reason == "stop"


def test_max_tokens_ends_as_length(make_engine):
    completion = served(make_engine(), [ask("a", seed=5, max_tokens=3)])[0]
    assert (len(completion.tokens), completion.finish_reason) == (3, "length")


def test_a_prompt_that_fills_the_context_ends_at_once(make_engine):
    for length in (SLOT, SLOT + 5):
        completion = served(make_engine(), [ask("a", (5,) * length)])[0]
        assert (completion.tokens, completion.finish_reason) == ((), "context")


def test_decoding_to_the_end_of_the_context_ends_as_context(make_engine):
    completion = served(make_engine(), [ask("a", (5,) * (SLOT - 3), seed=5, max_tokens=50)])[0]
    assert (len(completion.tokens), completion.finish_reason) == (3, "context")


def test_requests_made_before_serving_wait_for_it(make_engine):
    engine = make_engine()

    async def main() -> Completion:
        async with anyio.create_task_group() as group:
            answers: list[Completion] = []

            async def one() -> None:
                answers.append(await engine.generate(ask("a")))
                group.cancel_scope.cancel()

            group.start_soon(one)
            await anyio.wait_all_tasks_blocked()
            assert not answers
            group.start_soon(engine.serve)
        return answers[0]

    assert anyio.run(main).request_id == "a"


def test_a_cancelled_request_frees_its_slot(make_engine):
    engine = make_engine(num_slots=1)

    async def main() -> Completion:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            async with anyio.create_task_group() as asking:
                for i in range(3):
                    asking.start_soon(engine.generate, ask(str(i), max_tokens=40, seed=i))
                await anyio.wait_all_tasks_blocked()
                asking.cancel_scope.cancel()
            completion = await engine.generate(ask("last"))
            serving.cancel_scope.cancel()
        return completion

    assert anyio.run(main).request_id == "last"
    assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 0)


def test_a_deadline_ends_the_request_and_frees_its_slot(make_engine):
    engine = make_engine(num_slots=1)

    async def main() -> Completion:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            await engine.generate(ask("first"))
            for seed in range(100):
                with anyio.move_on_after(0.002) as deadline:
                    await engine.generate(ask(str(seed), (5,), max_tokens=SLOT, seed=seed))
                if deadline.cancelled_caught:
                    break
            assert deadline.cancelled_caught
            with anyio.fail_after(5):
                while engine.stats().num_running + engine.stats().num_waiting:
                    await anyio.sleep(0.01)
            completion = await engine.generate(ask("last"))
            serving.cancel_scope.cancel()
        return completion

    assert anyio.run(main).request_id == "last"


def test_serving_that_ends_in_the_midst_of_an_update_can_begin_again(make_engine):
    engine = make_engine()
    before = served(engine, [ask("a", seed=1)])[0]

    async def main() -> None:
        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            await engine.generate(ask("b"))
            engine.update_policy(Policy(5, OTHER.params))
            await anyio.wait_all_tasks_blocked()
            serving.cancel_scope.cancel()

    anyio.run(main)
    after = served(engine, [ask("c", seed=1)])[0]
    assert set(after.policy_versions) == {5}
    assert isinstance(engine, ScriptedEngine) or after.tokens != before.tokens


def test_an_engine_can_be_served_again_and_goes_on_with_its_policy(make_engine):
    engine = make_engine()
    first = served(engine, [ask("a", seed=1)])[0]
    engine.update_policy(Policy(7, MODEL.params))
    again = served(engine, [ask("b", seed=1)])[0]
    assert again.tokens == first.tokens
    assert set(first.policy_versions) == {0}
    assert set(again.policy_versions) == {7}


def test_a_request_under_way_goes_on_under_new_weights(make_engine):
    engine = make_engine(num_slots=1)

    async def main() -> Completion:
        spanning: list[Completion] = []

        async def talk() -> None:
            for seed in range(8, 1000):
                found = await engine.generate(ask("long", (5,), max_tokens=SLOT, temperature=1.5, seed=seed))
                if len(set(found.policy_versions)) > 1:
                    spanning.append(found)
                    return

        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            async with anyio.create_task_group() as asking:
                asking.start_soon(talk)
                version = 0
                while not spanning:
                    version += 1
                    engine.update_policy(Policy(version, OTHER.params))
                    await anyio.sleep(0.001)
            serving.cancel_scope.cancel()
        return spanning[0]

    completion = anyio.run(main)
    assert list(completion.policy_versions) == sorted(completion.policy_versions)
    assert completion.finish_reason in ("context", "stop")


def test_the_end_of_serving_fails_those_who_wait(make_engine):
    engine = make_engine()
    errors: list[str] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:

            async def ask_for_ever() -> None:  # an answer may come before all tasks are seen blocked
                while True:
                    await engine.generate(ask("a", max_tokens=60, seed=1))

            async def one() -> None:
                with pytest.raises(EngineError) as caught:
                    await ask_for_ever()
                errors.append(str(caught.value))

            async with anyio.create_task_group() as serving:
                serving.start_soon(engine.serve)
                group.start_soon(one)
                await anyio.wait_all_tasks_blocked()
                serving.cancel_scope.cancel()

    anyio.run(main)
    assert "stopped serving" in errors[0]


def kill(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """End what computes for this engine as a crash would."""

    def gone(*_: Any, **__: Any) -> None:
        raise RuntimeError("the device is gone")

    if isinstance(engine, ScriptedEngine):
        engine.kill()
    elif isinstance(engine, VLLMServerEngine):
        kill_server(engine.urls[0])
    elif isinstance(engine, VLLMEngine):
        kill_own_core()
    else:
        monkeypatch.setattr("agentlab.inference.runner.Runner.decode", gone)


def test_a_request_that_nobody_served_does_not_tie_the_engine_to_its_event_loop(make_engine):
    engine = make_engine()

    async def in_vain() -> None:
        with anyio.move_on_after(0.05):
            await engine.generate(ask("first"))

    async def before_it_is_served() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.generate, ask("second"))
            await anyio.wait_all_tasks_blocked()
            group.start_soon(engine.serve)
            await engine.generate(ask("third"))
            group.cancel_scope.cancel()

    anyio.run(in_vain)
    anyio.run(before_it_is_served)


def test_death_reaches_those_who_wait_and_those_who_come(make_engine, monkeypatch):
    """The last test: an engine of vLLM is dead afterwards."""
    engine = make_engine()
    took_s: list[float] = []

    async def ask_for_ever(seed: int) -> None:
        while True:
            await engine.generate(ask(str(seed), (5,), max_tokens=SLOT, seed=seed))

    async def waiter(seed: int) -> None:
        with pytest.raises(EngineError):
            await ask_for_ever(seed)
        took_s.append(time.monotonic())

    async def serving() -> None:
        with pytest.raises(EngineError):
            await engine.serve()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(serving)
            await engine.generate(ask("first"))
            for seed in range(3):
                group.start_soon(waiter, seed)
            await anyio.wait_all_tasks_blocked()
            kill(engine, monkeypatch)
            killed_s = time.monotonic()
        assert max(took_s) - killed_s < 2
        with pytest.raises(EngineError):
            await engine.generate(ask("late"))

    anyio.run(main)
    assert len(took_s) == 3
    with pytest.raises(EngineError):
        engine.update_policy(Policy(9, MODEL.params))
