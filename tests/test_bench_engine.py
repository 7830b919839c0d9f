"""The bench of the engine: its bare loop is the model, and peers answer through one line of JSON."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentlab.bench import peers
from agentlab.errors import ConfigError
from agentlab.inference import bare
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
    assert len(kept) == model.config.num_layers and kept[0][0].shape == (2, heads[1], 12, model.config.head_dim)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_the_bare_loop_runs_in_either_layout_and_tells_seconds(rows):
    assert bare.decode_loop(tiny_model(seed=0), rows, 16)() > 0


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


def test_the_script_of_transformers_is_there():
    assert "transformers" in peers.SCRIPTS
