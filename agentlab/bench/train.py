"""What the trainer adds to a bare forward and backward pass, and what packing and shared prompts save.

The model has SmolLM2-135M's shape and random weights; adapters of rank 16 are trained in float32. Each
comparison runs both sides in turn, `--repeats` times after all their shapes are compiled, and compares medians.
`--section` chooses among the following.

trainer: whole updates (packing, loss, gradient, metrics, optimizer, publishing the merged weights) of 4
groups of 8 trajectories, one prompt of 100 tokens and 30 to 90 sampled ones each, against nothing but the
gradient of the summed log-probabilities of the same packed micro-batches. Both in tokens per second.

packing: trajectories with the lengths in LENGTHS, packed without shared prompts into rows of 512, against one
row each, padded to the longest; forward and backward, sampled tokens per second.

prefix: one group with a prompt of 256 tokens and 8 completions of 64, packed into rows of 1,024 with
the prompt stored once, against the same with the prompt in every trajectory; forward and backward.

memory: what a trainer of adapters holds beside the model, and how resident memory grows over 300 updates of a
tiny model (Linux).

step: GRPO steps of an agent with tools, end to end, each library alone in a process: see `agentic_step`. With
`--step-peer tunix=PYTHON`, a Python that has google-tunix, its agentic learner is asked the same.

`--peer COMMAND` runs another library's measurement: what it prints last must be one JSON object of figures,
which are reported as they are.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agentlab.bench.agentic_step import step_rows
from agentlab.bench.contract import Row
from agentlab.bench.peers import parse_peer
from agentlab.errors import ConfigError
from agentlab.models import Model, tiny_model
from agentlab.training import TrainConfig, Trainer, pack
from agentlab.training.packing import Packed
from agentlab.training.probe import Probe, live_bytes, size_bytes
from agentlab.types import Task, TokenRow, Trajectory, TrajectoryGroup

SHAPE = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_heads": 9, "num_kv_heads": 3, "head_dim": 64,
}  # fmt: skip
"""Of SmolLM2-135M, but for its 30 layers."""
LENGTHS: tuple[int, ...] = (12, 15, 18, 21, 25, 28, 33, 40, 47, 58, 71, 92, 121, 160, 214, 256)
"""Sampled tokens of 16 answers: many short ones and a long tail that `max_tokens` cuts, as agents' answers are."""
STATM = Path("/proc/self/statm")
UPDATES, WARM_UPDATES = 300, 50


def run(arguments: Sequence[str]) -> list[Row]:
    """The rows of the chosen sections; `--layers` and `--repeats` make it shorter."""
    words = argparse.ArgumentParser(prog="python -m agentlab.bench train")
    words.add_argument("--section", action="append", choices=SECTIONS, help="what to measure; may be repeated")
    words.add_argument("--layers", type=int, default=30, help="layers of the model; SmolLM2-135M has 30")
    words.add_argument("--repeats", type=int, default=3, help="measurements of each side, after what compiles")
    words.add_argument("--step-peer", action="append", default=[], type=parse_peer, help="NAME=PYTHON for the step")
    words.add_argument("--peer", help="a command that prints figures of another library as a JSON object")
    options = words.parse_args(arguments)
    rows = [row for name in options.section or SECTIONS for row in SECTIONS[name](options)]
    return rows + (peer_rows(options.peer) if options.peer else [])


def model_of(options: argparse.Namespace) -> Model:
    """A random model of SmolLM2-135M's shape."""
    return tiny_model(0, **SHAPE, num_layers=options.layers)


def trainer_rows(options: argparse.Namespace) -> list[Row]:
    """Whole updates against the gradient alone."""
    model = model_of(options)
    rng = np.random.default_rng(0)
    groups = [group_of(rng, 100, rng.integers(30, 91, 8), str(number)) for number in range(4)]
    trainer = Trainer(model, TrainConfig(micro_batch_tokens=1024))
    packed = pack(groups, micro_batch_tokens=1024)
    probe = Probe(model)
    trainer.update(groups)
    probe.bare_gradient(one_of_each_shape(packed))
    ours, theirs = medians(options.repeats, lambda: trainer.update(groups), lambda: probe.bare_gradient(packed))
    tokens = packed.counts.tokens
    return [
        Row("trainer, whole update", tokens / ours, unit="tokens/s"),
        Row("bare forward and backward", tokens / theirs, unit="tokens/s"),
        Row.at_least("trainer / bare", theirs / ours, 0.9),
    ]


def packing_rows(options: argparse.Namespace) -> list[Row]:
    """Packed rows against one padded row per trajectory."""
    rng = np.random.default_rng(1)
    groups = [group_of(rng, 40, LENGTHS[number::4], str(number)) for number in range(4)]
    packed = pack(groups, share_prefix=False, row_tokens=512, micro_batch_tokens=1024)
    padded = pack(groups, share_prefix=False, row_tokens=512, micro_batch_tokens=1024, pad_to_longest=True)
    ours, theirs = gradient_medians(model_of(options), options.repeats, packed, padded)
    return [
        Row("padding, packed", packed.counts.padding_share),
        Row("padding, padded to the longest", padded.counts.padding_share),
        Row("packed", packed.counts.sampled_tokens / ours, unit="sampled tokens/s"),
        Row.at_least("packed / padded to the longest", theirs / ours, 2.0),
    ]


