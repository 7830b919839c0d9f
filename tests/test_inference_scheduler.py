"""The scheduler by itself: turns, sharing, eviction, conservation; no arrays, no model."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from agentlab.inference.scheduler import Generation, Plan, Scheduler, common_prefix
from agentlab.inference.scripted import ByteTokenizer
from agentlab.inference.shapes import PrefillSize, Shapes, default_shapes
from agentlab.types import GenerationRequest, SamplingParams

SHAPES = Shapes(
    decode_rows=(1, 4), prefill=(PrefillSize(1, 16), PrefillSize(4, 16)), contexts=(64,), prefill_contexts=(64,)
)
END = 257


def new_scheduler(num_slots: int = 4) -> Scheduler:
    return Scheduler(
        num_slots=num_slots,
        tokens_per_slot=64,
        shapes=SHAPES,
        max_dispatch=4,
        stop_token_ids=(END,),
        tokenizer=ByteTokenizer(),
    )


def generation(ticket: int, prompt: list[int], *, session: str | None = None, max_tokens: int = 4) -> Generation:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Generation(ticket, GenerationRequest(str(ticket), session or f"s{ticket}", tuple(prompt), sampling))


def run(scheduler: Scheduler, plan: Plan, token: int = 7) -> None:
    """Carry out a plan as the device would, with `token` sampled everywhere."""
    for chunk in plan.chunks:
        scheduler.prefilled(chunk, token, -1.0, 0)
    for one in plan.decoded:
        count = min(plan.num_steps, scheduler.room(one))
        scheduler.decoded(one, [token] * count, [-1.0] * count, 0)


def run_all(scheduler: Scheduler) -> list[Plan]:
    plans = []
    while scheduler.has_work:
        plans.append(scheduler.schedule())
        run(scheduler, plans[-1])
    return plans


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix_is_the_longest(a, b):
    expected = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))
    assert common_prefix(a, b) == expected


def test_a_running_sequence_waits_for_one_chunk_at_most():
    scheduler = new_scheduler()
    scheduler.submit(generation(0, [1], max_tokens=60))
    run(scheduler, scheduler.schedule())
    scheduler.submit(generation(1, list(range(60))))
    kinds = []
    for _ in range(6):
        plan = scheduler.schedule()
        kinds.append("prefill" if plan.chunks else f"decode {plan.num_steps}")
        run(scheduler, plan)
    assert kinds == ["prefill", "decode 1"] * 3


def test_siblings_wait_for_the_first_and_copy_its_prompt():
    scheduler = new_scheduler()
    prompt = list(range(40))
    for ticket in range(4):
        scheduler.submit(generation(ticket, prompt))
    plans = run_all(scheduler)
    assert [len(plan.chunks) for plan in plans[:3]] == [1, 1, 1]
    assert [(copy.length, copy.source) for plan in plans for copy in plan.copies] == [(39, 0)] * 3
    assert scheduler.tokens_prefilled == 40 + 3


def test_siblings_do_not_wait_for_one_that_was_cancelled():
    scheduler = new_scheduler()
    for ticket in range(2):
        scheduler.submit(generation(ticket, list(range(40))))
    run(scheduler, scheduler.schedule())
    scheduler.abort(0)
    plans = run_all(scheduler)
    assert plans[0].copies[0].length == 16
    assert scheduler.tokens_prefilled == 40


def test_requests_that_find_no_slot_wait_in_the_order_of_arrival():
    scheduler = new_scheduler(num_slots=1)
    for ticket in range(3):
        scheduler.submit(generation(ticket, [ticket, 1]))
    order = []
    while scheduler.has_work:
        run(scheduler, scheduler.schedule())
        order += [g.ticket for g in scheduler.running if g.ticket not in order]
    assert order == [0, 1, 2]


def test_a_conversation_under_way_is_evicted_last():
    scheduler = new_scheduler(num_slots=2)
    scheduler.submit(generation(0, [1, 2, 3], session="kept"))
    scheduler.submit(generation(1, [4, 5, 6], session="over"))
    run_all(scheduler)
    scheduler.release("over")
    scheduler.submit(generation(2, [7, 8, 9], session="new"))
    run_all(scheduler)
    assert {slot.session for slot in scheduler.slots} == {"kept", "new"}


def test_what_follows_a_stop_token_is_dropped_and_not_cached():
    scheduler = new_scheduler()
    one = generation(0, [1, 2], max_tokens=10)
    scheduler.submit(one)
    run(scheduler, scheduler.schedule())
    scheduler.schedule()
    scheduler.decoded(one, [8, END, 9, 9], [-1.0] * 4, 0)
    assert (one.sampled, one.reason) == ([7, 8, END], "stop")
    assert scheduler.slots[0].cached[:5] == [1, 2, 7, 8, END][: len(scheduler.slots[0].cached)]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.lists(st.integers(0, 1), min_size=1, max_size=60), st.integers(1, 9)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("release"), st.integers(0, 4)),
        st.tuples(st.just("policy"), st.booleans()),
        st.tuples(st.just("step"), st.sampled_from([7, END])),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_every_request_ends_and_every_slot_is_free_again(events):
    scheduler = new_scheduler(num_slots=3)
    submitted: list[Generation] = []
    for kind, *values in events:
        match kind:
            case "submit":
                prompt, max_tokens = values
                session = f"s{len(submitted) % 5}"
                submitted.append(generation(len(submitted), prompt, session=session, max_tokens=max_tokens))
                scheduler.submit(submitted[-1])
            case "abort":
                scheduler.abort(values[0])
            case "release":
                scheduler.release(f"s{values[0]}")
            case "policy":
                scheduler.policy_changed(recompute=values[0])
            case "step":
                plan = scheduler.schedule()
                check(scheduler, plan)
                run(scheduler, plan, values[0])
    plans = run_all(scheduler)
    assert all(plan.chunks or plan.decoded for plan in plans)
    assert all(slot.generation is None for slot in scheduler.slots)
    assert all(len(slot.cached) < 64 for slot in scheduler.slots)
    for one in submitted:
        assert len(one.sampled) == len(one.logprobs) == len(one.versions) <= one.request.sampling.max_tokens


def check(scheduler: Scheduler, plan: Plan) -> None:
    """A plan fits the programs, and runs each generation in a slot of its own."""
    assert not (plan.chunks and plan.decoded)
    running = [slot.generation for slot in scheduler.slots if slot.generation]
    assert {id(g) for g in running} == {id(g) for g in scheduler.running}
    for one in (*plan.decoded, *(chunk.generation for chunk in plan.chunks)):
        assert one.cached == one.tokens[: len(one.cached)]
    targets = [copy.target for copy in plan.copies]
    assert len(set(targets)) == len(targets)
    assert not {copy.source for copy in plan.copies} & set(targets[:1]) or len(targets) == 1


def test_a_row_alone_has_one_program_and_more_rows_the_smallest_context_that_holds_them():
    shapes = default_shapes(32, 512, 64)
    assert [(rows, shapes.contexts_for(rows)) for rows in shapes.decode_rows[:-1]] == [(1, (512,)), (8, (256, 512))]
    assert [shapes.context_for(1, 10), shapes.context_for(8, 256), shapes.context_for(8, 257)] == [512, 256, 512]
