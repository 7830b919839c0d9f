"""Two episodes before a run: what the model reads and is trained on, what it will need, and what looks wrong."""

import math
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentlab import tracing
from agentlab.files import escaped
from agentlab.inference.base import Engine
from agentlab.models import Model, without_adapters
from agentlab.models.config import LoraConfig
from agentlab.models.decoder import abstract_params
from agentlab.models.tree import flat_arrays
from agentlab.rollout.evaluation import evaluate_async
from agentlab.rollout.orchestrator import Tasks, check_tasks
from agentlab.rollout.serving import run_served
from agentlab.types import ToolResult, Trajectory, as_task, mean
from agentlab.viz.episode import all_of, show_trajectory
from agentlab.viz.preview_page import page, page_as_text

NUM_EPISODES = 2
FLOAT32_BYTES = 4
ARRAYS_PER_LAYER = 12
"""Arrays of the hidden size that one block keeps for the backward pass, about."""
TRAINING_PASSES = 3
"""A forward and a backward pass cost about as much as three forward passes (Kaplan et al. 2020, section 2.1)."""


@dataclass(frozen=True, repr=False)
class Preview:
    """Two episodes of one task, and what they say of the run to come; HTML in a notebook, text elsewhere."""

    trajectories: tuple[Trajectory, ...]
    warnings: tuple[str, ...]
    """What looks wrong, a sentence each with what to do; empty if nothing does."""
    memory_bytes: Mapping[str, int]
    """What a run will hold on the device, by what it is for."""
    times_s: Mapping[str, float]
    """Seconds of one update by what they go into, at most; NaN where nothing was measured."""
    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def preview(
    engine: Engine, tasks: Tasks, *, model: Model, config: Any, roles: Mapping[str, Any], scripted: bool = False
) -> Preview:
    """Play the first task twice and look at it.

    Args:
        engine: Plays it; served for as long as that takes.
        tasks: The first is played; of an iterator it is used up.
        model: What is to be trained.
        config: A `GRPOConfig`.
        roles: Classes and keyword arguments of agent and environment.
        scripted: Whether the engine answers from a script, so that its times say nothing.

    Raises:
        ConfigError: there is no task.
    """
    check_tasks(tasks)
    since_ns = tracing.now_ns()

    async def play() -> tuple[Trajectory, ...]:
        task = as_task(await _first(tasks), 0)
        found = await evaluate_async(engine, [task], k=NUM_EPISODES, config=config, **roles)
        return found.trajectories

    trajectories = run_served(engine, play)
    memory = memory_plan(model, config)
    spans = [] if scripted else tracing.spans(since_ns)
    token_s, prompt_token_s = (_per_token(spans, engine, kind) for kind in ("decode", "prefill"))
    times = time_estimate(trajectories, config, token_s=token_s, prompt_token_s=prompt_token_s)
    warnings = warnings_of(trajectories, config)
    views = [show_trajectory(trajectory, model.tokenizer) for trajectory in trajectories]
    parts = [_reward_row(trajectory) for trajectory in trajectories]
    html = page(warnings, memory, times, parts, [view.html for view in views])
    text = escaped(page_as_text(warnings, memory, times, parts, [repr(view) for view in views]))
    return Preview(trajectories, warnings, memory, times, html, text)


def _per_token(spans: Sequence[tracing.Span], engine: Engine, kind: Literal["decode", "prefill"]) -> float:
    """Seconds of the device per token that was sampled or read; NaN where none was."""
    stats = engine.stats()
    num_tokens = stats.tokens_sampled if kind == "decode" else stats.tokens_prefilled
    busy_s = sum(span.duration_s for span in spans if span.stage == kind)
    return busy_s / num_tokens if spans and num_tokens else math.nan


async def _first(tasks: Tasks) -> Any:
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            return task
        return None
    return next(iter(tasks), None)


def _reward_row(trajectory: Trajectory) -> dict[str, float]:
    return {"reward": trajectory.reward, **trajectory.reward_parts}


def memory_plan(model: Model, config: Any) -> dict[str, int]:
    """Bytes that a run holds on the device, by what they are for; compiled programs' own come on top.

    Activations are an estimate, the rest is exact for one device.
    """
    bare = without_adapters(model)
    shape, arrays = bare.config, flat_arrays(bare.params)
    item_bytes = next(iter(arrays.values())).dtype.itemsize
    num_trained = sum(array.size for array in arrays.values())
    if config.lora_rank:
        lora = model.config.lora or LoraConfig(rank=config.lora_rank, alpha=1.0)
        adapted = flat_arrays(abstract_params(replace(shape, lora=lora), next(iter(arrays.values())).dtype))
        num_trained = sum(array.size for path, array in adapted.items() if path not in arrays)
    layers = 2 + (1 if config.remat else shape.num_layers) * ARRAYS_PER_LAYER
    slots = config.num_slots or config.max_concurrency
    weights = sum(array.size * item_bytes for array in arrays.values())
    copies = 2 + bool(config.beta and not config.lora_rank)
    return {
        "weights, the engine's and the new ones": copies * weights,
        "trained weights, their gradients and optimizer state": 4 * num_trained * FLOAT32_BYTES,
        "keys and values of the engine": (
            2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * item_bytes * slots * config.tokens_per_slot
        ),
        "activations of a micro-batch, about": config.micro_batch_tokens * shape.hidden_size * layers * FLOAT32_BYTES,
        "logits": 2 * config.logit_chunk_tokens * shape.vocab_size * FLOAT32_BYTES,
    }


