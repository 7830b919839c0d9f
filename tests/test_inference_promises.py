"""What the engine promises a run: nothing compiled later, nothing lost in a swap, quick aborts, clean sharing."""

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import jax
import numpy as np
import pytest

from agentlab.bench.engine_load import gather
from agentlab.concurrency import ahead
from agentlab.errors import EngineError
from agentlab.inference import programs, runner
from agentlab.inference.jax_engine import JaxEngine
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import tiny_model
from agentlab.tracing import now_ns, spans
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

MODEL = tiny_model(seed=0)
OTHER = tiny_model(seed=1)
SLOT = 128
SHAPES = Shapes(
    decode_rows=(2, 4), prefill=(PrefillSize(1, 32), PrefillSize(4, 16)), contexts=(64, SLOT), prefill_contexts=(SLOT,)
)


def new_engine(**options: Any) -> JaxEngine:
    usual = {"num_slots": 4, "tokens_per_slot": SLOT, "max_dispatch": 4, "shapes": SHAPES}
    return JaxEngine(MODEL, **{**usual, **options})


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


def compiled_by_jax() -> list[str]:
    """A list that grows by an entry for whatever JAX compiles in this process from now on."""
    seen: list[str] = []

    def note(event: str, duration: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    return seen


def test_a_thousand_mixed_requests_after_warm_up_compile_nothing_at_all():
    rng = np.random.default_rng(0)
    requests = [
        ask(
            str(i),
            tuple(rng.integers(3, 250, rng.choice([1, 5, 20, 60, SLOT - 1])).tolist()),
            session=f"s{i % 40}",
            max_tokens=int(rng.integers(1, 5)),
            temperature=float(rng.choice([0.0, 0.7, 1.0])),
            top_p=float(rng.choice([0.8, 1.0])),
            top_k=int(rng.choice([0, 5])),
            min_p=float(rng.choice([0.0, 0.1])),
            stop=("xq",) if i % 7 == 0 else (),
            seed=i,
        )
        for i in range(1000)
    ]
    engine = new_engine()
    assert engine.warm_up(progress=False) == engine.stats().num_programs == engine.stats().num_compiled
    seen = compiled_by_jax()

    async def body() -> list[Completion]:
        completions = await gather(engine, requests[:500])
        engine.update_policy(Policy(1, OTHER.params))
        return completions + await gather(engine, requests[500:])

    assert len(serve(engine, body)) == 1000
    assert seen == []
    assert engine.stats().compilations == 0


def test_the_front_doors_way_warms_up_before_the_first_answer_and_counts_on():
    engine = new_engine(warm_up=True)
    completion = serve(engine, lambda: engine.generate(ask("a", (5, 6, 7))))
    stats = engine.stats()
    assert completion.tokens and stats.num_compiled == stats.num_programs == 6
    assert stats.compilations == 0


def test_an_engine_that_is_never_warmed_up_promises_no_programs():
    engine = new_engine()
    assert serve(engine, lambda: engine.generate(ask("a", (5, 6, 7)))).tokens
    assert engine.stats().num_programs == engine.stats().num_compiled == 0


def test_serving_can_be_ended_while_it_warms_up():
    engine = new_engine(warm_up=True)

    async def waiter() -> None:
        with pytest.raises(EngineError, match="stopped serving"):
            await engine.generate(ask("a", (5, 6, 7)))

    async def main() -> None:
        async with anyio.create_task_group() as group, anyio.create_task_group() as serving:
            group.start_soon(waiter)
            serving.start_soon(engine.serve)
            await anyio.wait_all_tasks_blocked()
            serving.cancel_scope.cancel()

    anyio.run(main)
    assert serve(engine, lambda: engine.generate(ask("b", (5, 6, 7)))).tokens


def test_a_new_serve_waits_for_the_last_dispatch_of_the_one_before(monkeypatch):
    engine, entered, go_on = new_engine(), threading.Event(), threading.Event()
    engine.warm_up(progress=False)
    prefill = programs.prefill

    def held(*arguments: Any, **options: Any) -> Any:
        entered.set()
        go_on.wait(30)
        return prefill(*arguments, **options)

    async def abandoned() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            group.start_soon(engine.generate, ask("a", (5, 6, 7)))
            await anyio.to_thread.run_sync(entered.wait)
            group.cancel_scope.cancel()

    async def following() -> Completion:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
            completion = await engine.generate(ask("b", (5, 6, 7)))
            group.cancel_scope.cancel()
        return completion

    monkeypatch.setattr(programs, "prefill", held)
    anyio.run(abandoned)
    assert anyio.run(following).tokens


def test_after_a_big_change_under_a_running_request_the_next_one_equals_a_cold_engines():
    engine, cold = new_engine(), new_engine()
    prompt = tuple(range(100, 160))

    async def body() -> tuple[Completion, Completion]:
        answers: dict[str, Completion] = {}

        async def long() -> None:
            answers["long"] = await engine.generate(ask("long", prompt, max_tokens=60, temperature=1.5, seed=3))

        async with anyio.create_task_group() as group:
            group.start_soon(long)
            while engine.stats().tokens_sampled < 2:
                await anyio.sleep(0.001)
            engine.update_policy(Policy(1, OTHER.params))
            answers["next"] = await engine.generate(ask("next", prompt, temperature=0.0))
        return answers["long"], answers["next"]

    long, following = serve(engine, body)
    cold.update_policy(Policy(1, OTHER.params))
    expected = serve(cold, lambda: cold.generate(ask("cold", prompt, temperature=0.0)))
    assert following.tokens == expected.tokens
    np.testing.assert_allclose(following.logprobs, expected.logprobs, atol=1e-5)
    assert set(long.policy_versions) == {0, 1}


@pytest.mark.parametrize("recompute", [False, True])
def test_no_token_is_thrown_away_by_swaps(recompute):
    engine, began_ns = new_engine(recompute_on_update=recompute), now_ns()
    requests = [ask(str(i), tuple(range(40 + i, 60 + i)), max_tokens=40, temperature=1.5, seed=i) for i in range(4)]

    async def body() -> list[Completion]:
        async def swap() -> None:
            for version in range(1, 4):
                while engine.stats().tokens_sampled < 20 * version:
                    await anyio.sleep(0.001)
                engine.update_policy(Policy(version, (MODEL, OTHER)[version % 2].params))

        async with anyio.create_task_group() as group:
            group.start_soon(swap)
            completions = await gather(engine, requests)
            group.cancel_scope.cancel()
        return completions

    completions = serve(engine, body)
    mine = [s for s in spans(began_ns) if s.start_ns >= began_ns]
    decoded = sum(s.tags["tokens"] for s in mine if s.stage == "decode")
    assert sum(len(c.tokens) for c in completions) == engine.stats().tokens_sampled
    by_prefill = engine.stats().tokens_sampled - decoded
    assert by_prefill == 4 if not recompute else by_prefill >= 4
    assert len({version for c in completions for version in c.policy_versions}) > 1


def test_an_abort_frees_the_slot_within_one_dispatch():
    sizes = Shapes(decode_rows=(1,), prefill=(PrefillSize(1, 32),), contexts=(SLOT,), prefill_contexts=(SLOT,))
    engine = new_engine(num_slots=1, shapes=sizes)
    engine.warm_up(progress=False)

    async def body() -> tuple[int, Completion]:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.generate, ask("long", (5,), max_tokens=100, temperature=1.5, seed=8))
            while engine.stats().tokens_sampled < 3:
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
        aborted_ns = now_ns()
        return aborted_ns, await engine.generate(ask("next", (9, 8, 7, 6), max_tokens=2))

    aborted_ns, _ = serve(engine, body)
    later = [s for s in spans(aborted_ns) if s.start_ns > aborted_ns and s.stage in ("prefill", "decode")]
    assert (later[0].stage, later[0].tags["tokens"]) == ("prefill", 4)


