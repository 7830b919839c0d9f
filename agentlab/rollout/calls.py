"""What the model calls of a run waited for in the engine, and how much of their prompts it had already."""

import math

from agentlab.types import Completion, EngineStats, GenerationRequest, mean


class ModelCalls:
    """The calls that have ended since they were last measured. Owned by the loop."""

    def __init__(self) -> None:
        self._ended: list[dict[str, float]] = []

    def add(self, request: GenerationRequest, found: Completion) -> None:
        """A call has ended; one whose prompt fills the context never reached the engine."""
        if found.tokens:
            seconds = {"queued": found.queued_s, "prefill": found.prefill_s, "decode": found.decode_s}
            self._ended.append({**seconds, "prompt": len(request.prompt), "computed": found.num_prefilled})

    def measures(self, engine: EngineStats) -> dict[str, float]:
        """Means over the calls since this was last asked, NaN of none, and how full the engine's cache is now."""
        ended, self._ended = self._ended, []
        prompt = sum(call["prompt"] for call in ended) or math.nan
        return {
            **{f"call_{what}_s": mean([call[what] for call in ended]) for what in ("queued", "prefill", "decode")},
            "prompt_cached_share": 1 - sum(call["computed"] for call in ended) / prompt,
            "cache_used": math.nan if engine.cache_used is None else engine.cache_used,
        }
