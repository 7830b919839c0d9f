"""Tokens per second of vLLM's CPU build, in process; run by a Python that has it.

One argument, JSON: {"model": folder, "rows": [8, 32], "prompt_tokens": 64, "new_tokens": 32}.
One line of output, JSON: {"tokens_per_s": {"8": ..., "32": ...}}.
"""

# vllm is not installed where types are checked.
# pyright: reportMissingImports=false

import json
import os
import random
import sys
import time
from typing import Any

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Neither threads nor compilation are held back: they are vLLM's own choice."""


def main(question: dict[str, Any]) -> dict[str, Any]:
    """Greedy requests made at once, each batch once to warm up and then the best of two."""
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    import vllm

    library: Any = vllm
    engine = library.LLM(
        question["model"], dtype="float32", max_model_len=256, max_num_seqs=max(question["rows"]), enforce_eager=True
    )
    count = question["new_tokens"]
    sampling = library.SamplingParams(temperature=0.0, min_tokens=count, max_tokens=count, ignore_eos=True)
    rng, rates = random.Random(0), {}
    for rows in question["rows"]:
        times = []
        for _ in range(3):
            prompts = [
                {"prompt_token_ids": [rng.randrange(100, 40_000) for _ in range(question["prompt_tokens"])]}
                for _ in range(rows)
            ]
            begin = time.perf_counter()
            done = engine.generate(prompts, sampling, use_tqdm=False)
            times.append(time.perf_counter() - begin)
            assert sum(len(one.outputs[0].token_ids) for one in done) == rows * count
        rates[str(rows)] = rows * count / min(times[1:])
    return {"tokens_per_s": rates}


if __name__ == "__main__":
    answer = main(json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(answer) + "\n")
