"""The only room that lets one thread speak to another; with `tracing`, the only one that knows threads."""

from agentlab.concurrency.ahead import ahead
from agentlab.concurrency.bell import Bell
from agentlab.concurrency.collector import calm_collector
from agentlab.concurrency.crossings import (
    BEAT_S,
    Closed,
    Inbox,
    Reply,
    as_error,
    first_error,
    is_interrupt,
    post,
    run_thread,
)
from agentlab.concurrency.limited import GivenUp, LimitedCalls
from agentlab.concurrency.loop import LoopThread
from agentlab.concurrency.pool import WorkerCall, WorkerPool
from agentlab.concurrency.threads import say, start_thread
from agentlab.concurrency.virtual import VirtualClockLoop, run_virtual

__all__ = [
    "BEAT_S",
    "Bell",
    "Closed",
    "GivenUp",
    "Inbox",
    "LimitedCalls",
    "LoopThread",
    "Reply",
    "VirtualClockLoop",
    "WorkerCall",
    "WorkerPool",
    "ahead",
    "as_error",
    "calm_collector",
    "first_error",
    "is_interrupt",
    "post",
    "run_thread",
    "run_virtual",
    "say",
    "start_thread",
]
