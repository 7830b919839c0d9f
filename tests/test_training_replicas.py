"""Eight virtual devices give the update that one device gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import jax, numpy as np
from training_cases import random_group
from agentlab.models import tiny_model
from agentlab.training import TrainConfig, Trainer, algorithms

model = tiny_model(num_layers=1, model_type="qwen2")
groups = [random_group(model, seed, size=4, prompt=20, longest=30, noise=0.2) for seed in range(5)]
options = TrainConfig(
    lora_rank=4, learning_rate=1e-2, beta=0.1, algorithm=algorithms.reinforce_pp, epochs_per_batch=2,
    row_tokens=64, micro_batch_tokens=64, logit_chunk_tokens=16,
)
found = []
for devices in ((), jax.devices()):
    trainer = Trainer(model, options, devices=devices)
    metrics = [dict(trainer.update(groups).metrics) for _ in range(2)]
    found.append((metrics, np.concatenate([np.ravel(x) for x in jax.tree.leaves(trainer.policy.params)])))
    assert {x.sharding for x in jax.tree.leaves(trainer.policy.params)} == {jax.tree.leaves(model.params)[0].sharding}
(one, weights), (other, others) = found
print(json.dumps({"devices": len(jax.devices()), "one": one, "other": other,
                  "difference": float(np.abs(weights - others).max()), "change": float(np.abs(
                  weights - np.concatenate([np.ravel(x) for x in jax.tree.leaves(model.params)])).max())}))
"""
TIMED = {"seconds", "tokens_per_s"}


def test_one_device_and_eight_virtual_ones_agree():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 8
    assert found["difference"] < 1e-3 * found["change"] + 1e-5
    for one, other in zip(found["one"], found["other"], strict=True):
        assert one["micro_batches"] > 8, "some round must be full and some partial"
        for name in set(one) - TIMED:
            assert abs(one[name] - other[name]) <= 1e-4 * abs(one[name]) + 1e-5, name
