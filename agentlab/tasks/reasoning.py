"""Tasks of the package reasoning-gym: a hundred generators of puzzles, each with a judge of its own."""

import random
import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from agentlab.errors import ConfigError, nearest
from agentlab.tasks.base import DrawnTasks, Split
from agentlab.types import Task

PROMPT = "{question}"


def reasoning(
    dataset: str,
    seed: int = 0,
    count: int | None = None,
    *,
    split: Split = "train",
    prompt: str = PROMPT,
    **options: Any,
) -> DrawnTasks:
    """Tasks of one of reasoning-gym's generators, for `al.environments.Reasoning`.

    Args:
        dataset: Its name there, e.g. "chain_sum", "leg_counting" or "countdown".
        seed: The same seed draws the same tasks.
        count: How many; None for no end.
        split: "eval" asks only what "train" never asks.
        prompt: How it is asked; must contain {question}.
        options: Of the generator, e.g. `min_terms=2`.

    Raises:
        ConfigError: reasoning-gym is not installed, or has no such generator, or that no such option.
    """
    if "{question}" not in prompt:
        raise ConfigError(f"prompt must contain {{question}}, got {prompt!r}.")
    make = checked_generator(dataset, options)

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Task]]:
        entry = dict(make(rng.getrandbits(31))[0])
        question = str(entry["question"])
        data = {"dataset": dataset, "answer": entry["answer"], "entry": entry}
        return question, lambda name: Task(name, prompt.replace("{question}", question), data)

    return DrawnTasks(f"reasoning/{dataset}", draw, seed=seed, count=count, split=split)


def checked_generator(dataset: str, options: dict[str, Any]) -> Callable[[int], Any]:
    """What makes the dataset of a seed.

    Raises:
        ConfigError: as of `reasoning`.
    """
    datasets = reasoning_gym().factory.DATASETS
    if dataset not in datasets:
        raise ConfigError(f"reasoning-gym has no dataset {dataset!r}.{nearest(str(dataset), datasets)}")
    known = [field.name for field in fields(datasets[dataset][1]) if field.name not in ("seed", "size")]
    for name in options:
        if name not in known:
            raise ConfigError(f"The dataset {dataset!r} has no option {name!r}.{nearest(name, known)}")

    def make(seed: int) -> Any:
        return reasoning_gym().create_dataset(dataset, seed=seed, size=1, **options)

    try:
        make(0)
    except (AssertionError, ValueError, TypeError) as error:  # what its own checks raise
        raise ConfigError(f"The dataset {dataset!r} refuses its options {options}: {error}") from error
    return make


def reasoning_gym() -> Any:
    """The package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports
            import reasoning_gym
    except ImportError as error:
        raise ConfigError("This needs reasoning-gym. Install it: pip install 'agentlab[reasoning-gym]'.") from error
    return reasoning_gym
