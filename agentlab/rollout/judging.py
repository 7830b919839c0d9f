"""The run's own engine as a judge of answers."""

from collections.abc import Sequence

from agentlab.chat import ChatFormat, split_reasoning
from agentlab.inference.base import Engine
from agentlab.types import GenerationRequest, Message, SamplingParams

MAX_JUDGEMENT_TOKENS = 256


class EngineJudge:
    """Asks the engine that plays the episode; what it samples is not trained on. Owned by the loop.

    Args:
        session: Of the episode: the judgement is a session of its own under that name.
    """

    def __init__(self, engine: Engine, chat: ChatFormat, session: str, *, seed: int) -> None:
        self._engine, self._chat, self._session, self._seed = engine, chat, f"{session}/judge", seed
        self._num_asked = 0

    async def __call__(self, messages: Sequence[Message]) -> str:
        """What the engine answers, without its reasoning; of the same episode the same, whoever shares its batch."""
        self._num_asked += 1
        # Sampled, not greedy: a judgement that could not be read is asked for again.
        sampling = SamplingParams(max_tokens=MAX_JUDGEMENT_TOKENS, seed=self._seed ^ self._num_asked)
        name = f"{self._session}/{self._num_asked}"
        prompt = self._chat.start(messages)
        try:
            request = GenerationRequest(name, self._session, prompt, sampling)
            completion = await self._engine.generate(request)
        finally:
            self._engine.release(self._session)
        return split_reasoning(self._chat.response(prompt, completion.tokens))[1]
