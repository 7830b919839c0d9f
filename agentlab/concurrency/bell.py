"""Tells all that wait on an event loop that something has changed."""

import anyio


class Bell:
    """Wakes whoever waits for it now. Used on one event loop at a time, which may be another later.

    An `anyio.Event` belongs to the loop on which it was first waited for, for ever.
    """

    def __init__(self) -> None:
        self._waiting: set[anyio.Event] = set()

    async def wait(self) -> None:
        """Return at the next ring."""
        rung = anyio.Event()
        self._waiting.add(rung)
        try:
            await rung.wait()
        finally:
            self._waiting.discard(rung)

    def ring(self) -> None:
        """Wake all that wait."""
        for rung in self._waiting:
            rung.set()
