"""An event loop on a clock that jumps, for simulating a day in seconds."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agentlab import tracing

T = TypeVar("T")


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it.

    A day is simulated in seconds, and the same way each time. Only for code without threads: while
    no timer is due it jumps, whatever a thread is still doing.
    """

    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now_s = 0.0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualClockLoop):
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("Nothing is left to happen: every task of this virtual loop waits for ever.")
        if not ready and timeout:
            self._loop.now_s += timeout
        return ready


def run_virtual(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on a virtual clock; it sees `anyio.current_time()` from 0.

    What it traces is kept apart and told by the same clock; it can be read until `main` returns.
    """

    async def body() -> T:
        loop = asyncio.get_running_loop()
        with tracing.separate(clock=lambda: round(loop.time() * 1e9)):
            return await main()

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(body())
