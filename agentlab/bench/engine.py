"""How near the engine comes to a bare loop, what it computes twice, what warm-up and a swap of weights cost.

SmolLM2-135M-Instruct in float32 unless `--model` says otherwise. Sides that are compared take turns in one
process; every figure is the median of its rounds.

Decode: 1, 8 and 32 sequences of 64 random tokens, sampled greedily by one engine of 32 slots of 256 tokens
with its default settings. A step of the engine is the time from one decode to the next, what the host does
between them included. The bare loop is `agentlab.inference.bare`: no engine, one jitted loop in the fastest
layout that we found, over caches of the same context. The machine's limits stand beside it: reading the
weights once at the rate at which a matrix-vector product reads memory, for 1; the arithmetic of the
weights at the rate of a square product, for 32.

Agentic load: 8 and 32 episodes of 3 turns of 32 tokens; a prompt of 60 tokens, of which all share 40;
40 tokens of observation between two turns. The bare side is the same work without an engine: as many
decode steps of the bare loop as the sampled tokens need at full batches, and the prefilled tokens at the rate of
a bare pass over 8 chunks of 64. (Against the decode loop alone, as if observations cost nothing, the
share is also reported.)

Cache: a conversation of 5 turns, and a group of 8 with a prompt of 512 tokens. Warm-up: in a process of its
own, with an empty compilation cache and then with the one that it left; the second process goes on to
decode 32 sequences, and tells by how much its memory grew at most from before the model was loaded. Swap:
new weights while 8 sequences decode; the pause is the time of the swap, held against a decode dispatch.
Peers, each run with `--peer NAME=PYTHON`: tokens per second at 8 and 32 sequences, prefill included.
"""

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from agentlab.bench.contract import Row
from agentlab.bench.peers import ask_peer, parse_peer
from agentlab.inference import JaxEngine, bare
from agentlab.models import Model, load_model, save_model
from agentlab.rollout.serving import run_served
from agentlab.tracing import now_ns, spans
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SLOTS, SLOT, PROMPT = 32, 256, 64
TURNS, TURN_TOKENS, OBSERVATION = 3, 32, 40
SECTIONS = ("decode", "agentic", "cache", "warm", "swap")


def run(arguments: Sequence[str]) -> list[Row]:
    """All rows, or those of one section."""
    words = argparse.ArgumentParser(prog="python -m agentlab.bench engine")
    words.add_argument("--model", default=MODEL, help="a name, folder or .gguf file; a Llama")
    words.add_argument("--only", choices=SECTIONS, action="append", help="measure this section alone; repeatable")
    words.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], help="sequences decoded at once")
    words.add_argument("--rounds", type=int, default=3, help="turns that the sides take")
    words.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, e.g. transformers=/env/bin/python")
    options = words.parse_args(arguments)
    peers = [parse_peer(text) for text in options.peer]
    wanted = options.only or SECTIONS
    rows: list[Row] = []
    if "warm" in wanted:
        rows += warm_rows(options.model)
    if set(wanted) == {"warm"}:
        return rows
    model = load_model(options.model, progress=False)
    loops = {n: bare.decode_loop(model, n, SLOT) for n in options.rows} if {"decode", "agentic"} & set(wanted) else {}
    if "decode" in wanted:
        rows += decode_rows(model, loops, options.rounds)
    if "agentic" in wanted:
        rows += agentic_rows(model, {n: loop for n, loop in loops.items() if n > 1})
    if "cache" in wanted:
        rows += cache_rows(model)
    if "swap" in wanted:
        rows += swap_rows(model)
    return rows + peer_rows(model, peers)


# -- decode ---------------------------------------------------------------------------------------


