"""Three hundred updates leave no memory behind."""

from pathlib import Path

import numpy as np
import pytest
from training_cases import group_of, trajectory

from agentlab.models import tiny_model
from agentlab.training import TrainConfig, Trainer

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
