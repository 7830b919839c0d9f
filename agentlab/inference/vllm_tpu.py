"""New weights inside a worker of vLLM's TPU build, whose own `update_weights` does nothing. Not run on a TPU yet.

Source: tpu-inference 0.32, worker/tpu_worker.py, runner/tpu_runner.py, models/common/model_loader.py.
"""

# vLLM is not installed where types are checked.
# pyright: reportMissingImports=false

import copy
import tempfile
from pathlib import Path
from typing import Any

import jax


def take_over(worker: Any) -> None:
    """Let this class of workers take weights from a file.

    Its own `start_weight_update` would free the cache as well, with what running requests have in it.
    """
    worker.start_weight_update = worker.finish_weight_update = lambda self: None
    worker.update_weights = build_anew


def build_anew(worker: Any, update_info: dict[str, Any]) -> None:
    """Build the model once more from a file by the TPU build's own loader, then put its arrays in force, all at once.

    Meanwhile there are two copies of the weights on the device.

    Raises:
        ValueError: the arrays are not of the shapes, types and names of those in force, which stay.
    """
    from tpu_inference.models.common.model_loader import get_model
    from vllm.config import set_current_vllm_config

    runner = worker.model_runner
    config = copy.copy(runner.vllm_config)  # the loader notes its layers and the folder in it
    config.model_config = copy.copy(config.model_config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}
    with tempfile.TemporaryDirectory(prefix="agentlab-weights-") as folder, set_current_vllm_config(config):
        (Path(folder) / "model.safetensors").symlink_to(update_info["path"])
        config.model_config.model = folder
        made = get_model(config, runner.rng_key, runner.mesh)
        jax.block_until_ready(made.state_leaves)
    wanted, got = _told(runner.state), _told(made.state)
    if wanted != got:
        different = sorted(wanted ^ got)
        raise ValueError(f"{len(different)} arrays do not fit, nothing was changed: " + "; ".join(different[:3]))
    runner.state, runner.state_leaves = made.state, made.state_leaves


def _told(state: Any) -> set[str]:
    """Name, type and shape of each array."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {f"{jax.tree_util.keystr(path)}: {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}
