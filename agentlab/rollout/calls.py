"""What the model calls of a run waited for in the engine, and how much of their prompts it had already."""

import collections
import math

from agentlab.types import Completion, EngineStats, GenerationRequest


class ModelCalls:
    """Sums over the calls that have ended since they were last measured. Owned by the loop."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = collections.defaultdict(float)

    def add(self, request: GenerationRequest, found: Completion) -> None:
        """A call has ended; one whose prompt fills the context never reached the engine."""
        if found.tokens:
            seconds = {"queued": found.queued_s, "prefill": found.prefill_s, "decode": found.decode_s}
            tokens = {"prompt": len(request.prompt), "computed": found.num_prefilled}
            for what, value in {"calls": 1, **seconds, **tokens}.items():
                self._sums[what] += value

    def measures(self, engine: EngineStats) -> dict[str, float]:
        """Means over the calls since this was last asked, NaN of none, and how full the engine's cache is now."""
        sums, self._sums = self._sums, collections.defaultdict(float)
        calls, prompt = sums["calls"] or math.nan, sums["prompt"] or math.nan
        return {
            **{f"call_{what}_s": sums[what] / calls for what in ("queued", "prefill", "decode")},
            "prompt_cached_share": 1 - sums["computed"] / prompt,
            "cache_used": math.nan if engine.cache_used is None else engine.cache_used,
        }