def test_requests_that_follow_each_other_closely_are_prefilled_together(monkeypatch):
    for name in ("PAUSE_S", "BURST_S"):  # the fourth request fills the slots and ends the wait
        monkeypatch.setattr(f"agentlab.inference.jax_engine.{name}", 60.0)
    engine, began = new_engine(), now_ns()
    engine.warm_up(progress=False)

    async def body() -> None:
        async with anyio.create_task_group() as group:
            for index in range(4):
                group.start_soon(engine.generate, ask(str(index), (20 + index, 6, 7)))
                await anyio.wait_all_tasks_blocked()

    serve(engine, body)
    prefills = [s for s in spans() if s.start_ns >= began and s.stage == "prefill"]
    assert [s.tags["num_sequences"] for s in prefills] == [4]


def test_an_engine_that_was_not_warmed_up_compiles_a_few_programs_first_and_the_others_when_they_pay(monkeypatch):
    model = tiny_model(seed=0, hidden_size=48)  # of no other test, so that nothing is compiled already
    engine, began = JaxEngine(model, num_slots=4, tokens_per_slot=SLOT, max_dispatch=4, shapes=SHAPES), now_ns()

    def compiled() -> list[str]:
        found = [s.tags["program"] for s in spans() if s.start_ns >= began and s.stage == "compile"]
        return sorted(program for program in found if not program.startswith("copy"))

    def four(name: str) -> list[GenerationRequest]:
        return [ask(f"{name}{i}", (20 + i, 6, 7), temperature=0.0) for i in range(4)]

    first = serve(engine, lambda: gather(engine, four("a")))
    assert compiled() == [f"decode 4 {SLOT}", f"prefill 4 16 {SLOT}"]
    serve(engine, lambda: engine.generate(ask("one", (9, 8, 7))))
    assert len(compiled()) == 2, "what is there serves a single request, too"
    monkeypatch.setattr("agentlab.inference.runner.FEW_DISPATCHES", 0)
    again = serve(engine, lambda: gather(engine, four("b")))
    serve(engine, lambda: engine.generate(ask("two", (9, 8, 7))))
    assert "decode 2 64" in compiled()
    assert [c.tokens for c in again] == [c.tokens for c in first]
    assert engine.stats().compilations == 0