def decode_rows(model: Model, loops: dict[int, Callable[[], float]], rounds: int) -> list[Row]:
    """Step times of bare loop and engine by turns, and the machine's limits."""
    engine = JaxEngine(model, num_slots=SLOTS, tokens_per_slot=SLOT)
    memory, product = bare.memory_rate(), bare.product_rate()
    size = model.config.num_parameters
    limits = {1: size * 4 / memory, 32: 2 * size * 32 / product}
    rows = [
        Row("memory read by a matrix-vector product", memory / 1e9, unit="GB/s"),
        Row("square matrix product", product / 1e9, unit="GFLOP/s"),
    ]
    for count, loop in loops.items():
        theirs, ours = [], []
        step_times(engine, count, seed=rounds)  # compiles what is needed
        for round_index in range(rounds):
            theirs.append(loop())
            ours += step_times(engine, count, seed=round_index)
        mine, bares = statistics.median(ours), statistics.median(theirs)
        rows.append(Row(f"decode of {count}: bare loop", bares * 1e3, unit="ms/step"))
        rows.append(Row(f"decode of {count}: engine", mine * 1e3, unit="ms/step"))
        rows.append(Row(f"decode of {count}: engine", count / mine, unit="tokens/s"))
        rows.append(Row.at_least(f"decode of {count}: engine over bare loop", bares / mine, 0.9))
        if count in limits:
            rows.append(Row(f"decode of {count}: limit of the machine over engine", limits[count] / mine))
    return rows


def step_times(engine: JaxEngine, count: int, *, seed: int, new_tokens: int = 25) -> list[float]:
    """Seconds per step between the decodes in which all sequences took part."""
    began_ns = now_ns()
    requests = [
        request(f"{seed}-{i}", random_tokens(PROMPT, f"{seed}-{i}"), new_tokens, temperature=0.0) for i in range(count)
    ]
    run_served(engine, lambda: gather(engine, requests))
    decodes = [s for s in spans(began_ns) if s.stage == "decode" and s.start_ns >= began_ns]
    full = [s for s in decodes if s.tags["num_sequences"] == count and s.tags["tokens"] % count == 0]
    pairs = [(a, b) for a, b in itertools.pairwise(full) if decodes.index(b) == decodes.index(a) + 1]
    return [(b.start_ns - a.start_ns) / 1e9 / (a.tags["tokens"] / count) for a, b in pairs if a.tags["tokens"]]


def request(
    id: str, prompt: Sequence[int], max_tokens: int, *, session: str = "", **sampling: Any
) -> GenerationRequest:
    return GenerationRequest(id, session or id, tuple(prompt), SamplingParams(max_tokens=max_tokens, **sampling))


def random_tokens(count: int, seed: str) -> tuple[int, ...]:
    """Ordinary tokens of the vocabulary, the same for the same seed."""
    rng = random.Random(seed)
    return tuple(rng.randrange(100, 40_000) for _ in range(count))


async def gather(engine: JaxEngine, requests: Sequence[GenerationRequest]) -> list[Completion]:
    """The completions of requests made at once."""
    done: dict[str, Completion] = {}

    async def one(asked: GenerationRequest) -> None:
        done[asked.id] = await engine.generate(asked)

    async with anyio.create_task_group() as group:
        for asked in requests:
            group.start_soon(one, asked)
    return [done[asked.id] for asked in requests]


# -- agentic load ---------------------------------------------------------------------------------


def agentic_rows(model: Model, loops: dict[int, Callable[[], float]]) -> list[Row]:
    """Episodes with observations, against the same work without an engine."""
    engine = JaxEngine(model, num_slots=SLOTS, tokens_per_slot=SLOT)
    engine.warm_up(progress=False)
    token_s = bare.prefill_pass(model, 8, 64)
    rows = [Row("bare pass over 8 chunks of 64", 1 / statistics.median(token_s() for _ in range(3)), unit="tokens/s")]
    for count, loop in loops.items():
        before, step_s, prefill_s = engine.stats(), [loop()], [token_s()]
        began = time.perf_counter()
        run_served(engine, lambda count=count: all_episodes(engine, count))
        took = time.perf_counter() - began
        step_s, prefill_s = [*step_s, loop()], [*prefill_s, token_s()]
        after = engine.stats()
        sampled, prefilled = (
            after.tokens_sampled - before.tokens_sampled,
            after.tokens_prefilled - before.tokens_prefilled,
        )
        decode_s = math.ceil(sampled / count) * statistics.mean(step_s)
        work_s = decode_s + prefilled * statistics.mean(prefill_s)
        name = f"{count} agentic episodes"
        rows += [
            Row(f"{name}: engine", sampled / took, unit="tokens/s"),
            Row(f"{name}: prefilled tokens", prefilled, unit="tokens"),
            Row.at_least(f"{name}: engine over the bare loops doing the same work", work_s / took, 0.8),
            Row(f"{name}: engine over the decode loop alone, observations for nothing", decode_s / took),
        ]
    return rows


