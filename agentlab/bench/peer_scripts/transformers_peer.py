"""Tokens per second of `generate` of Hugging Face transformers; run by a Python that has torch and transformers.

One argument, JSON: {"model": folder, "rows": [8, 32], "prompt_tokens": 64, "new_tokens": 32}.
One line of output, JSON: {"tokens_per_s": {"8": ..., "32": ...}}.
"""

# torch is not installed where types are checked.
# pyright: reportMissingImports=false

import json
import sys
import time
from typing import Any


def main(question: dict[str, Any]) -> dict[str, Any]:
    """Greedy generation of one batch after another, each once to warm up and then the best of two."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(question["model"], dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    rates = {}
    for rows in question["rows"]:
        tokens = torch.randint(10, 40_000, (rows, question["prompt_tokens"]), generator=generator)
        count = question["new_tokens"]
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            with torch.inference_mode():
                model.generate(tokens, do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0)
            times.append(time.perf_counter() - begin)
        rates[str(rows)] = rows * count / min(times[1:])
    return {"tokens_per_s": rates}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
