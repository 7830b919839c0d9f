"""How long an engine has been busy with itself, and not with requests: compiling programs, starting a server."""

import time
from typing import final


@final
class Preparing:
    """A clock that runs inside its `with` blocks. One thread enters them; any thread may read it."""

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = (0.0, None)
        """Seconds before, and when the block began that is under way; one object, so that readers see both at once."""

    def begin(self) -> None:
        """It runs, if it does not already."""
        past_s, since_s = self._state
        if since_s is None:
            self._state = past_s, time.monotonic()

    def end(self) -> None:
        """It stands still."""
        self._state = self.seconds(), None

    def seconds(self) -> float:
        """Seconds for which it has run so far."""
        past_s, since_s = self._state
        return past_s if since_s is None else past_s + time.monotonic() - since_s

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()