def test_warm_up_after_a_cold_start_compiles_all_that_is_left():
    model = tiny_model(seed=0, hidden_size=56)
    engine = JaxEngine(model, num_slots=4, tokens_per_slot=SLOT, max_dispatch=4, shapes=SHAPES)
    serve(engine, lambda: engine.generate(ask("cold", (9, 8, 7))))
    assert engine.warm_up(progress=False) == engine.stats().num_programs
    seen = compiled_by_jax()
    serve(engine, lambda: gather(engine, [ask(str(i), (20 + i, 6, 7), max_tokens=5 * i + 1) for i in range(4)]))
    assert seen == [] and engine.stats().compilations == 0


def test_what_comes_while_a_cold_engine_compiles_is_heard(monkeypatch):
    """Newcomers are served by the first dispatch, and what was aborted is not computed."""
    model = tiny_model(seed=0, hidden_size=40)
    engine = JaxEngine(model, num_slots=4, tokens_per_slot=SLOT, max_dispatch=4, shapes=SHAPES)
    entered, go_on, began = threading.Event(), threading.Event(), now_ns()

    def held(jobs: Sequence[Callable[[], Any]], **options: Any) -> Any:
        def first() -> Any:
            entered.set()
            go_on.wait(60)
            return jobs[0]()

        return ahead([first, *jobs[1:]], **options)

    async def body() -> None:
        given_up = anyio.CancelScope()

        async def asks() -> None:
            with given_up:
                await engine.generate(ask("given up", tuple(range(5, 35))))

        async with anyio.create_task_group() as group:
            group.start_soon(asks)
            await anyio.to_thread.run_sync(entered.wait)
            for index in range(3):
                group.start_soon(engine.generate, ask(str(index), (20 + index, 6, 7)))
            await anyio.wait_all_tasks_blocked()
            given_up.cancel()
            await anyio.wait_all_tasks_blocked()
            go_on.set()

    monkeypatch.setattr(runner, "ahead", held)
    serve(engine, body)
    prefills = [s for s in spans() if s.start_ns >= began and s.stage == "prefill"]
    assert [(s.tags["num_sequences"], s.tags["tokens"]) for s in prefills] == [(3, 9)]


def test_what_is_no_work_does_not_count_as_a_dispatch(monkeypatch):
    monkeypatch.setattr("agentlab.inference.runner.FEW_DISPATCHES", 10)
    engine = new_engine()
    serve(engine, lambda: engine.generate(ask("a", (5, 6, 7), max_tokens=2)))
    began = now_ns()

    async def body() -> None:
        for _ in range(20):
            engine.release("a")
            await anyio.wait_all_tasks_blocked()
        await engine.generate(ask("b", (9, 6, 7), max_tokens=2))

    serve(engine, body)
    contexts = [s.tags["context"] for s in spans() if s.start_ns >= began and s.stage == "decode"]
    assert contexts == [SLOT], "the few programs, of which the decode reads a whole slot"


def test_the_fewest_sizes_serve_so_many_sequences():
    one, all_ = SHAPES.fewest(1), SHAPES.fewest(4)
    assert (one.decode_rows, one.prefill, one.contexts) == ((2,), (PrefillSize(1, 32),), (SLOT,))
    assert (all_.decode_rows, all_.prefill) == ((4,), (PrefillSize(4, 16),))
    assert SHAPES.fewest(1, all_) == all_
    more = SHAPES.fewest(3, one)
    assert (more.decode_rows, more.prefill) == ((2, 4), (PrefillSize(1, 32), PrefillSize(4, 16)))
