"""Seconds per GRPO step of google-tunix's agentic learner, and its peak memory; run by a Python that has tunix.

One argument, JSON: {"tokenizer": folder, "shape": {...}, "system": text, "prompts": [...], "group_size": 8,
"turns": 2, "new_tokens": 8, "observation": text, "tool_s": 0.5, "steps": 3}. Each step takes all prompts.
One line of output, JSON: {"step_s": [...], "cpu_s": [...], "peak_bytes": ..., "sampled_tokens": ...}.

The model has random weights, all of which are trained, in float32, by AdamW; sampling and training are on one
device; the divergence has weight 0, so that no reference is computed. A model call samples `new_tokens` at most,
which tunix has no option for: it takes what is left of the whole episode.
"""

# tunix is not installed where types are checked.
# pyright: reportMissingImports=false

import json
import resource
import sys
import time
from itertools import pairwise
from typing import Any


class Times:
    """When each step ended."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = [time.perf_counter()], [time.process_time()]
        self.sampled = 0

    def step_ended(self) -> None:
        self.wall_s.append(time.perf_counter())
        self.cpu_s.append(time.process_time())


def llama(shape: dict[str, Any]) -> Any:
    """A random model of this shape."""
    from flax import nnx
    from tunix.models.llama3.model import Llama3, ModelConfig

    config = ModelConfig(
        num_layers=shape["num_layers"],
        vocab_size=shape["vocab_size"],
        embed_dim=shape["hidden_size"],
        hidden_dim=shape["intermediate_size"],
        num_heads=shape["num_heads"],
        head_dim=shape["head_dim"],
        num_kv_heads=shape["num_kv_heads"],
        rope_theta=10_000,
        norm_eps=1e-5,
        weight_tying=True,
    )
    return Llama3(config, rngs=nnx.Rngs(0))


def cluster(question: dict[str, Any], tokenizer: Any, prompt_tokens: int, response_tokens: int) -> Any:
    """Model, sampler and trainer on one device."""
    import jax
    import numpy as np
    import optax
    from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
    from tunix.rl.rollout.base_rollout import RolloutConfig

    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    num_prompts = len(question["prompts"])
    training = RLTrainingConfig(
        actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6)),
        eval_every_n_steps=10_000,
        max_steps=question["steps"],
        mini_batch_size=num_prompts,
        train_micro_batch_size=1,
    )
    rollout = RolloutConfig(
        max_tokens_to_generate=response_tokens,
        max_prompt_length=prompt_tokens,
        kv_cache_size=2 * prompt_tokens + 4 * response_tokens,
        temperature=1.0,
        return_logprobs=True,
    )
    roles = dict.fromkeys((Role.ACTOR, Role.REFERENCE, Role.ROLLOUT), mesh)
    config = ClusterConfig(role_to_mesh=roles, training_config=training, rollout_config=rollout)
    with mesh:
        return RLCluster(actor=llama(question["shape"]), tokenizer=tokenizer, cluster_config=config)


def parser_of(tokenizer: Any) -> Any:
    """The chat template as tunix wants it, message by message."""
    from tunix.rl.agentic.parser.chat_template_parser.parser import BaseChatTemplateParser, TokenConfig

    class ChatML(BaseChatTemplateParser):
        def _init_tokens(self) -> Any:
            return TokenConfig(eos_token="<|im_end|>", eot_token="<|im_end|>", message_separator="\n")

        def _init_generation_prompt(self) -> str:
            return "<|im_start|>assistant\n"

        def _parse_message(self, message: dict[str, str]) -> str:
            return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>"

    return ChatML(tokenizer)


def environment_of(question: dict[str, Any]) -> Any:
    """So many turns, each but the last with a tool that takes its time."""
    from tunix.rl.agentic.environments.base_environment import BaseTaskEnv, EnvStepResult

    class Turns(BaseTaskEnv):
        def __init__(self, task: Any, **options: Any):
            super().__init__(task=task, max_steps=question["turns"], **options)
            self.turn = 0

        def _initial_observation(self) -> Any:
            return {"prompts": str(self.task["prompts"][0])}

        def _step_impl(self, action: Any) -> Any:
            self.turn += 1
            done = self.turn == question["turns"]
            if not done:
                time.sleep(question["tool_s"])
            return EnvStepResult(question["observation"], float(self.extra_kwargs["pair_index"] % 2), done, {})

    return Turns


def learner_of(question: dict[str, Any], made: Any, tokenizer: Any, response_tokens: int, times: Times) -> Any:
    """The agentic GRPO learner, whose calls sample `new_tokens` each."""
    from tunix.rl.agentic.agentic_grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.agentic.agents.model_agent import ModelAgent

    class Capped(GRPOLearner):
        def _model_call(self, chat_lists: Any, env: Any = None, max_generation_steps: int | None = None) -> Any:
            answer = super()._model_call(chat_lists, env, question["new_tokens"])
            times.sampled += len(answer.tokens[0])
            return answer

    config = GRPOConfig(
        num_generations=question["group_size"],
        max_concurrency=question["group_size"] * len(question["prompts"]),
        max_response_length=response_tokens,
        beta=0.0,
        off_policy_steps=0,
        system_prompt=question["system"],
    )
    return Capped(
        rl_cluster=made,
        algo_config=config,
        reward_fns=None,
        chat_parser=parser_of(tokenizer),
        agent_class=ModelAgent,
        env_class=environment_of(question),
    )


def sizes(question: dict[str, Any], tokenizer: Any) -> tuple[int, int]:
    """(tokens of the first prompts, those of all turns after them); the first a power of 2, as prompts are padded."""
    parser = parser_of(tokenizer)
    firsts = [
        parser.parse(
            [{"role": "system", "content": question["system"]}, {"role": "user", "content": prompt}],
            add_generation_prompt=True,
            is_first_msg=True,
        )
        for prompt in question["prompts"]
    ]
    reply = parser.parse([{"role": "user", "content": question["observation"]}], add_generation_prompt=True)
    longest = max(len(tokenizer.encode(first)) for first in firsts)
    turn = question["new_tokens"] + len(tokenizer.encode(reply))
    return 1 << (longest - 1).bit_length(), question["turns"] * turn + 8


def main(question: dict[str, Any]) -> dict[str, Any]:
    """Some steps; the first ones compile."""
    import numpy as np
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(question["tokenizer"])
    prompt_tokens, response_tokens = sizes(question, tokenizer)
    times = Times()
    made = cluster(question, tokenizer, prompt_tokens, response_tokens)
    learner = learner_of(question, made, tokenizer, response_tokens, times)

    def batches() -> Any:
        for _ in range(question["steps"]):
            yield {"prompts": np.asarray(question["prompts"])}
            times.step_ended()

    learner.train(batches())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    step_s, cpu_s = ([after - before for before, after in pairwise(ends)] for ends in (times.wall_s, times.cpu_s))
    return {"step_s": step_s, "cpu_s": cpu_s, "peak_bytes": peak, "sampled_tokens": times.sampled}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(json.loads(sys.argv[1]))) + "\n")
