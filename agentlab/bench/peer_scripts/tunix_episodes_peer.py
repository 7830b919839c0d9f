"""Agentic episodes of google-tunix with its built-in sampler; run by a Python that has it.

Each turn is limited to its own number of tokens rather than to what is left of an episode's budget, so that Tunix
compiles for one number of steps only: the kinder of its two ways. Nothing ends a turn before its last token.

One argument, JSON: {"model": folder, "counts": [8, 32], "shared": 40, "own": 20, "turns": 3, "turn_tokens": 32,
"observation": 40}: prompts of `own` tokens behind `shared` ones that all have.
One line of output, JSON: {"cold": {"tokens": ..., "seconds": ...}, "warm": {"8": {...}, ...}, "peak_bytes": ...},
where cold is the least count from the loaded model on.
"""

# tunix is not installed where types are checked.
# pyright: reportMissingImports=false

import asyncio
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CACHE = 512
MAX_PROMPT = 64


def load(folder: str) -> tuple[Any, Any, Any]:
    """Model, tokenizer, and the sampler's cache."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from transformers import AutoTokenizer
    from tunix.models.llama3 import model as llama
    from tunix.models.llama3 import params
    from tunix.rl.rollout.base_rollout import CacheConfig

    shape = json.loads((Path(folder) / "config.json").read_text())
    head_dim = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    theta = shape.get("rope_theta") or shape["rope_parameters"]["rope_theta"]
    config = llama.ModelConfig(
        num_layers=shape["num_hidden_layers"],
        vocab_size=shape["vocab_size"],
        embed_dim=shape["hidden_size"],
        hidden_dim=shape["intermediate_size"],
        num_heads=shape["num_attention_heads"],
        head_dim=head_dim,
        num_kv_heads=shape["num_key_value_heads"],
        rope_theta=int(theta),
        norm_eps=shape["rms_norm_eps"],
        weight_tying=bool(shape["tie_word_embeddings"]),
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    with mesh:
        model = params.create_model_from_safe_tensors(folder, config, mesh, dtype=jnp.float32)
    cache = CacheConfig(
        cache_size=CACHE, num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=head_dim
    )
    return model, AutoTokenizer.from_pretrained(folder), cache


def words(tokenizer: Any) -> list[str]:
    """Words that are one token each, whatever stands beside them."""
    texts = [tokenizer.decode([token]) for token in range(1000, 20_000)]
    return [text for text in texts if text[0] == " " and text[1:].isalpha() and text.isascii()]


def play(rollout: Any, config: Any, texts: list[str], question: dict[str, Any], count: int, seed: int) -> dict:
    """Episodes at once: as many threads as the learner of Tunix would have, one prompt a call."""
    from tunix.rl.agentic.agents.model_agent import ModelAgent
    from tunix.rl.agentic.environments.base_environment import BaseTaskEnv, EnvStepResult
    from tunix.rl.agentic.trajectory.trajectory_collect_engine import TrajectoryCollectEngine

    rng, sampled = random.Random(seed), []

    def text(num_tokens: int) -> str:
        return "".join(rng.choice(texts) for _ in range(num_tokens))

    class Observed(BaseTaskEnv):
        def _initial_observation(self) -> str:
            return self.task["prompt"]

        def _step_impl(self, action: Any) -> Any:
            observation = self.task["observations"][self.step_count - 1]
            return EnvStepResult(observation=observation, reward=0.0, done=self.step_count >= self.max_steps, info={})

    def call(messages: list[dict[str, str]], env: Any, **_: Any) -> Any:
        output = rollout.generate(["".join(message["content"] for message in messages)], config)
        sampled.append(len(output.tokens[0]))
        return output

    shared, turns = text(question["shared"]), question["turns"]
    pairs = []
    for _ in range(count):
        task: dict[str, Any] = {"prompt": shared + text(question["own"])}
        task["observations"] = [text(question["observation"]) for _ in range(turns + 1)]
        pairs.append((ModelAgent(""), Observed(task, max_steps=turns)))

    async def collect() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=count + 1))
        async for _ in TrajectoryCollectEngine.collect_multiple(pairs, model_call=call, timeout=3600.0):
            pass

    began = time.perf_counter()
    asyncio.run(collect())
    seconds = time.perf_counter() - began
    assert len(sampled) == count * turns and set(sampled) == {question["turn_tokens"]}, sampled
    return {"tokens": sum(sampled), "seconds": seconds}


def main(question: dict[str, Any]) -> dict[str, Any]:
    """The least count cold, then every count once more."""
    from tunix.rl.rollout.base_rollout import RolloutConfig
    from tunix.rl.rollout.vanilla_rollout import VanillaRollout

    model, tokenizer, cache = load(question["model"])
    texts, counts = words(tokenizer), sorted(question["counts"])
    config = RolloutConfig(
        max_tokens_to_generate=question["turn_tokens"],
        temperature=1.0,
        max_prompt_length=MAX_PROMPT,
        kv_cache_size=CACHE,
        eos_tokens=[-1],
        return_logprobs=True,
    )
    began = time.perf_counter()
    rollout = VanillaRollout(model, tokenizer, cache)
    built = time.perf_counter() - began
    cold = play(rollout, config, texts, question, counts[0], seed=0)
    cold["seconds"] += built
    warm = {str(count): play(rollout, config, texts, question, count, seed=count) for count in counts}
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return {"cold": cold, "warm": warm, "peak_bytes": int(peak.split()[1]) * 1024}


if __name__ == "__main__":
    answer = main(json.loads(sys.argv[1]))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
