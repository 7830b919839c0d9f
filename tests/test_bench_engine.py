"""The bench of the engine: its bare loop is the model, and peers answer through one line of JSON."""

import argparse
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentlab.bench import engine_load, peers
from agentlab.bench.engine import by_turns, sections
from agentlab.bench.engine_load import Conversations, play_episodes
from agentlab.errors import ConfigError
from agentlab.inference import JaxEngine, bare
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import tiny_model
from agentlab.models.attention import attend


def test_the_bare_pass_computes_what_the_model_does():
    model = tiny_model(seed=0, norm_eps=bare.EPS)
    heads = model.config.num_heads, model.config.num_kv_heads
    tokens = jnp.asarray(np.random.default_rng(0).integers(3, 250, (2, 12)), jnp.int32)
    logits, kept = bare.forward_chunk(model, tokens)
    decoder = model.decoder()
    mask, positions = jnp.tril(jnp.ones((2, 12, 12), bool)), jnp.broadcast_to(jnp.arange(12), (2, 12))
    scale = model.config.attention_scale
    hidden = jax.jit(decoder, static_argnums=2)(
        tokens, positions, lambda _, q, k, v: attend(q, k, v, mask, scale=scale)
    )
    np.testing.assert_allclose(logits, decoder.logits(hidden[:, -1]), atol=2e-4)
    assert len(kept) == model.config.num_layers and kept[0][1].shape == (2, heads[1], 12, model.config.head_dim)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_the_bare_loop_is_the_fastest_of_its_layouts_and_tells_seconds(rows):
    layout, loop = bare.best_decode_loop(tiny_model(seed=0), rows, 16, tries=1)
    assert layout in bare.layouts_for(rows)
    assert loop() > 0


def test_a_peer_is_a_script_that_answers_with_one_line(tmp_path, monkeypatch):
    script = tmp_path / "echo_peer.py"
    script.write_text("import json, sys\nprint('noise')\nprint(json.dumps({'got': json.loads(sys.argv[1])}))\n")
    broken = tmp_path / "broken_peer.py"
    broken.write_text("raise SystemExit('no torch here')\n")
    monkeypatch.setattr(peers, "SCRIPTS", {"echo": script, "broken": broken})
    assert peers.ask_peer(*peers.parse_peer(f"echo={sys.executable}"), {"rows": [8]}) == {"got": {"rows": [8]}}
    with pytest.raises(ConfigError, match="The peer broken failed with status 1: no torch here"):
        peers.ask_peer("broken", sys.executable, {})
    with pytest.raises(ConfigError, match="no script for the peer 'eco' .* 'echo'"):
        peers.parse_peer(f"eco={sys.executable}")
    with pytest.raises(ConfigError, match="with a Python that has echo"):
        peers.parse_peer("echo=/nowhere/python")


def test_the_scripts_of_the_peers_are_there():
    assert {"transformers", "vllm", "tunix_episodes"} <= set(peers.SCRIPTS)


def test_each_side_goes_first_in_every_other_round():
    called: list[str] = []

    def side(name: str, seconds: float) -> Callable[[], float]:
        def timed() -> float:
            called.append(name)
            return seconds

        return timed

    assert by_turns(side("bare", 1.0), side("engine", 2.0), 3) == [(1.0, 2.0)] * 3
    assert called == ["bare", "engine", "engine", "bare", "bare", "engine"]


def test_sections_are_chosen_by_name():
    assert sections("decode,swap") == ["decode", "swap"]
    with pytest.raises(argparse.ArgumentTypeError, match="no section 'decod'.*decode"):
        sections("decod")


def test_the_bench_prefills_conversations_once_and_what_episodes_share_once():
    shapes = Shapes(decode_rows=(3,), prefill=(PrefillSize(3, 16),), contexts=(256,), prefill_contexts=(256,))
    engine = JaxEngine(tiny_model(seed=0, vocab_size=40_000), num_slots=3, tokens_per_slot=256, shapes=shapes)
    conversations = Conversations(engine, 3, 16)
    assert engine.stats().tokens_prefilled == 3 * 16
    assert conversations.take(4) > 0 and conversations.take(4) > 0
    conversations.end()
    before = engine.stats()
    assert before.tokens_prefilled <= 3 * 16 + 3 * 2
    assert 3 < before.tokens_sampled <= 3 * (1 + 4 + 4)
    assert play_episodes(engine, 2, "a") > 0
    new = engine_load.SHARED + 2 * engine_load.OWN + 2 * 2 * (engine_load.OBSERVATION + 1)
    assert engine.stats().tokens_prefilled - before.tokens_prefilled <= 1.05 * new
