"""Weights over the devices of a mesh, and how much memory loading takes: in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from agentlab.errors import ConfigError
from agentlab.models import load_model, save_model, tiny_model
from agentlab.models.load import default_dtype
from agentlab.models.sharding import logical_axes, param_shardings, shard_params
from agentlab.models.tree import flat_arrays

FIXTURES = Path(__file__).parent / "fixtures" / "models"
SHARDED = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import Mesh
from agentlab.models import load_model
from agentlab.models.attention import attend, segment_mask
from agentlab.models.decoder import decoder_structure
from agentlab.models.tree import flat_arrays

def logits(model):
    config, tokens = model.config, jnp.arange(1, 33).reshape(2, 16)
    positions = jnp.broadcast_to(jnp.arange(16), (2, 16))
    def forward(params):
        def attention(layer, q, k, v):
            mask = segment_mask(jnp.ones_like(tokens), positions, config.window(layer))
            return attend(q, k, v, mask, scale=config.attention_scale, soft_cap=config.attention_soft_cap)
        decoder = nnx.merge(decoder_structure(config), params)
        return decoder.logits(decoder(tokens, positions, attention))
    return np.asarray(jax.jit(forward, compiler_options={"xla_backend_optimization_level": 0})(model.params))

devices, report = np.array(jax.devices()), []
for folder, shape in json.loads(sys.argv[1]):
    mesh = Mesh(devices.reshape(shape), ("fsdp", "tensor"))
    whole, laid = load_model(folder), load_model(folder, mesh=mesh)
    difference = np.abs(logits(laid) - logits(whole)).max() / np.abs(logits(whole)).max()
    arrays, originals = flat_arrays(laid.params), flat_arrays(whole.params)
    report.append({
        "difference": float(difference),
        "equal": all(np.array_equal(arrays[path], originals[path]) for path in arrays),
        "bytes": sum(array.nbytes for array in arrays.values()),
        "largest share": max(
            sum(s.data.nbytes for array in arrays.values() for s in array.addressable_shards if s.device == device)
            for device in devices
        ),
        "gate": [list(s.data.shape) for s in arrays["layers", 0, "mlp", "gate_proj", "weight"].addressable_shards],
    })
print(json.dumps({"devices": len(devices), "report": report}))
"""
PEAK = """
import json, sys
import jax, numpy as np
from agentlab.models import load_model

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key + ":")).split()[1])

small, large = sys.argv[1:3]
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 1), ("fsdp", "tensor")) if len(sys.argv) > 3 else None
load_model(small, mesh=mesh)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
model = load_model(large, mesh=mesh)
size = sum(x.nbytes for x in jax.tree.leaves(model.params))
print(json.dumps({"size": size, "peak": status("VmHWM") - before}))
"""


def run(code: str, *arguments: str, devices: int = 1) -> dict:
    """What a new process with so many virtual CPU devices prints last, as JSON."""
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tiny():
    return tiny_model()


def test_eight_devices_compute_what_one_does(tmp_path, tiny):
    cases = [("gemma3_two_rotary_bases", (2, 4)), ("qwen2_windows_untied", (4, 2)), ("llama3_rope", (8, 1))]
    folders = [shutil.copytree(FIXTURES / name, tmp_path / name) for name, _ in cases]
    for folder in folders:
        tiny.tokenizer.save_pretrained(folder)
    jobs = [(str(folder), shape) for folder, (_, shape) in zip(folders, cases, strict=True)]
    got = run(SHARDED, json.dumps(jobs), devices=8)
    assert got["devices"] == 8
    gates = [[10, 15]] * 8, [[20, 6]] * 8, [[40, 3]] * 8
    for row, gate in zip(got["report"], gates, strict=True):
        assert row["equal"]
        assert row["difference"] < 2e-5
        assert row["gate"] == gate
        assert row["largest share"] < row["bytes"] / 2


@pytest.fixture(scope="module")
def small_and_large(tiny, tmp_path_factory):
    """Folders of a model of 0.4 MB and of one of about 100 MB."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_layers": 1, "vocab_size": 8192}
    large = tiny_model(**sizes, tied_embeddings=False)
    return [str(save_model(model, folder / name)) for model, name in ((tiny, "small"), (large, "large"))]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells a process's peak memory")
@pytest.mark.parametrize("devices", [1, 8])
def test_loading_takes_little_more_memory_than_the_weights(small_and_large, devices):
    got = run(PEAK, *small_and_large, *["mesh"] * (devices > 1), devices=devices)
    assert got["size"] > 80e6
    assert got["size"] * 0.9 < got["peak"] <= 1.3 * got["size"]


def mesh_of(**axes: int) -> Mesh:
    """A mesh of copies of the one device, to ask how arrays would lie on it."""
    return Mesh(np.array(jax.devices() * int(np.prod(list(axes.values())))).reshape(tuple(axes.values())), tuple(axes))


def test_every_parameter_of_every_family_has_logical_axes():
    for model_type in ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text"):
        model = tiny_model(model_type=model_type, num_layers=1, output_bias=True, mlp_bias=True, tied_embeddings=False)
        for path, array in flat_arrays(model.params).items():
            assert len(logical_axes(path)) == array.ndim


def test_a_mesh_of_one_device_holds_everything(tiny):
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tensor"))
    laid = shard_params(tiny.config, tiny.params, mesh)
    for path, array in flat_arrays(laid).items():
        np.testing.assert_array_equal(array, flat_arrays(tiny.params)[path])


def test_a_head_is_never_cut_in_two():
    config = tiny_model(num_heads=6, num_kv_heads=2).config
    paths = [("layers", 0, "self_attn", name, "weight") for name in ("q_proj", "k_proj", "o_proj")]
    laid = param_shardings(config, mesh_of(fsdp=2, tensor=3), paths)
    assert [tuple(laid[path].spec) for path in paths] == [("tensor", "fsdp"), (None, "fsdp"), ("fsdp", "tensor")]


def test_a_mesh_without_our_axes_is_refused(tiny, tmp_path):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    folder = save_model(tiny, tmp_path / "tiny")
    with pytest.raises(ConfigError, match=r"must have an axis \"fsdp\" or \"tensor\".*'data'"):
        load_model(folder, mesh=mesh)


def test_weights_are_bfloat16_on_a_tpu_and_float32_elsewhere():
    assert [default_dtype(backend) for backend in ("tpu", "cpu", "gpu")] == ["bfloat16", "float32", "float32"]


def test_a_type_of_weights_that_is_not_offered_is_refused(tmp_path):
    for wrong in ("float31", "int8", "float16"):
        with pytest.raises(ConfigError, match="dtype must be one of float32, bfloat16"):
            load_model(tmp_path, dtype=wrong)
