"""What every inference engine is: requests in, completions out, weights swapped in between."""

import abc
from typing import Any

from agentlab.types import Completion, EngineStats, GenerationRequest, Policy


class Engine(abc.ABC):
    """An inference engine. Its methods are called on the loop thread and never block it."""

    tokenizer: Any
    """A transformers tokenizer of the model that is served."""
    max_context: int
    """Most tokens that prompt and completion may have together."""

    @abc.abstractmethod
    async def serve(self) -> None:
        """Run the engine until this call is cancelled; it owns the engine's thread.

        Requests may be made before it: they wait.

        Raises:
            EngineError: the engine died. Every waiting `generate` raises it, too.
        """

    @abc.abstractmethod
    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one completion. Cancelling this call frees what it holds.

        A prompt that fills the context ends at once with `finish_reason="context"`.

        Raises:
            EngineError: the engine died.
        """

    @abc.abstractmethod
    def update_policy(self, policy: Policy) -> None:
        """Swap these weights in between two decode steps; requests in flight go on under them."""

    @abc.abstractmethod
    def release(self, session: str) -> None:
        """The conversation is over: what is cached for it alone may go."""

    def prepared_s(self) -> float:
        """Seconds so far, those of now included, in which the engine was busy with itself: it compiled programs, or
        a server started. Requests wait meanwhile, and this is no fault of theirs: it counts against no deadline."""
        return 0.0

    @abc.abstractmethod
    def stats(self) -> EngineStats:
        """Counters, as one frozen record."""
