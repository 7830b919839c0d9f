"""Any mix of requests, aborts, stops and updates gives what fresh full passes give, and leaks no slot."""

from dataclasses import replace
from typing import Any

import anyio
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.chat import OwnTokenizer
from agentlab.inference.jax_engine import JaxEngine, stop_token_ids
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import tiny_model
from agentlab.models.attention import attend
from agentlab.types import Completion, GenerationRequest, Policy, SamplingParams

MODEL = tiny_model(seed=0)
PARAMS = MODEL.params, tiny_model(seed=1).params
"""Of even and of odd versions."""
SLOT, SLOTS = 64, 3
SHAPES = Shapes(
    decode_rows=(1, SLOTS),
    prefill=(PrefillSize(1, 16), PrefillSize(3, 8)),
    contexts=(32, SLOT),
    prefill_contexts=(32, SLOT),
)
COMMON = tuple(range(50, 80))

REQUESTS = st.fixed_dictionaries(
    {
        "session": st.integers(0, 3),
        "shared": st.integers(0, 30),
        "own": st.lists(st.integers(3, 258), min_size=1, max_size=20).map(tuple),
        "max_tokens": st.integers(1, 12),
        "temperature": st.sampled_from([0.0, 0.0, 1.0]),
        "stop_token_ids": st.sampled_from([(), tuple(range(3, 60))]),
        "stop": st.sampled_from([(), ("a", "zq")]),
        "seed": st.integers(0, 2**40),
        "fate": st.sampled_from(["kept", "kept", "kept", "aborted"]),
    }
)
EVENTS = st.lists(st.sampled_from(["update", "release"]), max_size=3)


@jax.jit
def forward(params: Any, tokens: jax.Array) -> jax.Array:
    """Log-probabilities [T, V] by one full pass over tokens [1, T], without any cache."""
    decoder = replace(MODEL, params=params).decoder()
    size = tokens.shape[1]
    mask = jnp.tril(jnp.ones((1, size, size), bool))
    scale = MODEL.config.attention_scale
    hidden = decoder(tokens, jnp.arange(size)[None], lambda _, q, k, v: attend(q, k, v, mask, scale=scale))
    return jax.nn.log_softmax(decoder.logits(hidden)[0])


def check_exact(request: GenerationRequest, completion: Completion) -> None:
    """Each token's log-probability is the full pass's under the weights of its version; greedy ones are likeliest."""
    row = np.zeros((1, SLOT), np.int32)
    tokens = (request.prompt + completion.tokens)[:SLOT]
    row[0, : len(tokens)] = tokens
    first = len(request.prompt) - 1
    for version in set(completion.policy_versions):
        expected = np.asarray(forward(PARAMS[version % 2], row))[first : first + len(completion.tokens)]
        mine = np.asarray(completion.policy_versions) == version
        chosen = expected[np.arange(len(expected)), list(completion.tokens)]
        np.testing.assert_allclose(np.asarray(completion.logprobs)[mine], chosen[mine], atol=1e-3)
        if request.sampling.temperature == 0:
            np.testing.assert_allclose(chosen[mine], expected.max(axis=1)[mine], atol=1e-4)


def check_ended(request: GenerationRequest, completion: Completion) -> None:
    """It ended where it says, and its text holds a stop string only at its end."""
    sampling, tokens = request.sampling, completion.tokens
    ends = {*sampling.stop_token_ids, *stop_token_ids(MODEL, OwnTokenizer(MODEL.tokenizer))}
    by_text = [MODEL.tokenizer.decode(list(tokens[:n])) for n in (len(tokens) - 1, len(tokens))]
    stopped = [tokens[-1] in ends or any(s in by_text[1] for s in sampling.stop)] if tokens else [False]
    assert not any(s in by_text[0] for s in sampling.stop) and not ends & set(tokens[:-1])
    assert (completion.finish_reason == "stop") == stopped[0]
    assert completion.finish_reason != "length" or len(tokens) == sampling.max_tokens
    assert completion.finish_reason != "context" or len(request.prompt) + len(tokens) >= SLOT


engine = JaxEngine(
    MODEL, num_slots=SLOTS, tokens_per_slot=SLOT, max_dispatch=4, shapes=SHAPES, recompute_on_update=True
)


@settings(max_examples=500)
@given(mix=st.lists(REQUESTS, min_size=1, max_size=6), events=EVENTS)
def test_any_mix_gives_what_full_passes_give_and_leaks_no_slot(mix, events):
    kept, doomed = [], []
    for index, drawn in enumerate(mix):
        options = {name: drawn[name] for name in ("max_tokens", "temperature", "stop_token_ids", "stop", "seed")}
        prompt = COMMON[: drawn["shared"]] + drawn["own"]
        made = GenerationRequest(str(index), f"s{drawn['session']}", prompt, SamplingParams(**options))
        (kept if drawn["fate"] == "kept" else doomed).append(made)
    completions: dict[str, Completion] = {}

    async def one(request: GenerationRequest) -> None:
        completions[request.id] = await engine.generate(request)

    async def main() -> None:
        scopes = [anyio.CancelScope() for _ in doomed]

        async def aborted(request: GenerationRequest, scope: anyio.CancelScope) -> None:
            with scope:
                await one(request)

        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            async with anyio.create_task_group() as asking:
                for request, scope in zip(doomed, scopes, strict=True):
                    asking.start_soon(aborted, request, scope)
                for request in kept:
                    asking.start_soon(one, request)
                for event in events:
                    await anyio.sleep(0.002)
                    if event == "update":
                        version = engine.stats().policy_version + 1
                        engine.update_policy(Policy(version, PARAMS[version % 2]))
                    else:
                        engine.release("s0")
                for scope in scopes:
                    scope.cancel()
            for session in range(4):
                engine.release(f"s{session}")
            serving.cancel_scope.cancel()

    anyio.run(main)
    for request in kept:
        check_exact(request, completions[request.id])
        check_ended(request, completions[request.id])
    assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 0)
