"""How near the engine comes to a bare loop, what it computes twice, what warm-up and a swap of weights cost.

SmolLM2-135M-Instruct in float32 unless `--model` says otherwise. Sides that are compared take turns in one
process, in short rounds and each first in every other one, so that what slows the machine slows both; a ratio is the
median of the rounds' ratios. `--only decode,swap` measures these sections alone.

Decode: 1, 8 and 32 sequences in one engine of 32 slots of 256 tokens with its default settings, sampled greedily, 16
tokens a round. A step of the engine is a round's time over 16, from the requests to the last completion, event loop
and all. The bare loop is `agentlab.inference.bare`: no engine, one jitted loop over caches of the same shape, in the
layout that is the fastest on this machine. The machine's limits stand beside it: reading the weights once at the rate
at which a matrix-vector product reads memory, for 1; the arithmetic of the weights at the rate of a square product,
for 32.

Agentic load: 8 and 32 episodes of 3 turns of 32 tokens; a prompt of 60 tokens, of which all share 40;
40 tokens of observation between two turns. The bare side is the same work without an engine: as many
decode steps of the bare loop as the sampled tokens need at full batches, and the prefilled tokens at the rate of
a bare pass over 8 chunks of 64, both timed before and after each round. (Against the decode loop alone, as if
observations cost nothing, the share is also reported.)

Cache: a conversation of 5 turns, and a group of 8 with a prompt of 512 tokens. Warm-up: in a process of its
own, with an empty compilation cache and then with the one that it left; the second process goes on to
decode 32 sequences, and tells by how much its memory grew at most from before the model was loaded. Swap:
new weights while 8 sequences decode; the pause is the time of the swap, held against a decode dispatch.
Peers, each run with `--peer NAME=PYTHON`: tokens per second at 8 and 32 sequences, prefill included; of
`tunix_episodes` the agentic load above, from a cold start, where our engine has as many slots as there are episodes,
and once more.
"""

import argparse
import functools
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from agentlab.bench.contract import Row
from agentlab.bench.engine_load import OBSERVATION, PROMPT, Conversations, gather, play_episodes, random_tokens, request
from agentlab.bench.engine_peers import peer_rows
from agentlab.bench.engine_process import SLOTS, ask_process
from agentlab.bench.peers import parse_peer
from agentlab.errors import nearest
from agentlab.inference import JaxEngine, bare
from agentlab.models import Model, load_model
from agentlab.rollout.serving import run_served
from agentlab.tracing import now_ns, spans
from agentlab.types import Completion, Policy

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SLOT = 256
STEPS = 2 * bare.STEPS
"""Tokens per sequence in a round of decode."""


class Subject:
    """The model, one engine for all sections that it suits, and the bare loops; each is made when it is first used."""

    def __init__(self, name: str):
        self.name = name
        self._loops: dict[int, tuple[bare.Layout, Callable[[], float]]] = {}

    @functools.cached_property
    def model(self) -> Model:
        return load_model(self.name, progress=False)

    @functools.cached_property
    def engine(self) -> JaxEngine:
        engine = JaxEngine(self.model, num_slots=SLOTS, tokens_per_slot=SLOT)
        engine.warm_up(progress=False)
        return engine

    def bare(self, count: int) -> tuple[bare.Layout, Callable[[], float]]:
        """The best loop of so many rows."""
        if count not in self._loops:
            self._loops[count] = bare.best_decode_loop(self.model, count, SLOT)
        return self._loops[count]


def run(arguments: Sequence[str]) -> list[Row]:
    """All rows, or those of some sections."""
    words = argparse.ArgumentParser(prog="python -m agentlab.bench engine")
    words.add_argument("--model", default=MODEL, help="a name, folder or .gguf file; a Llama")
    words.add_argument("--only", type=sections, default=list(SECTIONS), metavar="A,B", help=f"of {', '.join(SECTIONS)}")
    words.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], help="sequences at once")
    words.add_argument("--rounds", type=int, default=6, help="turns that the sides of decode take")
    words.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, e.g. transformers=/env/bin/python")
    options = words.parse_args(arguments)
    options.peers = [parse_peer(text) for text in options.peer]
    subject = Subject(options.model)
    return [row for name in SECTIONS if name in options.only for row in SECTIONS[name](subject, options)]