async def all_episodes(engine: JaxEngine, count: int) -> None:
    """Play all episodes at once."""
    shared = random_tokens(40, f"system {count}")

    async def episode(index: int) -> None:
        session = f"{count}-{index}"
        prompt = shared + random_tokens(20, session)
        for turn in range(TURNS):
            asked = request(f"{session}-{turn}", prompt, TURN_TOKENS, session=session, seed=index * TURNS + turn)
            prompt += (await engine.generate(asked)).tokens + random_tokens(OBSERVATION, f"{session}-{turn}")
        engine.release(session)

    async with anyio.create_task_group() as group:
        for index in range(count):
            group.start_soon(episode, index)


# -- cache and swap -------------------------------------------------------------------------------


def cache_rows(model: Model) -> list[Row]:
    """Tokens that are computed although they were before."""
    engine = JaxEngine(model, num_slots=8, tokens_per_slot=640)
    new = 0

    async def conversation() -> None:
        nonlocal new
        prompt = random_tokens(PROMPT, "conversation")
        new = len(prompt)
        for turn in range(5):
            completion = await engine.generate(request(f"turn {turn}", prompt, 8, session="one", seed=turn))
            observation = random_tokens(OBSERVATION, f"turn {turn}")
            prompt += completion.tokens + observation
            new += OBSERVATION * (turn < 4)

    run_served(engine, conversation)
    turns = engine.stats().tokens_prefilled
    group = [request(f"member {i}", random_tokens(512, "group"), 4, seed=i) for i in range(8)]
    run_served(engine, lambda: gather(engine, group))
    return [
        Row.at_most("conversation of 5 turns: prefilled over new tokens", turns / new, 1.05),
        Row.at_most(
            "group of 8, prompt of 512: prefilled over 512", (engine.stats().tokens_prefilled - turns) / 512, 1.1
        ),
    ]


def swap_rows(model: Model) -> list[Row]:
    """The pause of a swap of weights while sequences decode, and what is lost by it."""
    engine = JaxEngine(model, num_slots=8, tokens_per_slot=SLOT)
    engine.warm_up(progress=False)
    requests = [request(f"swap {i}", random_tokens(PROMPT, f"swap {i}"), 48, seed=i) for i in range(8)]
    began_ns = now_ns()

    async def swapped() -> list[Completion]:
        async with anyio.create_task_group() as group:
            for version in range(1, 4):
                group.start_soon(after, engine, 8 + 60 * version, Policy(version, model.params))
            done = await gather(engine, requests)
            group.cancel_scope.cancel()
        return done

    completions = run_served(engine, swapped)
    found = [s for s in spans(began_ns) if s.start_ns >= began_ns]
    swaps = [s.duration_s for s in found if s.stage == "weight_sync"]
    decodes = [s for s in found if s.stage == "decode"]
    dispatch = statistics.median(s.duration_s for s in decodes)
    sampled = len(completions) + sum(s.tags["tokens"] for s in decodes)
    lost = sampled - sum(len(c.tokens) for c in completions)
    return [
        Row("swaps of weights with 8 sequences in flight", len(swaps)),
        Row.at_most("pause of a swap over a decode dispatch", max(swaps, default=math.nan) / dispatch, 1.0),
        Row.at_most("tokens thrown away by swaps", lost, 0),
    ]


