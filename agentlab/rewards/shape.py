"""Rewards for the form of an answer: patterns, tags, JSON."""

import inspect
import json
import re
from collections.abc import Awaitable
from typing import Any

from agentlab.errors import ConfigError, RewardError
from agentlab.rewards.score import LoopReward, Reward, RewardFn
from agentlab.types import Task

TAG = re.compile(r"[A-Za-z][\w-]{0,31}")


def regex(pattern: str | None = None, *, whole: bool = False, ignore_case: bool = False) -> RewardFn:
    """A reward function: 1 where the pattern is found in the answer, else 0.

    Args:
        pattern: None takes each task's own, `task.data["pattern"]`. Python's `re` can take for ever on
            a pattern with nested repetition such as `(a+)+`: the reward's deadline then ends the episode.
        whole: Whether it must match the whole answer, spaces at the ends apart.
        ignore_case: Whether large and small letters are the same.

    Raises:
        ConfigError: the pattern is none.
    """
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    if pattern is not None:
        try:
            re.compile(pattern, flags)
        except (re.error, TypeError) as error:
            raise ConfigError(f"The pattern must be a regular expression, got {pattern!r:.80}: {error}.") from error

    def matches(task: Task, answer: str) -> float:
        wanted: Any = task.data.get("pattern") if pattern is None else pattern
        try:
            compiled = re.compile(wanted, flags)  # kept by `re` for the next answer
        except (re.error, TypeError) as error:
            raise RewardError(
                f'Task {task.id!r} must have a pattern in data["pattern"], got {wanted!r:.80}.'
            ) from error
        return float(bool(compiled.fullmatch(answer.strip()) if whole else compiled.search(answer)))

    return matches


def in_format(*tags: str) -> RewardFn:
    """A reward function: 1 where the answer is these tags in this order, each once, and nothing else; else 0.

    `in_format("think", "answer")` wants `<think>…</think><answer>…</answer>`, with white space between.
    Of a model that reasons in <think> tags by itself a `ModelAgent` hands on the answer alone; to reward those tags
    make it with reasoning="kept".

    Raises:
        ConfigError: a tag is no word, or there is none.
    """
    if not tags or not all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in tags):
        raise ConfigError(f'in_format needs the names of tags, e.g. in_format("think", "answer"), got {tags!r}.')

    def formatted(task: Task, answer: str) -> float:
        rest = answer.strip()
        for tag in tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            once = answer.count(opening) == answer.count(closing) == 1
            if not once or not rest.startswith(opening) or closing not in rest:
                return 0.0
            rest = rest.partition(closing)[2].strip()
        return float(not rest)

    return formatted


def in_json(*keys: str) -> RewardFn:
    """A reward function: 1 where the answer is a JSON object with at least these keys; else 0."""

    def formatted(task: Task, answer: str) -> float:
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError):
            return 0.0
        return float(isinstance(value, dict) and all(key in value for key in keys))

    return formatted


def inside(tag: str, reward_fn: RewardFn) -> RewardFn:
    """The reward function, given only what stands in the last `<tag>…</tag>`; 0 where there is none.

    Raises:
        ConfigError: the tag is no word, or the reward function cannot be called.
    """
    if not isinstance(tag, str) or not TAG.fullmatch(tag) or not callable(reward_fn):
        raise ConfigError(f'inside must be like inside("answer", exact), got {tag!r:.40} and {reward_fn!r:.40}.')

    def part_of(answer: str) -> str | None:
        _, opened, after = answer.rpartition(f"<{tag}>")
        text, closed, _ = after.partition(f"</{tag}>")
        return text.strip() if opened and closed else None

    def scored(task: Task, answer: str) -> Any:
        part = part_of(answer)
        return 0.0 if part is None else reward_fn(task, part)

    async def scored_later(task: Task, answer: str) -> float | Reward:
        value: float | Reward | Awaitable[float | Reward] = scored(task, answer)
        return await value if inspect.isawaitable(value) else value

    scored.__name__ = f"inside {tag}"
    return LoopReward(scored_later, f"inside {tag}") if isinstance(reward_fn, LoopReward) else scored