def prefix_rows(options: argparse.Namespace) -> list[Row]:
    """A prompt that is computed once against one that is computed for every completion."""
    groups = [group_of(np.random.default_rng(2), 256, [64] * 8, "0")]
    shared, plain = (
        pack(groups, share_prefix=share, row_tokens=1024, micro_batch_tokens=1024) for share in (True, False)
    )
    ours, theirs = gradient_medians(model_of(options), options.repeats, shared, plain)
    return [
        Row("tokens computed, shared prompt", shared.counts.tokens),
        Row("tokens computed, prompt in each", plain.counts.tokens),
        Row("shared prompt", shared.counts.sampled_tokens / ours, unit="sampled tokens/s"),
        Row.at_least("shared prompt / prompt in each", theirs / ours, 2.0),
    ]


def memory_rows(options: argparse.Namespace) -> list[Row]:
    """What adapters need beside the model, and what 300 updates leave behind.

    Raises:
        ConfigError: the machine does not say how much memory a process has.
    """
    if not STATM.exists():
        raise ConfigError(f"The section memory needs {STATM}, which only Linux has. Choose others with --section.")
    model = model_of(options)
    before = live_bytes()
    trainer = Trainer(model)
    added, own = live_bytes() - before, size_bytes(trainer.state())
    return [
        Row("weights of the model", size_bytes(model.params) / 1e6, unit="MB"),
        Row("adapters and optimizer state", own / 1e6, unit="MB"),
        Row.at_most("all that a trainer of adapters adds", added / 1e6, own / 1e6 + 1.0, "MB"),
        Row.at_most(f"resident memory gained over {UPDATES} updates", resident_growth(), 3.0, "MB"),
    ]


def resident_growth() -> float:
    """Megabytes by which the process grows over UPDATES tiny updates, by a line through all but the first."""
    config = TrainConfig(lora_rank=4, row_tokens=64, micro_batch_tokens=64, logit_chunk_tokens=16)
    trainer = Trainer(tiny_model(num_layers=1), config)
    group = group_of(np.random.default_rng(3), 2, [1] * 4, "0", vocab_size=250)
    resident = []
    for _ in range(UPDATES):
        trainer.update([group])
        resident.append(int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
    kept = resident[WARM_UPDATES:]
    return float(np.polyfit(np.arange(len(kept)), kept, 1)[0]) * UPDATES


def agentic_rows(options: argparse.Namespace) -> list[Row]:
    """Whole steps, rollouts included."""
    shape = {**SHAPE, "num_layers": options.layers}
    return step_rows(shape, steps=options.repeats + 1, peers=options.step_peer)


SECTIONS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "trainer": trainer_rows,
    "packing": packing_rows,
    "prefix": prefix_rows,
    "memory": memory_rows,
    "step": agentic_rows,
}


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


def group_of(
    rng: np.random.Generator,
    prompt: int,
    lengths: Sequence[int] | np.ndarray,
    name: str,
    *,
    vocab_size: int = SHAPE["vocab_size"],
) -> TrajectoryGroup:
    """Random trajectories after one prompt, every second one with a reward."""
    task, start = Task(name, "?"), rng.integers(0, vocab_size, prompt).tolist()
    made = []
    for episode, length in enumerate(lengths):
        tokens = (*start, *rng.integers(0, vocab_size, int(length)).tolist())
        mask = (0,) * prompt + (1,) * int(length)
        row = TokenRow(tokens, mask, tuple(-10.8 * m for m in mask), tuple(m - 1 for m in mask))
        made.append(Trajectory(task=task, group_id=name, episode=episode, rows=(row,), reward=float(episode % 2)))
    return TrajectoryGroup(name, task, tuple(made))


def one_of_each_shape(packed: Packed) -> Packed:
    """A part that has a micro-batch of every shape: what must run before anything is measured."""
    return replace(packed, batches=tuple({batch.shape: batch for batch in packed.batches}.values()))


def gradient_medians(model: Model, repeats: int, *loads: Packed) -> tuple[float, ...]:
    """Median seconds of forward and backward of each."""
    probe = Probe(model)
    for packed in loads:
        probe.gradient(one_of_each_shape(packed))
    return medians(repeats, *(partial(probe.gradient, packed) for packed in loads))


def medians(repeats: int, *works: Callable[[], Any]) -> tuple[float, ...]:
    """Median seconds of each, run in turn."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for number, work in enumerate(works):
            start = time.perf_counter()
            work()
            seconds[number].append(time.perf_counter() - start)
    return tuple(map(statistics.median, seconds))