def sections(text: str) -> list[str]:
    """Names of sections, commas between them."""
    names = text.split(",")
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"There is no section {name!r}.{nearest(name, SECTIONS)}")
    return names


# -- decode ---------------------------------------------------------------------------------------


def decode_rows(subject: Subject, options: Any) -> list[Row]:
    """Step times of bare loop and engine by turns, and the machine's limits."""
    memory, product = bare.memory_rate(), bare.product_rate()
    size = subject.model.config.num_parameters
    limits = {1: size * 4 / memory, 32: 2 * size * 32 / product}
    rows = [
        Row("memory read by a matrix-vector product", memory / 1e9, unit="GB/s"),
        Row("square matrix product", product / 1e9, unit="GFLOP/s"),
    ]
    for count in options.rows:
        layout, loop = subject.bare(count)
        conversations = Conversations(subject.engine, count, SLOT // 2)
        rounds = min(options.rounds, (SLOT // 2 - 2) // STEPS)
        pairs = by_turns(lambda loop=loop: bare_seconds(loop), lambda c=conversations: c.take(STEPS), rounds)
        conversations.end()
        theirs, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        rows.append(Row(f"decode of {count}: bare loop, {layout}", theirs * 1e3, unit="ms/step"))
        rows.append(Row(f"decode of {count}: engine", ours * 1e3, unit="ms/step"))
        rows.append(Row(f"decode of {count}: engine", count / ours, unit="tokens/s"))
        rows.append(Row.at_least(f"decode of {count}: engine over bare loop", ratio, 0.9))
        if count in limits:
            rows.append(Row(f"decode of {count}: limit of the machine over engine", limits[count] / ours))
    return rows


def bare_seconds(loop: Callable[[], float]) -> float:
    """Seconds per step over `STEPS` steps."""
    return statistics.mean(loop() for _ in range(STEPS // bare.STEPS))


def by_turns(first: Callable[[], float], second: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Both sides of each round; the second goes first in every other one."""
    pairs = []
    for index in range(rounds):
        if index % 2:
            b = second()
            pairs.append((first(), b))
        else:
            a = first()
            pairs.append((a, second()))
    return pairs


# -- agentic load ---------------------------------------------------------------------------------


def agentic_rows(subject: Subject, options: Any) -> list[Row]:
    """Episodes with observations, against the same work without an engine."""
    engine, rows = subject.engine, []
    token_s = bare.prefill_pass(subject.model, 8, 64)
    for count in (count for count in options.rows if count > 1):
        loop, took, whole, alone = subject.bare(count)[1], [], [], []
        bares = [(bare_seconds(loop), token_s())]
        sampled = prefilled = 0
        for index in range(max(2, options.rounds * 4 // count)):
            before = engine.stats()
            took.append(play_episodes(engine, count, f"{count} {index}"))
            after = engine.stats()
            sampled = after.tokens_sampled - before.tokens_sampled
            prefilled = after.tokens_prefilled - before.tokens_prefilled
            bares.append((bare_seconds(loop), token_s()))
            step, token = (statistics.mean(two) for two in zip(*bares[-2:], strict=True))
            decode_s = math.ceil(sampled / count) * step
            whole.append((decode_s + prefilled * token) / took[-1])
            alone.append(decode_s / took[-1])
        name = f"{count} agentic episodes"
        rows += [
            Row(f"{name}: bare pass over 8 chunks of 64", 1 / statistics.median(b for _, b in bares), unit="tokens/s"),
            Row(f"{name}: engine", sampled / statistics.median(took), unit="tokens/s"),
            Row(f"{name}: prefilled tokens", prefilled, unit="tokens"),
            Row.at_least(f"{name}: engine over the bare loops doing the same work", statistics.median(whole), 0.8),
            Row(f"{name}: engine over the decode loop alone, observations for nothing", statistics.median(alone)),
        ]
    return rows


# -- cache and swap -------------------------------------------------------------------------------


def cache_rows(subject: Subject, options: Any) -> list[Row]:
    """Tokens that are computed although they were before."""
    engine = JaxEngine(subject.model, num_slots=8, tokens_per_slot=640)
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
    shared = engine.stats().tokens_prefilled - turns
    return [
        Row.at_most("conversation of 5 turns: prefilled over new tokens", turns / new, 1.05),
        Row.at_most("group of 8, prompt of 512: prefilled over 512", shared / 512, 1.1),
    ]


def swap_rows(subject: Subject, options: Any) -> list[Row]:
    """The pause of a swap of weights while sequences decode, and what is lost by it."""
    engine, before = subject.engine, subject.engine.stats()
    requests = [request(f"swap {i}", random_tokens(PROMPT, f"swap {i}"), 48, seed=i) for i in range(8)]
    other = bare.copied(subject.model.params)
    began_ns = now_ns()

    async def swapped() -> list[Completion]:
        async with anyio.create_task_group() as group:
            for index, params in enumerate((other, subject.model.params, other)):
                tokens = before.tokens_sampled + 8 + 60 * (index + 1)
                group.start_soon(after, engine, tokens, Policy(before.policy_version + index + 1, params))
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
    versions = {version for c in completions for version in c.policy_versions}
    return [
        Row("swaps of weights with 8 sequences in flight", len(swaps)),
        Row("policies that sampled their tokens", len(versions)),
        Row("median decode dispatch", dispatch, unit="s"),
        Row.at_most("pause of a swap over a decode dispatch", max(swaps, default=math.nan) / dispatch, 1.0),
        Row.at_most("tokens thrown away by swaps", lost, 0),
    ]


async def after(engine: JaxEngine, tokens: int, policy: Policy) -> None:
    """Publish a policy when so many tokens have been sampled."""
    while engine.stats().tokens_sampled < tokens:
        await anyio.sleep(0.01)
    engine.update_policy(policy)


# -- warm-up and memory, peers --------------------------------------------------------------------


def warm_rows(subject: Subject, options: Any) -> list[Row]:
    """Two processes, one after the other, that share a compilation cache which is empty at first."""
    question = {"model": subject.name, "slots": SLOTS, "slot": 512, "warm_up": True, "episodes": 0}
    with tempfile.TemporaryDirectory() as folder:
        cold, cached = (ask_process(question, folder) for _ in range(2))
    allowed = cached["weights_bytes"] + cached["cache_bytes"]
    return [
        Row("programs", cold["programs"]),
        Row.at_most("warm-up, nothing compiled before", cold["warm_s"], 60.0, "s"),
        Row.at_most("warm-up with the compilation cache", cached["warm_s"], 10.0, "s"),
        Row("processor time of the warm-up, nothing compiled before", cold["cpu_s"], unit="s"),
        Row("processor time of the warm-up with the cache", cached["cpu_s"], unit="s"),
        Row.at_most("peak memory over weights and cache", cached["grown_bytes"] / allowed, 1.5),
        Row("peak memory, before the model was loaded taken off", cached["grown_bytes"] / 1e9, unit="GB"),
        Row("compiled after warm-up", cached["compilations"], "≤ 0", "", cached["compilations"] == 0),
    ]


def peers_rows(subject: Subject, options: Any) -> list[Row]:
    """Those of the peers that were named."""
    counts = [count for count in options.rows if count > 1]
    return peer_rows(subject.name, lambda: (subject.model, subject.engine), options.peers, counts)


SECTIONS: dict[str, Callable[[Subject, Any], list[Row]]] = {
    "warm": warm_rows,
    "decode": decode_rows,
    "agentic": agentic_rows,
    "cache": cache_rows,
    "swap": swap_rows,
    "peers": peers_rows,
}
"""In the order in which they are measured: processes of their own come before this one is large."""
