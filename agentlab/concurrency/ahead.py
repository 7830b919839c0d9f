"""Independent jobs on a few threads, their results in order."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from agentlab.concurrency.crossings import BEAT_S

T = TypeVar("T")


@contextlib.contextmanager
def ahead(jobs: Sequence[Callable[[], T]], *, name: str, most: int = 4) -> Iterator[Iterator[T]]:
    """Run jobs that share nothing mutable, ahead of who reads their results one by one; waits in slices.

    For work that lets other threads run, such as compiling. Leaving the body early drops the jobs that have
    not begun; nobody waits for those that have.

    Args:
        jobs: Each is called once. What one raises is raised where its result is read.
        name: Of the threads.
        most: Threads, at most; no more than the machine has cores.
    """
    pool = ThreadPoolExecutor(max(1, min(most, os.cpu_count() or 1, len(jobs))), thread_name_prefix=name)
    try:
        yield map(_result, [pool.submit(job) for job in jobs])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _result(future: Future[T]) -> T:
    while not future.done():
        wait((future,), timeout=BEAT_S)
    return future.result()
