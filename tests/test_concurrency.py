"""Inbox, reply, threads that end with their task, worker pool, loop thread."""

import asyncio
import contextvars
import gc
import threading
import weakref

import anyio
import pytest

from agentlab.concurrency import Bell, Closed, Inbox, LoopThread, Reply, WorkerPool, ahead, calm_collector, run_thread
from agentlab.errors import RunEnded


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_an_inbox_gives_what_was_put_and_then_says_that_it_is_closed():
    inbox: Inbox[int] = Inbox()
    assert inbox.put(1) and inbox.put(2)
    inbox.close()
    assert not inbox.put(3)
    assert inbox.get() == 1
    assert inbox.drain() == [2]
    for _ in range(2):
        with pytest.raises(Closed):
            inbox.get()
        with pytest.raises(Closed):
            inbox.drain()


def test_an_inbox_can_be_waited_on_for_a_while():
    inbox: Inbox[int] = Inbox()
    assert inbox.drain(0.001) == []
    threading.Timer(0.01, inbox.put, [1]).start()
    assert inbox.drain(60.0) == [1], "it did not wait for the item, or waited on although there was one"
    inbox.close()
    with pytest.raises(Closed):
        inbox.drain(60.0)


def test_a_reply_is_given_once_by_any_thread():
    async def main():
        reply: Reply[str] = Reply()
        thread = threading.Thread(target=lambda: (reply.set("first"), reply.fail(ValueError("late"))))
        thread.start()
        return await reply.wait()

    assert asyncio.run(main()) == "first"


def test_cancelling_the_task_ends_the_thread():
    inbox: Inbox[int] = Inbox()
    seen = []

    def main():
        try:
            while True:
                seen.append(inbox.get())
        except Closed:
            seen.append("closed")

    async def body():
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_thread(main, inbox, name="test-thread"))
            inbox.put(1)
            await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    asyncio.run(body())
    assert seen == [1, "closed"]
    assert "test-thread" not in names()


def test_what_a_thread_raises_is_raised_where_it_is_awaited():
    def main():
        raise ValueError("from the thread")

    with pytest.raises(ValueError, match="from the thread"):
        asyncio.run(run_thread(main, Inbox(), name="test-thread"))


def test_a_worker_runs_in_the_context_of_its_caller_and_raises_there():
    tag = contextvars.ContextVar("tag", default="none")

    async def main():
        pool = WorkerPool(2)
        tag.set("mine")
        assert await pool.run(tag.get) == "mine"
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 / 0)
        pool.close()

    asyncio.run(main())


def test_the_pool_never_runs_more_calls_than_it_has_workers():
    running, most, lock = 0, 0, threading.Lock()

    def call():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1

    async def main():
        pool = WorkerPool(3)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(pool.run, call)
        pool.close()

    asyncio.run(main())
    assert most == 3


def test_a_late_call_costs_one_worker_is_counted_and_is_followed_up_on_its_own_thread():
    release, followed = threading.Event(), threading.Event()

    async def main():
        pool = WorkerPool(1)
        call = pool.prepare(release.wait, on_late=followed.set)
        with anyio.move_on_after(0.02):
            await call.wait()
        assert call.abandoned and pool.num_hung == 1
        with anyio.move_on_after(0.02) as blocked:
            await pool.run(int)
        assert blocked.cancelled_caught
        release.set()
        assert await pool.run(int) == 0
        assert pool.num_hung == 0
        pool.close()

    asyncio.run(main())
    assert followed.is_set()


def test_a_follow_up_that_raises_does_not_cost_the_worker():
    release = threading.Event()

    def broken():
        raise ValueError("close broke")

    async def main():
        pool = WorkerPool(1)
        with anyio.move_on_after(0.02):
            await pool.prepare(release.wait, on_late=broken).wait()
        release.set()
        assert await pool.run(int) == 0
        assert pool.num_hung == 0 and "close broke" in str(pool.late_errors[0])
        pool.close()

    asyncio.run(main())


def test_a_call_that_must_not_wait_takes_a_worker_beyond_the_bound():
    release = threading.Event()

    async def main():
        pool = WorkerPool(1)
        with anyio.move_on_after(0.02):
            await pool.run(release.wait)
        assert await pool.prepare(int, at_once=True).wait() == 0
        release.set()
        pool.close()

    asyncio.run(main())


def test_jobs_run_ahead_give_their_results_in_order_and_their_errors_where_they_are_read():
    def fail() -> int:
        raise ValueError("the second one")

    with ahead([lambda: 1, fail, lambda: 3], name="jobs") as results:
        assert next(results) == 1
        with pytest.raises(ValueError, match="the second one"):
            next(results)
        assert list(results) == [3]
    with ahead([], name="jobs") as nothing:
        assert list(nothing) == []


def test_leaving_early_drops_the_jobs_that_have_not_begun():
    begun, go_on, count = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        go_on.wait(10)

    with ahead([first, *[lambda: count.append(1)] * 50], name="jobs", most=1):
        assert begun.wait(10)
    go_on.set()
    assert not count


def test_the_collector_is_calmed_for_a_while_also_when_nested_and_left_as_it_was():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    assert frozen == 0
    with calm_collector():
        assert gc.isenabled() and gc.get_threshold()[0] > before[0] and gc.get_freeze_count() > 0
        with calm_collector():
            pass
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count() > 0
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0


def test_garbage_made_while_the_collector_is_calm_is_collected():
    class Node:
        pass

    with calm_collector():
        node = Node()
        node.itself, gone = node, weakref.ref(node)
        del node
        gc.collect()
        assert gone() is None


def test_a_collector_that_somebody_froze_stays_frozen():
    gc.freeze()
    try:
        with calm_collector():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_loop_thread_answers_calls_and_ends_when_it_is_cancelled():
    thread = LoopThread(anyio.sleep_forever)
    assert thread.call(threading.current_thread).name == "agentlab-loop"
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    thread.cancel()
    assert thread.join(5.0)
    assert thread.done
    with pytest.raises(RunEnded):
        thread.call(int)


def test_a_loop_thread_gives_its_result_or_its_error():
    async def fine():
        return 7

    async def bad():
        raise ValueError("inside")

    assert LoopThread(fine).result() == 7
    with pytest.raises(ValueError, match="inside"):
        LoopThread(bad).result()


def test_the_loop_is_asyncios_own_whatever_policy_is_set():
    async def kind():
        return type(asyncio.get_running_loop()).__module__

    assert LoopThread(kind).result().startswith("asyncio")


def test_a_bell_that_was_waited_for_in_vain_wakes_those_of_another_loop():
    bell, woken = Bell(), []

    async def in_vain() -> None:
        with anyio.move_on_after(0.01):
            await bell.wait()

    async def hear() -> None:
        await bell.wait()
        woken.append(True)

    async def heard() -> None:
        bell.ring()  # nobody waits
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(hear)
                group.start_soon(hear)
                await anyio.wait_all_tasks_blocked()
                assert not woken
                bell.ring()

    anyio.run(in_vain)
    anyio.run(heard)
    assert woken == [True, True]
