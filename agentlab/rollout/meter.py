"""A thread that asks a device how busy it is, and records what it says as counters beside the spans."""

import asyncio
from collections.abc import Callable, Mapping

import anyio

from agentlab import tracing
from agentlab.concurrency import Closed, Inbox, post, run_thread

EVERY_S = 1.0
Readings = Callable[[], Mapping[str, float]]
"""What a device says now, by the counter's name."""


class MeterThread:
    """Reads a device's own metrics on the thread "agentlab-meter"; `serve` runs on the loop.

    Args:
        open_meter: Called on that thread; may take long, e.g. to find out what there is to read.
        on_note: Told on the loop, in a sentence, when reading fails; then nothing more is read.
        every_s: Seconds from one reading to the next. A device that takes longer to answer is asked less often.
    """

    def __init__(
        self,
        open_meter: Callable[[], Readings],
        on_note: Callable[[str], None] = lambda text: None,
        *,
        every_s: float = EVERY_S,
    ):
        self._open_meter, self._on_note, self._every_s = open_meter, on_note, every_s
        self._inbox: Inbox[None] = Inbox()

    async def serve(self) -> None:
        """Read until this call is cancelled."""
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as group:
            group.start_soon(self._beat)
            await run_thread(lambda: self._main(loop), self._inbox, name="agentlab-meter", grace_s=0.5, kind="worker")
            group.cancel_scope.cancel()  # it failed: nothing more is asked
        await anyio.sleep_forever()  # and the run goes on

    async def _beat(self) -> None:
        while True:
            self._inbox.put(None)
            await anyio.sleep(self._every_s)

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            read = self._open_meter()
            while True:
                self._inbox.get()
                self._inbox.drain()
                for name, value in read().items():
                    tracing.counter(name, value)
        except Closed:
            return
        except Exception as error:  # a runtime that cannot be read must not end a run
            post(loop, self._on_note, f"The device's own metrics are not read: {type(error).__name__}: {error}")
