"""Spans, tags and counters: what is recorded, by whom, and how little it costs."""

import asyncio
import gc
import threading
import timeit

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import tracing
from agentlab.errors import ConfigError
from agentlab.tracing import (
    counter,
    counters,
    follow_spans,
    now_ns,
    open_spans,
    record,
    separate,
    span,
    spans,
    tagged,
)
from agentlab.tracing.buffers import Buffers

names = st.sampled_from(["group", "episode", "turn", "tool"])


@pytest.fixture
def begin() -> int:
    return now_ns()


def on_thread(target, name: str) -> None:
    thread = threading.Thread(target=target, name=name)
    thread.start()
    thread.join()


def test_a_span_records_stage_times_thread_and_tags(begin):
    with tagged(group="g", episode=1), span("tool", name="calculator"):
        pass
    (found,) = spans(begin)
    assert (found.stage, found.thread) == ("tool", threading.current_thread().name)
    assert found.tags == {"group": "g", "episode": 1, "name": "calculator"}
    assert begin <= found.start_ns <= found.end_ns <= now_ns()
    assert found.duration_s == (found.end_ns - found.start_ns) / 1e9


def test_a_span_is_recorded_when_its_body_raises(begin):
    with pytest.raises(ZeroDivisionError), span("reward"):
        _ = 1 / 0
    assert [found.stage for found in spans(begin)] == ["reward"]


def test_an_unknown_stage_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'decod'.*Did you mean 'decode'"):
        span("decod")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="Did you mean 'prefill'"):
        record("prefil", 0, 1)  # pyright: ignore[reportArgumentType]


def test_inner_tags_add_to_outer_ones_and_end_with_their_body(begin):
    with tagged(group="a", turn=0):
        with tagged(turn=1):
            record("agent", now_ns(), now_ns())
        record("step", now_ns(), now_ns())
    record("close", now_ns(), now_ns())
    tags = {found.stage: found.tags for found in spans(begin)}
    assert tags == {"agent": {"group": "a", "turn": 1}, "step": {"group": "a", "turn": 0}, "close": {}}


def test_tags_follow_tasks_and_worker_threads(begin):
    def work():
        with span("tool"):
            pass

    async def episode(index: int):
        with tagged(episode=index):
            await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(work)
            await asyncio.create_task(asyncio.to_thread(work))

    async def main():
        async with anyio.create_task_group() as group:
            for index in range(3):
                group.start_soon(episode, index)

    anyio.run(main)
    assert sorted(found.tags["episode"] for found in spans(begin)) == [0, 0, 1, 1, 2, 2]


def test_spans_come_by_start_and_since_leaves_out_what_ended_before(begin):
    record("decode", begin + 5, begin + 50)
    record("prefill", begin + 1, begin + 3)
    assert [found.stage for found in spans(begin)] == ["prefill", "decode"]
    assert [found.stage for found in spans(begin + 4)] == ["decode"]


def test_counters_keep_their_readings_in_order(begin):
    counter("queue_depth", 3)
    counter("queue_depth", 2.5)
    assert [(found.name, found.value) for found in counters(begin)] == [("queue_depth", 3), ("queue_depth", 2.5)]


def test_spans_of_an_ended_thread_stay_readable(begin):
    on_thread(lambda: record("optimizer", begin, begin + 1), "gone")
    assert [(found.stage, found.thread) for found in spans(begin)] == [("optimizer", "gone")]


def test_reading_while_others_append_loses_and_invents_nothing(begin):
    num_threads, each = 4, 2000
    barrier = threading.Barrier(num_threads + 1)

    def write():
        barrier.wait()
        for index in range(each):
            record("decode", begin, begin + 1, index=index)

    threads = [threading.Thread(target=write) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    barrier.wait()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        found = len(spans(begin))
        assert seen <= found
        seen = found
    assert len(spans(begin)) == num_threads * each


def test_spans_under_way_are_seen_as_if_they_ended_now(begin):
    with tagged(group="g"), span("tool", turn=1):
        (found,) = [one for one in open_spans() if one.start_ns >= begin]
        assert (found.stage, found.tags) == ("tool", {"group": "g", "turn": 1})
        assert found.end_ns <= now_ns()
        assert spans(begin) == ()
    assert [one for one in open_spans() if one.start_ns >= begin] == []


def test_a_follower_gets_every_span_once(begin):
    record("load", begin - 2, begin - 1)
    record("decode", begin + 5, begin + 6)
    new_spans = follow_spans(begin)
    on_thread(lambda: record("reward", begin + 1, begin + 2), "other")
    assert [found.stage for found in new_spans()] == ["reward", "decode"]
    record("decode", begin + 5, begin + 6)
    assert [found.stage for found in new_spans()] == ["decode"]
    assert new_spans() == ()


def test_memory_is_bounded_and_the_newest_records_are_kept():
    buffers = Buffers(max_records=10_000)
    for index in range(30_000):
        buffers.append((index,))
    ((_, records),) = buffers.read()
    assert len(records) == 10_000
    assert records[-1] == (29_999,)


def test_a_busy_thread_takes_the_room_that_quiet_ones_leave():
    buffers = Buffers(max_records=10_000)
    barrier = threading.Barrier(2)

    def quiet():
        for index in range(10):
            buffers.append((index,))
        barrier.wait()
        barrier.wait()

    thread = threading.Thread(target=quiet, name="quiet")
    thread.start()
    barrier.wait()
    for index in range(30_000):
        buffers.append((index,))
    kept = {name: len(records) for name, records in buffers.read()}
    barrier.wait()
    thread.join()
    assert kept.pop("quiet") == 10
    assert 9_000 <= next(iter(kept.values())) <= 10_000


def test_the_longest_ended_threads_are_forgotten_first():
    buffers = Buffers(max_records=1000)
    for index in range(20):
        on_thread(lambda: [buffers.append((0,)) for _ in range(100)], f"worker {index}")
    names = [name for name, _ in buffers.read()]
    assert "worker 19" in names
    assert "worker 0" not in names
    assert sum(len(records) for _, records in buffers.read()) <= 1000


def test_what_is_kept_does_not_burden_the_garbage_collector():
    """A full collection walks through every object that it tracks, while all threads wait."""
    gc.collect()
    before = len(gc.get_objects())
    with separate():
        for index in range(5_000):
            with tagged(group=f"{index}", episode=index), span("step", turn=index) as timed:
                timed.tag(words=("a", index))
        gc.collect()
        gc.collect()  # an outer tuple is let go only after those that it holds
        assert len(gc.get_objects()) - before < 500
        assert len(spans()) == 5_000


@given(st.dictionaries(names, st.integers()), st.dictionaries(names, st.none() | st.text()))
def test_tags_are_the_same_after_they_were_kept(outer, inner):
    with separate():
        with tagged(**outer), span("step") as timed:
            timed.tag(**inner)
        (found,) = spans()
    assert found.tags == {**outer, **inner}


def test_a_span_costs_a_few_microseconds_at_most():
    """The goal of 2 µs is the benchmark's; this bound only notices a lock or a leak on the hot path."""

    def one():
        with span("decode", turn=1):
            pass

    assert min(timeit.repeat(one, number=2000, repeat=7)) / 2000 <= 10e-6


def test_the_public_names_exist():
    assert all(hasattr(tracing, name) for name in tracing.__all__)
