"""The engine beside other people's engines, each in a Python of its own."""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from agentlab.bench.contract import Row
from agentlab.bench.engine_load import (
    OBSERVATION,
    OWN,
    PROMPT,
    SHARED,
    TURN_TOKENS,
    TURNS,
    play_episodes,
    random_tokens,
    request,
    timed_gather,
)
from agentlab.bench.engine_process import ask_process
from agentlab.bench.peers import ask_peer
from agentlab.inference import JaxEngine
from agentlab.models import Model, save_model

NEW_TOKENS = 32
"""Of each sequence."""
EPISODES = {"tunix_episodes"}
"""Peers that have episodes of their own; the others are asked for sequences."""
GOALS = {8: 5.0, 32: 8.0}
"""How many times the rate of a peer's episodes the engine's must be."""

Peer = tuple[str, str]
"""Name and Python."""


def peer_rows(
    name: str, subject: Callable[[], tuple[Model, JaxEngine]], peers: Sequence[Peer], counts: Sequence[int]
) -> list[Row]:
    """Ours is timed before and after each of theirs, on the same numbers of tokens.

    Args:
        name: Of the model, for a process of its own.
        subject: The model and an engine of at least `max(counts)` slots.
        peers: Who.
        counts: Sequences or episodes at once.
    """
    if not peers:
        return []
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        save_model(subject()[0], folder)
        for peer in peers:
            ask = episode_rows if peer[0] in EPISODES else sequence_rows
            rows += ask(name, folder, subject()[1], peer, counts)
    return rows


def sequence_rows(name: str, folder: str, engine: JaxEngine, peer: Peer, counts: Sequence[int]) -> list[Row]:
    """Sampled tokens per second of requests made at once, prefill included; each side's best of two."""
    question = {"model": folder, "rows": list(counts), "prompt_tokens": PROMPT, "new_tokens": NEW_TOKENS}
    ours: dict[int, list[float]] = {count: [] for count in counts}

    def time_ours() -> None:
        for count, rates in ours.items():
            prompts = [random_tokens(PROMPT, f"{peer[0]} {count} {i} {len(rates)}") for i in range(count)]
            asked = [request(f"{i} {len(rates)}", p, NEW_TOKENS, seed=i) for i, p in enumerate(prompts)]
            done, seconds = timed_gather(engine, asked)
            rates.append(sum(len(c.tokens) for c in done) / seconds)

    time_ours()
    theirs = ask_peer(*peer, question)["tokens_per_s"]
    time_ours()
    rows = []
    for count, rates in ours.items():
        mine, other = max(rates), theirs[str(count)]
        rows.append(Row(f"{count} sequences: {peer[0]}", other, unit="tokens/s"))
        rows.append(Row(f"{count} sequences: engine beside {peer[0]}", mine, unit="tokens/s"))
        rows.append(Row.at_least(f"{count} sequences: engine over {peer[0]}", mine / other, 1.0))
    return rows


def episode_rows(name: str, folder: str, engine: JaxEngine, peer: Peer, counts: Sequence[int]) -> list[Row]:
    """Sampled tokens per second of agentic episodes: once warm, and from a cold start; and the memory of that."""
    question = {
        "model": folder,
        "counts": list(counts),
        "shared": SHARED,
        "own": OWN,
        "turns": TURNS,
        "turn_tokens": TURN_TOKENS,
        "observation": OBSERVATION,
    }
    with tempfile.TemporaryDirectory() as cache:
        few = min(counts)
        alone: dict[str, Any] = {"model": name, "slots": few, "slot": 256, "warm_up": False, "episodes": few}
        cold = ask_process(alone, cache)
    before = {count: play_episodes(engine, count, f"before {peer[0]} {count}") for count in counts}
    theirs = ask_peer(*peer, question)
    rows = []
    for count in counts:
        mine = statistics.mean((before[count], play_episodes(engine, count, f"after {peer[0]} {count}")))
        tokens, other = count * TURNS * TURN_TOKENS, theirs["warm"][str(count)]
        rows.append(Row(f"{count} episodes: {peer[0]}", other["tokens"] / other["seconds"], unit="tokens/s"))
        ratio = tokens / mine / (other["tokens"] / other["seconds"])
        rows.append(Row(f"{count} episodes: engine", tokens / mine, unit="tokens/s"))
        rows.append(Row.at_least(f"{count} episodes: engine over {peer[0]}, warm", ratio, GOALS.get(count, 1.0)))
    other = theirs["cold"]
    ratio = cold["tokens"] / cold["cold_s"] / (other["tokens"] / other["seconds"])
    memory = cold["peak_bytes"] / theirs["peak_bytes"]
    return [
        *rows,
        Row(f"{few} episodes from a cold start: {peer[0]}", other["seconds"], unit="s"),
        Row(f"{few} episodes from a cold start: engine", cold["cold_s"], unit="s"),
        Row.at_least(f"{few} episodes from a cold start: engine over {peer[0]}", ratio, 8.0),
        Row(f"{few} episodes once more in that process: engine", cold["warm_episodes_s"], unit="s"),
        Row(f"peak memory: {peer[0]}", theirs["peak_bytes"] / 1e9, unit="GB"),
        Row.at_most(f"peak memory: engine over {peer[0]}", memory, 0.5),
    ]
