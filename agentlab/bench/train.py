"""What the trainer adds to a bare forward and backward pass, and what packing and shared prompts save.

The model has SmolLM2-135M's shape and random weights; adapters of rank 16 are trained in float32. Each
comparison runs both sides in turn, `--repeats` times after a first time that compiles, and compares medians.

Trainer: whole updates (packing, loss, gradient, metrics, optimizer, publishing the merged weights) of 8
groups of 8 trajectories, one prompt of 100 tokens and 30 to 90 sampled ones each, against nothing but the
gradient of the summed log-probabilities of the same packed micro-batches. Both in tokens per second.

Packing: trajectories with the lengths in LENGTHS, packed without shared prompts into rows of 512, against one
row each, padded to the longest; forward and backward, sampled tokens per second.

Shared prompts: one group with a prompt of 256 tokens and 8 completions of 64, packed into rows of 1,024 with
the prompt stored once, against the same with the prompt in every trajectory; forward and backward.

`--peer COMMAND` runs another library's measurement: what it prints last must be one JSON object of figures,
which are reported as they are.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentlab.bench.contract import Row
from agentlab.errors import ConfigError
from agentlab.models import Model, tiny_model
from agentlab.training import TrainConfig, Trainer, pack
from agentlab.training.probe import Probe
from agentlab.types import Task, TokenRow, Trajectory, TrajectoryGroup

SMOLLM2 = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_heads": 9, "num_kv_heads": 3}
LENGTHS: tuple[int, ...] = (
    12, 14, 15, 17, 18, 20, 21, 23, 25, 26, 28, 31, 33, 36, 40, 44, 47, 52, 58, 63, 71, 80, 92, 104, 121, 139, 160,
    188, 214, 240, 256, 256,
)  # fmt: skip
"""Sampled tokens of 32 answers: many short ones and a long tail that `max_tokens` cuts, as agents' answers are."""


def run(arguments: Sequence[str]) -> list[Row]:
    """All rows; `--layers` and `--repeats` make it shorter."""
    words = argparse.ArgumentParser(prog="python -m agentlab.bench train")
    words.add_argument("--layers", type=int, default=30, help="layers of the model; SmolLM2-135M has 30")
    words.add_argument("--repeats", type=int, default=3, help="measurements of each side, after one that compiles")
    words.add_argument("--peer", help="a command that prints figures of another library as a JSON object")
    options = words.parse_args(arguments)
    model = tiny_model(0, **SMOLLM2, head_dim=64, num_layers=options.layers)
    return [
        *trainer_rows(model, options.repeats),
        *packing_rows(model, options.repeats),
        *prefix_rows(model, options.repeats),
        *(peer_rows(options.peer) if options.peer else []),
    ]


def trainer_rows(model: Model, repeats: int) -> list[Row]:
    """Whole updates against the gradient alone."""
    rng = np.random.default_rng(0)
    groups = [group_of(rng, 100, rng.integers(30, 91, 8), str(number)) for number in range(8)]
    trainer = Trainer(model, TrainConfig(micro_batch_tokens=1024))
    packed = pack(groups, micro_batch_tokens=1024)
    probe = Probe(model)
    ours, theirs = medians(repeats, lambda: trainer.update(groups), lambda: probe.bare_gradient(packed))
    tokens = packed.counts.tokens
    return [
        Row("trainer, whole update", tokens / ours, unit="tokens/s"),
        Row("bare forward and backward", tokens / theirs, unit="tokens/s"),
        Row.at_least("trainer / bare", theirs / ours, 0.9),
    ]


def packing_rows(model: Model, repeats: int) -> list[Row]:
    """Packed rows against one padded row per trajectory."""
    rng = np.random.default_rng(1)
    groups = [group_of(rng, 40, LENGTHS[number::4], str(number)) for number in range(4)]
    packed = pack(groups, share_prefix=False, row_tokens=512, micro_batch_tokens=1024)
    padded = pack(groups, share_prefix=False, row_tokens=512, micro_batch_tokens=1024, pad_to_longest=True)
    probe = Probe(model)
    ours, theirs = medians(repeats, lambda: probe.gradient(packed), lambda: probe.gradient(padded))
    return [
        Row("padding, packed", packed.counts.padding_share),
        Row("padding, padded to the longest", padded.counts.padding_share),
        Row("packed", packed.counts.sampled_tokens / ours, unit="sampled tokens/s"),
        Row.at_least("packed / padded to the longest", theirs / ours, 2.0),
    ]


def prefix_rows(model: Model, repeats: int) -> list[Row]:
    """A prompt that is computed once against one that is computed for every completion."""
    groups = [group_of(np.random.default_rng(2), 256, [64] * 8, "0")]
    shared, plain = (
        pack(groups, share_prefix=share, row_tokens=1024, micro_batch_tokens=1024) for share in (True, False)
    )
    probe = Probe(model)
    ours, theirs = medians(repeats, lambda: probe.gradient(shared), lambda: probe.gradient(plain))
    return [
        Row("tokens computed, shared prompt", shared.counts.tokens),
        Row("tokens computed, prompt in each", plain.counts.tokens),
        Row("shared prompt", shared.counts.sampled_tokens / ours, unit="sampled tokens/s"),
        Row.at_least("shared prompt / prompt in each", theirs / ours, 2.0),
    ]


def peer_rows(command: str) -> list[Row]:
    """The figures of another library.

    Raises:
        ConfigError: the command fails, or does not end with a JSON object of numbers.
    """
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    try:
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        return [Row(f"peer: {name}", float(value)) for name, value in figures.items()]
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            "--peer must be a command whose last line is a JSON object of numbers, e.g. "
            f'{{"seconds": 12.5}}; it ended with status {done.returncode} and wrote {done.stdout[-200:]!r} '
            f"and {done.stderr[-400:]!r}."
        ) from error


def group_of(rng: np.random.Generator, prompt: int, lengths: Sequence[int] | np.ndarray, name: str) -> TrajectoryGroup:
    """Random trajectories after one prompt, every second one with a reward."""
    task, start = Task(name, "?"), rng.integers(0, SMOLLM2["vocab_size"], prompt).tolist()
    made = []
    for episode, length in enumerate(lengths):
        tokens = (*start, *rng.integers(0, SMOLLM2["vocab_size"], int(length)).tolist())
        mask = (0,) * prompt + (1,) * int(length)
        row = TokenRow(tokens, mask, tuple(-10.8 * m for m in mask), tuple(m - 1 for m in mask))
        made.append(Trajectory(task=task, group_id=name, episode=episode, rows=(row,), reward=float(episode % 2)))
    return TrajectoryGroup(name, task, tuple(made))


def medians(repeats: int, *works: Callable[[], Any]) -> tuple[float, ...]:
    """Median seconds of each, run in turn, after one run that does not count."""
    seconds: list[list[float]] = [[] for _ in works]
    for repeat in range(repeats + 1):
        for number, work in enumerate(works):
            start = time.perf_counter()
            work()
            if repeat:
                seconds[number].append(time.perf_counter() - start)
    return tuple(map(statistics.median, seconds))
