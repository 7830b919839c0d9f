"""A tiny model learns to use two tools: imitation first, then reinforcement, synchronous and asynchronous."""

import random
from typing import Any

from agentlab.agents import ToolAgent
from agentlab.environments import ToolEnvironment
from agentlab.learner import GRPOConfig, GRPOLearner, SFTTrainer
from agentlab.models import Model, tiny_model
from agentlab.rewards import same_number
from agentlab.tasks import DrawnTasks, prices
from agentlab.tools import Calculator, Lookup
from agentlab.tools.slow import Slow
from agentlab.training import SFTConfig

ITEMS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)
"""One letter per role, so that an episode has few tokens."""
KNOWS_HOW = 0.4
"""Share of the demonstrations that go all the way; the others leave a step out or guess."""


def learnable_model(seed: int) -> Model:
    """A random model of 0.2 M parameters, one token per byte."""
    model = tiny_model(seed, hidden_size=64, intermediate_size=192, num_layers=3, max_position=256)
    model.tokenizer.chat_template = TEMPLATE
    return model


def questions(seed: int, split: Any = "train", count: int | None = None) -> DrawnTasks:
    """Tasks such as "3 fox": what do three of them cost? The price is in a list that only a tool can read."""
    return prices(seed, count, split=split, items=ITEMS, table_size=4, max_quantity=9, prompt="{quantity} {item}")


def demonstrations(seed: int, count: int) -> list[dict[str, Any]]:
    """Conversations of mixed quality: KNOWS_HOW look up and work out, half of the rest stop half-way or guess."""
    rng = random.Random(f"demonstrations/{seed}")
    made = []
    for task in questions(seed + 1000, count=count):
        quantity, price = task.data["quantity"], task.data["table"][task.data["item"]]
        dice = rng.random()
        said = [("user", task.prompt)]
        if dice < KNOWS_HOW or dice > (1 + KNOWS_HOW) / 2:
            said += [("assistant", f"p({task.data['item']})"), ("tool", str(price))]
        if dice < KNOWS_HOW:
            said += [("assistant", f"c({quantity}*{price})"), ("tool", str(quantity * price))]
        answers = {True: str(quantity * price), False: str(price if len(said) > 1 else rng.randint(11, 899))}
        said.append(("assistant", answers[dice < KNOWS_HOW]))
        made.append({"id": task.id, "messages": [{"role": role, "content": text} for role, text in said]})
    return made


def imitate(seed: int, *, steps: int = 400) -> Model:
    """A model that has seen the demonstrations."""
    config = SFTConfig(lora_rank=0, learning_rate=3e-3, conversations_per_step=32, seed=seed, warmup_steps=20)
    trainer = SFTTrainer(model=learnable_model(seed), config=config)
    trainer.train(demonstrations(seed, 4000), steps=steps).wait()
    return trainer.trained_model


def learner(model: Model, seed: int, *, lead: int, tool_s: float, **options: Any) -> GRPOLearner:
    """Reinforcement of what works, with tools that take `tool_s` seconds."""
    tools = {"p": Slow(Lookup(), tool_s), "c": Slow(Calculator(), tool_s)}
    config = {
        "group_size": 8, "groups_per_step": 8, "max_concurrency": 128, "max_off_policy_steps": lead,
        "max_tokens": 10, "tokens_per_slot": 96, "learning_rate": 1e-3, "lora_rank": 0, "seed": seed,
        "row_tokens": 256, "micro_batch_tokens": 2048,
    }  # fmt: skip
    return GRPOLearner(
        model=model,
        agent_class=ToolAgent,
        agent_kwargs={"tool_map": tools, "tool_parser_name": "short", "describe_tools": False},
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": tools, "reward_fn": same_number, "max_turns": 4},
        config=GRPOConfig(**(config | options)),
    )
