"""A tiny model learns to use two tools: imitation first, then reinforcement, synchronous and asynchronous."""

import argparse
import itertools
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlab.agents import ToolAgent
from agentlab.bench.contract import Row
from agentlab.environments import ToolEnvironment
from agentlab.inference import JaxEngine
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.learner import GRPOConfig, GRPOLearner, SFTTrainer
from agentlab.models import Model, tiny_model
from agentlab.rewards import same_number
from agentlab.tasks import DrawnTasks, prices
from agentlab.tools import Calculator, Lookup
from agentlab.tools.slow import Slow
from agentlab.training import SFTConfig
from agentlab.types import interval

GAIN_POINTS = 30.0
"""Points of held-out success that reinforcement must add to imitation."""
SEEDS, SFT_STEPS, STEPS = 3, 180, 14
"""Models, and updates of each: by example, and by reinforcement."""
WHOLE_S = 300.0
"""Seconds that everything may take on two cores, compilation included."""
SFT: dict[str, Any] = {"learning_rate": 6e-3, "conversations_per_step": 32, "warmup_steps": 20}
PACKED: dict[str, Any] = {"lora_rank": 0, "row_tokens": 128, "micro_batch_tokens": 128}
"""Single short rows have three shapes, so that little time goes into compiling."""
SLOTS, SLOT_TOKENS = 128, 96
SHAPES = Shapes(
    decode_rows=(SLOTS,), prefill=(PrefillSize(16, 16),), contexts=(SLOT_TOKENS,), prefill_contexts=(SLOT_TOKENS,)
)
"""One program each to prefill and to decode: for so small a model padding costs less than another compilation."""
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


def imitate(seed: int, *, steps: int) -> Model:
    """A model that has seen the demonstrations."""
    trainer = SFTTrainer(model=learnable_model(seed), config=SFTConfig(**SFT, **PACKED, seed=seed))
    trainer.train(demonstrations(seed, 4000), steps=steps).wait()
    return trainer.trained_model


def engine_of(model: Model) -> JaxEngine:
    """What samples: an engine with a place for every episode in flight, and few programs."""
    return JaxEngine(model, num_slots=SLOTS, tokens_per_slot=SLOT_TOKENS, shapes=SHAPES)


def learner(model: Model, seed: int, *, lead: int = 0, tool_s: float = 0.0) -> GRPOLearner:
    """Reinforcement of what works, with tools that take `tool_s` seconds."""
    tools = {"p": Slow(Lookup(), tool_s), "c": Slow(Calculator(), tool_s)}
    config: dict[str, Any] = {
        "group_size": 8, "groups_per_step": 8, "max_concurrency": SLOTS, "max_off_policy_steps": lead,
        "max_tokens": 10, "tokens_per_slot": SLOT_TOKENS, "learning_rate": 1e-3, "seed": seed, **PACKED,
    }  # fmt: skip
    return GRPOLearner(
        model=model,
        agent_class=ToolAgent,
        agent_kwargs={"tool_map": tools, "tool_parser_name": "short", "describe_tools": False},
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": tools, "reward_fn": same_number, "max_turns": 4},
        config=GRPOConfig(**config),
        engine=engine_of,
    )


@dataclass(frozen=True)
class Outcome:
    """What one reinforcement run reached."""

    before: tuple[bool, ...]
    """Per held-out task, whether the imitating model solved it."""
    after: tuple[bool, ...]
    wall_s: float
    """Of all updates, at the median time from one to the next: programs are compiled in a few of them."""


def reinforce(model: Model, seed: int, *, lead: int, steps: int, tool_s: float) -> tuple[Model, float]:
    """The model after `steps` updates, and the seconds that they took as `Outcome` has them."""
    trained = learner(model, seed, lead=lead, tool_s=tool_s)
    run = trained.train(questions(seed), steps=steps).wait()
    times = [row["time_s"] for row in run.metrics]
    return trained.trained_model, steps * statistics.median(b - a for a, b in itertools.pairwise([0.0, *times]))


def played(model: Model, seed: int, count: int) -> tuple[bool, ...]:
    """Per held-out task, whether the model solves it."""
    return solved(learner(model, seed).evaluate(list(questions(seed, "eval", count))))


def solved(found: Any) -> tuple[bool, ...]:
    """Per episode of an evaluation, whether it earned the full reward."""
    return tuple(trajectory.reward >= 1.0 for trajectory in found.trajectories)


