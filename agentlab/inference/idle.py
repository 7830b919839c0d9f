"""An engine for runs that sample nothing."""

from typing import Any, final

import anyio

from agentlab.errors import EngineError
from agentlab.inference.base import Engine
from agentlab.types import Completion, EngineStats, GenerationRequest, Policy


@final
class IdleEngine(Engine):
    """Stands in for an engine where nothing is sampled, as in supervised fine-tuning. Owned by the loop.

    Args:
        tokenizer: Of the model that is trained.
        max_context: Of that model.
    """

    def __init__(self, tokenizer: Any, max_context: int):
        self.tokenizer, self.max_context = tokenizer, max_context
        self._version = 0

    async def serve(self) -> None:
        """Wait until this call is cancelled."""
        await anyio.sleep_forever()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Refused.

        Raises:
            EngineError: always.
        """
        raise EngineError(
            f"Request {request.id} cannot be served: this run trains on what is given and samples nothing."
        )

    def update_policy(self, policy: Policy) -> None:
        """Only the version is kept."""
        self._version = policy.version

    def release(self, session: str) -> None:
        """Nothing is cached."""

    def stats(self) -> EngineStats:
        """The policy's version; everything else is 0."""
        return EngineStats(policy_version=self._version)
