"""What the bench of the engine asks of it: requests, conversations that go on, agentic episodes."""

import random
import time
from collections.abc import Sequence
from typing import Any

import anyio

from agentlab.inference import JaxEngine
from agentlab.rollout.serving import run_served
from agentlab.types import Completion, GenerationRequest, SamplingParams

PROMPT = 64
"""Tokens of an ordinary prompt."""
SHARED, OWN = 40, 20
"""Tokens of an episode's prompt that all episodes of a round share, and that it has alone."""
TURNS, TURN_TOKENS, OBSERVATION = 3, 32, 40
"""Of an agentic episode."""


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


class Conversations:
    """Sequences that sample on, turn after turn, with nothing said between the turns: they decode and do nothing else.

    Owned by the thread that measures.
    """

    def __init__(self, engine: JaxEngine, count: int, prompt_tokens: int):
        self._engine = engine
        self._prompts = [random_tokens(prompt_tokens, f"{count} {index}") for index in range(count)]
        self._turn = 0
        self.take(1)

    def take(self, num_tokens: int) -> float:
        """Sample so many tokens in each; gives the seconds per token, from the requests to the last completion."""
        requests = [
            request(
                f"{len(self._prompts)} {index} {self._turn}", prompt, num_tokens, session=f"s{index}", temperature=0.0
            )
            for index, prompt in enumerate(self._prompts)
        ]
        done, seconds = timed_gather(self._engine, requests)
        self._prompts = [prompt + one.tokens for prompt, one in zip(self._prompts, done, strict=True)]
        self._turn += 1
        return seconds / max(len(one.tokens) for one in done)

    def end(self) -> None:
        """Give the slots back."""
        for index in range(len(self._prompts)):
            self._engine.release(f"s{index}")


def timed_gather(engine: JaxEngine, requests: Sequence[GenerationRequest]) -> tuple[list[Completion], float]:
    """Completions of requests made at once, and the seconds that they took."""

    async def work() -> tuple[list[Completion], float]:
        began = time.perf_counter()
        done = await gather(engine, requests)
        return done, time.perf_counter() - began

    return run_served(engine, work)


def play_episodes(engine: JaxEngine, count: int, name: str) -> float:
    """Seconds in which so many episodes are played at once.

    Args:
        name: Episodes of another name have other prompts, so that no prefix of theirs is cached.
    """
    shared = random_tokens(SHARED, f"system {name}")

    async def episode(index: int) -> None:
        session = f"{name} {index}"
        prompt = shared + random_tokens(OWN, session)
        for turn in range(TURNS):
            asked = request(f"{session} {turn}", prompt, TURN_TOKENS, session=session, seed=index * TURNS + turn)
            prompt += (await engine.generate(asked)).tokens + random_tokens(OBSERVATION, f"{session} {turn}")
        engine.release(session)

    async def work() -> float:
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for index in range(count):
                group.start_soon(episode, index)
        return time.perf_counter() - began

    return run_served(engine, work)