def share(found: Sequence[Outcome], when: str) -> float:
    """Points of success over all seeds."""
    flags = [flag for outcome in found for flag in getattr(outcome, when)]
    return 100 * sum(flags) / len(flags)


def gain_interval(found: Sequence[Outcome]) -> tuple[float, float]:
    """Points gained, and the half width of the paired 95 % interval over all tasks of all seeds (normal)."""
    gains = [100.0 * (b - a) for outcome in found for a, b in zip(outcome.before, outcome.after, strict=True)]
    mean = sum(gains) / len(gains)
    variance = sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
    return mean, 1.96 * math.sqrt(variance / len(gains))


def success_interval(found: Sequence[Outcome]) -> tuple[float, float]:
    """95 % interval of the success that a seed reaches, in points: the seeds' own spread (Student's t),
    and no narrower than what so many tasks can tell (Wilson)."""
    shares = [100 * sum(outcome.after) / len(outcome.after) for outcome in found]
    flags = [flag for outcome in found for flag in outcome.after]
    low, high = (100 * end for end in interval(sum(flags), len(flags)))
    if len(shares) > 1:
        mean = sum(shares) / len(shares)
        spread = math.sqrt(sum((one - mean) ** 2 for one in shares) / (len(shares) - 1))
        half = STUDENT_T.get(len(shares) - 1, 2.0) * spread / math.sqrt(len(shares))
        low, high = min(low, mean - half), max(high, mean + half)
    return low, high


STUDENT_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""Two-sided 95 % quantiles by degrees of freedom."""


def rows_of(sync: Sequence[Outcome], ahead: Sequence[Outcome], sft_s: float) -> list[Row]:
    """The figures with their goals."""
    gain, half = gain_interval(sync)
    low, high = success_interval(sync)
    reached = share(ahead, "after")
    return [
        Row("parameters of the model", learnable_model(0).config.num_parameters, "≤ 5e6", holds=True),
        Row("imitation, per seed", sft_s, unit="s"),
        Row("held-out success after imitation", share(sync, "before"), unit="%"),
        Row("held-out success after synchronous reinforcement", share(sync, "after"), unit="%"),
        Row.at_least("gain, over all seeds", gain, GAIN_POINTS, "points"),
        Row("half of its paired 95 % interval", half, unit="points"),
        *(
            Row.at_least(f"gain, seed {n}", gain_interval([one])[0], GAIN_POINTS, "points")
            for n, one in enumerate(sync)
        ),
        Row(
            "held-out success one step ahead",
            reached,
            f"in the interval of synchronous, {low:.1f} to {high:.1f}, or above",
            "%",
            reached >= low,
        ),
        Row.at_most(
            "wall time of the same updates one step ahead, over synchronous",
            sum(one.wall_s for one in ahead) / sum(one.wall_s for one in sync),
            1.0,
        ),
    ]


def measure(
    *, seeds: int = SEEDS, sft_steps: int = SFT_STEPS, steps: int = STEPS, tool_s: float = 0.5, held_out: int = 96
) -> list[Row]:
    """Imitate and reinforce with each seed, synchronous and one step ahead."""
    found: dict[int, list[Outcome]] = {0: [], 1: []}
    imitating_s = 0.0
    for seed in range(seeds):
        began_s = time.perf_counter()
        model = imitate(seed, steps=sft_steps)
        imitating_s += time.perf_counter() - began_s
        before = played(model, seed, held_out)
        for lead, outcomes in found.items():
            trained, wall_s = reinforce(model, seed, lead=lead, steps=steps, tool_s=tool_s)
            outcomes.append(Outcome(before, played(trained, seed, held_out), wall_s))
    return rows_of(found[0], found[1], imitating_s / seeds)


def run(arguments: Sequence[str] = ()) -> list[Row]:
    """Measure; the number of seeds and updates may be chosen."""
    parser = argparse.ArgumentParser(prog="python -m agentlab.bench learning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--sft-steps", type=int, default=SFT_STEPS, help="updates by example")
    parser.add_argument("--steps", type=int, default=STEPS, help="reinforcement updates")
    parser.add_argument("--tool-seconds", type=float, default=0.5, help="what a tool call takes")
    chosen = parser.parse_args(arguments)
    began_s = time.perf_counter()
    rows = measure(seeds=chosen.seeds, sft_steps=chosen.sft_steps, steps=chosen.steps, tool_s=chosen.tool_seconds)
    return [*rows, Row.at_most("all of it", time.perf_counter() - began_s, WHOLE_S, "s")]
