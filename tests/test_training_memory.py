"""Three hundred updates leave no memory behind, and adapters need no second copy of the weights under them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_cases import group_of, trajectory

from agentlab.models import add_lora, tiny_model
from agentlab.training import TrainConfig, Trainer, pack
from agentlab.training.algorithms import LossOptions, grpo
from agentlab.training.forward import Program, accumulate
from agentlab.training.probe import live_bytes, size_bytes
from agentlab.training.weights import split_trained

STATM = Path("/proc/self/statm")


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc to see resident memory")
def test_resident_memory_does_not_grow_over_300_updates():
    model = tiny_model(num_layers=1)
    trainer = Trainer(model, TrainConfig(lora_rank=4, row_tokens=64, micro_batch_tokens=64, logit_chunk_tokens=16))
    group = group_of([trajectory([5, 6, 7 + e], [0, 0, 1], reward=float(e), episode=e) for e in range(4)])
    pages = []
    for _ in range(300):
        trainer.update([group])
        pages.append(int(STATM.read_text().split()[1]))
    after_warm_up = np.asarray(pages[50:]) * 4096 / 1e6
    slope = np.polyfit(np.arange(len(after_warm_up)), after_warm_up, 1)[0]
    assert slope * 300 < 3.0, f"{slope * 300:.1f} MB in 300 updates"


@pytest.mark.parametrize("scan", [True, False])
def test_a_trainer_of_adapters_holds_adapters_and_optimizer_alone(scan):
    model = tiny_model(hidden_size=256, intermediate_size=512, num_layers=8)
    before = live_bytes()
    trainer = Trainer(model, TrainConfig(lora_rank=4, scan_layers=scan))
    own = size_bytes(trainer.state())
    assert own < 0.2 * size_bytes(model.params)
    assert live_bytes() - before <= own + 4096


def update_memory(num_layers):
    """(bytes that a micro-batch needs beside its arguments, bytes of the frozen weights of all layers)."""
    model = add_lora(tiny_model(hidden_size=512, intermediate_size=1024, num_layers=num_layers), 4)
    trained, frozen = split_trained(model.params, adapters_only=True)
    program = Program(model.config, "float32", grpo.loss, LossOptions(), 1.0, 16, remat=False)
    texts = [trajectory([5, 6, 7 + e], [0, 0, 1], reward=float(e), episode=e) for e in range(4)]
    batch = pack([group_of(texts)], row_tokens=64, micro_batch_tokens=64).batches[0]
    reference, gradients = jnp.asarray(batch.targets.logprob), jax.tree.map(jnp.zeros_like, trained)
    needed = accumulate.lower(program, trained, frozen, batch, reference, gradients).compile().memory_analysis()
    assert needed is not None
    layers = [arrays for arrays in frozen.values() if isinstance(arrays, tuple)]
    return needed.temp_size_in_bytes, size_bytes(layers)


def test_an_update_of_adapters_copies_one_layer_at_a_time_and_never_all_of_them():
    (few, fewer_weights), (many, weights) = update_memory(2), update_memory(6)
    assert many - few < 0.5 * (weights - fewer_weights), "what an update needs grows with the weights"