async def after(engine: JaxEngine, tokens: int, policy: Policy) -> None:
    """Publish a policy when so many tokens have been sampled."""
    while engine.stats().tokens_sampled < tokens:
        await anyio.sleep(0.01)
    engine.update_policy(policy)


# -- warm-up and memory ---------------------------------------------------------------------------


def warm_rows(name: str) -> list[Row]:
    """Two processes, one after the other, that share a compilation cache which is empty at first."""
    with tempfile.TemporaryDirectory() as folder:
        cold, cached = (_in_process(name, folder) for _ in range(2))
    allowed = cached["weights_bytes"] + cached["cache_bytes"]
    return [
        Row("programs", cold["programs"]),
        Row.at_most("warm-up, nothing compiled before", cold["warm_s"], 60.0, "s"),
        Row.at_most("warm-up with the compilation cache", cached["warm_s"], 10.0, "s"),
        Row("processor time of the warm-up, nothing compiled before", cold["cpu_s"], unit="s"),
        Row("processor time of the warm-up with the cache", cached["cpu_s"], unit="s"),
        Row.at_most("peak memory over weights and cache", cached["peak_bytes"] / allowed, 1.5),
        Row("peak memory, before the model was loaded taken off", cached["peak_bytes"] / 1e9, unit="GB"),
        Row("compiled after warm-up", cached["compilations"], "≤ 0", "", cached["compilations"] == 0),
    ]


def _in_process(name: str, folder: str) -> dict[str, Any]:
    environment = {**os.environ, "AGENTLAB_COMPILATION_CACHE": folder}
    command = [sys.executable, "-m", "agentlab.bench.engine", name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"The process that warms up failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measured_process(name: str) -> dict[str, Any]:
    """Warm up, decode 32 sequences, and tell times and memory of this process."""
    baseline = _status_bytes("VmRSS")
    model = load_model(name, progress=False)
    engine = JaxEngine(model, num_slots=SLOTS, tokens_per_slot=512)
    wall, cpu = time.perf_counter(), time.process_time()
    programs = engine.warm_up(progress=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    requests = [request(str(i), random_tokens(PROMPT, str(i)), 8, seed=i) for i in range(SLOTS)]
    run_served(engine, lambda: gather(engine, requests))
    return {
        "programs": programs,
        "warm_s": wall,
        "cpu_s": cpu,
        "weights_bytes": 4 * model.config.num_parameters,
        "cache_bytes": engine.plan.cache_bytes,
        "peak_bytes": _status_bytes("VmHWM") - baseline,
        "compilations": engine.stats().compilations,
    }


def _status_bytes(field: str) -> int:
    """A figure of this process's memory, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


# -- peers ----------------------------------------------------------------------------------------


def peer_rows(model: Model, peers: Sequence[tuple[str, str]], counts: Sequence[int] = (8, 32)) -> list[Row]:
    """Whole requests per second, ours and theirs, on the same token counts."""
    if not peers:
        return []
    engine, rates, rows = JaxEngine(model, num_slots=SLOTS, tokens_per_slot=SLOT), {}, []
    engine.warm_up(progress=False)
    for count in counts:
        requests = [request(f"peer {i}", random_tokens(PROMPT, f"peer {count} {i}"), 32, seed=i) for i in range(count)]
        began = time.perf_counter()
        done = run_served(engine, lambda requests=requests: gather(engine, requests))
        rates[count] = sum(len(c.tokens) for c in done) / (time.perf_counter() - began)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder)
        question = {"model": folder, "rows": list(counts), "prompt_tokens": PROMPT, "new_tokens": 32}
        for name, python in peers:
            theirs = ask_peer(name, python, question)["tokens_per_s"]
            for count in counts:
                rows.append(Row(f"{count} sequences: {name}", theirs[str(count)], unit="tokens/s"))
                rows.append(
                    Row.at_least(f"{count} sequences: engine over {name}", rates[count] / theirs[str(count)], 1.0)
                )
    return rows


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured_process(sys.argv[1])) + "\n")