def time_estimate(
    trajectories: Sequence[Trajectory], config: Any, *, token_s: float, prompt_token_s: float
) -> dict[str, float]:
    """Seconds of one update by what they go into; an upper bound, from two episodes at once.

    More episodes in flight make better use of the device, and rollout and training overlap.

    Args:
        token_s: Device seconds per sampled token.
        prompt_token_s: Device seconds per prompt token that was computed.
    """
    episodes = config.group_size * config.groups_per_step
    sampled = mean([t.num_sampled for t in trajectories])
    length = mean([sum(len(row.tokens) for row in t.rows) for t in trajectories])
    waiting_s = mean([sum(turn.step_s for turn in t.turns) for t in trajectories])
    waves = math.ceil(episodes / config.max_concurrency)
    return {
        "sampling": episodes * sampled * token_s,
        "reading prompts": episodes * max(length - sampled, 0) * prompt_token_s,
        "environments and tools": waves * waiting_s,
        "training": TRAINING_PASSES * config.epochs_per_batch * episodes * length * prompt_token_s,
    }


def warnings_of(trajectories: Sequence[Trajectory], config: Any) -> tuple[str, ...]:
    """What looks wrong in the episodes of one task, a sentence each with what to do."""
    found = [warning for t in trajectories for warning in _of_one(t, config)]
    scored = [t.reward for t in trajectories if t.scored]
    if len(scored) > 1 and len(set(scored)) == 1:
        found.append(
            f"All episodes earned {scored[0]:.3g}: nothing is learned from a group whose rewards are all equal. "
            "If larger groups do not differ either, choose other tasks or a finer reward."
        )
    prompts = {t.rows[0].tokens[: t.rows[0].prompt_length] for t in trajectories if t.rows}
    if len(prompts) > 1 and not all("player" in turn.info for t in trajectories for turn in t.turns):
        found.append(
            "The episodes of one task began with different prompts, so their rewards are not about the same thing. "
            "Draw chance in the environment from a seed in task.data."
        )
    return tuple(dict.fromkeys(found))


def _of_one(trajectory: Trajectory, config: Any) -> list[str]:
    who = f"Episode {trajectory.episode}"
    found: list[str] = []
    if trajectory.failure is not None:
        failure = trajectory.failure
        found.append(f"{who} failed in {failure.stage}, turn {failure.turn + 1}: {failure.error}")
    if not trajectory.num_sampled:
        found.append(f"{who} has an empty loss mask: the model sampled nothing, so there is nothing to train.")
    for number, turn in enumerate(trajectory.turns, 1):
        if turn.finish_reason == "length":
            found.append(
                f"{who}, turn {number}: the answer was cut by max_tokens={config.max_tokens}. Raise max_tokens, or "
                "ask for shorter answers."
            )
    longest = max((len(row.tokens) for row in trajectory.rows), default=0)
    if trajectory.truncation == "context" or longest + config.max_tokens > config.tokens_per_slot:
        found.append(
            f"{who}: the context is too short: {longest} tokens and max_tokens={config.max_tokens} more do not fit "
            f"into tokens_per_slot={config.tokens_per_slot}. Raise tokens_per_slot."
        )
    if trajectory.truncation == "max_turns":
        found.append(f"{who} ran out of turns after {len(trajectory.turns)}. Raise max_turns if it needed more.")
    if len(trajectory.rows) > 1:
        found.append(
            f"{who} has {len(trajectory.rows)} token rows: the agent or the chat template rewrote what was said "
            "before. Each row is trained, but its prompt is computed again."
        )
    return found + _reward_warnings(trajectory, who) + _call_warnings(trajectory, who)


def _reward_warnings(trajectory: Trajectory, who: str) -> list[str]:
    early = [number for number, turn in enumerate(trajectory.turns[:-1], 1) if turn.reward]
    if not early or trajectory.turns[-1].reward:
        return []
    return [
        f"{who}: turn {early[0]} earned {trajectory.turns[early[0] - 1].reward:.3g} although the episode went on, and "
        "the last turn earned nothing. A reward for the whole episode belongs to the turn that ends it, with done=True."
    ]


def _call_warnings(trajectory: Trajectory, who: str) -> list[str]:
    results = [result for turn in trajectory.turns for result in results_of(turn.observation)]
    failed = [result for result in results if result.failed]
    if not failed:
        return []
    return [f"{who}: {len(failed)} of {len(results)} tool calls failed; the first: {failed[0].text:.200}"]


def results_of(observation: Any) -> list[ToolResult]:
    """The tool results in an observation."""
    return all_of(ToolResult, lambda: observation if isinstance(observation, list | tuple) else [observation])
