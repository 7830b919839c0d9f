"""Families whose layers differ, in the programs that use the decoder: the engine's and the trainer's."""

import shutil
from pathlib import Path

import anyio
import jax
import numpy as np
import pytest

from agentlab.inference.jax_engine import JaxEngine
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import load_model, tiny_model
from agentlab.training.algorithms import LossOptions, clipped_ratio_loss
from agentlab.training.forward import Program, score
from agentlab.training.packing import MicroBatch, Targets
from agentlab.training.weights import split_trained
from agentlab.types import Completion, GenerationRequest, SamplingParams

FIXTURES = Path(__file__).parent / "fixtures" / "models"
SLOT = 48
SHAPES = Shapes(decode_rows=(2,), prefill=(PrefillSize(2, 16),), contexts=(SLOT,), prefill_contexts=(SLOT,))


@pytest.fixture(scope="module", params=["gemma2_caps_one_kv_head", "gemma3_two_rotary_bases", "qwen2_windows_untied"])
def pair(request, tmp_path_factory):
    """A tiny checkpoint of transformers, loaded; its tokens [2, 40] and their log-probabilities [2, 39, V]."""
    folder = shutil.copytree(FIXTURES / request.param, tmp_path_factory.mktemp("model") / request.param)
    tiny_model(num_layers=1).tokenizer.save_pretrained(folder)
    reference = np.load(folder / "reference.npz")
    logprobs = np.asarray(jax.nn.log_softmax(reference["logits"][:, :-1].astype(np.float64)))
    return load_model(folder), reference["tokens"], logprobs


def scores(model, tokens: np.ndarray) -> np.ndarray:
    """[B, T] -> [B, T - 1]: log-probability of each token but the first, by the trainer's program."""
    rows, length = tokens.shape
    index = np.array([row * length + at for row in range(rows) for at in range(length - 1)], np.int32)
    empty = np.zeros(rows * length, np.int32)
    place, target, sequence = empty.copy(), empty.copy(), empty - 1
    place[: len(index)], target[: len(index)], sequence[: len(index)] = index, tokens[:, 1:].ravel(), index // length
    zeros = empty.astype(np.float32)
    targets = Targets(place, target, zeros, zeros, zeros, empty, sequence, sequence, empty)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    alone = np.zeros_like(positions)
    batch = MicroBatch(tokens.astype(np.int32), positions, alone, alone, targets)
    program = Program(
        config=model.config,
        dtype="float32",
        loss=clipped_ratio_loss,
        options=LossOptions(beta=0.0),
        temperature=1.0,
        logit_chunk_tokens=40,
        remat=False,
    )
    got = score(program, *split_trained(model.params), batch)
    return np.asarray(got)[: len(index)].reshape(rows, length - 1)


def generate(model, requests: list[GenerationRequest]) -> dict[str, Completion]:
    async def main():
        done = {}
        engine = JaxEngine(
            model, num_slots=2, tokens_per_slot=SLOT, max_dispatch=4, shapes=SHAPES, compilation_cache=False
        )

        async def ask(request):
            done[request.id] = await engine.generate(request)

        async with anyio.create_task_group() as serving:
            serving.start_soon(engine.serve)
            async with anyio.create_task_group() as asking:
                for request in requests:
                    asking.start_soon(ask, request)
            serving.cancel_scope.cancel()
        return done

    return anyio.run(main)


def test_the_trainer_scores_tokens_as_pytorch_does(pair):
    model, tokens, logprobs = pair
    expected = np.take_along_axis(logprobs, tokens[:, 1:, None].astype(int), axis=-1)[..., 0]
    np.testing.assert_allclose(scores(model, tokens), expected, atol=2e-4)


def test_the_engine_samples_with_the_probabilities_of_pytorch_and_of_the_trainer(pair):
    model, tokens, logprobs = pair
    lengths = (32, 21, 9, 3)

    def request(row, length):
        prompt = tuple(map(int, tokens[row, :length]))
        return GenerationRequest(
            f"{row}/{length}", f"{row}/{length}", prompt, SamplingParams(max_tokens=8, seed=length)
        )

    done = generate(model, [request(row, length) for row in range(2) for length in lengths])
    texts = np.zeros((len(done), 40), np.int64)
    for place, (name, completion) in enumerate(done.items()):
        row, length = map(int, name.split("/"))
        assert completion.logprobs[0] == pytest.approx(logprobs[row, length - 1, completion.tokens[0]], abs=2e-4)
        texts[place, :length] = tokens[row, :length]
        texts[place, length : length + len(completion.tokens)] = completion.tokens
    again = scores(model, texts)
    for place, (name, completion) in enumerate(done.items()):
        begin = int(name.split("/")[1]) - 1
        np.testing.assert_allclose(completion.logprobs, again[place, begin : begin + len(completion.tokens)], atol=1e-3)
