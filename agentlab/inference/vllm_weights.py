"""A policy's weights as a file that vLLM can read: Hugging Face names, adapters merged."""

import tempfile
from pathlib import Path

import jax

from agentlab.errors import ConfigError, EngineError
from agentlab.models import Model
from agentlab.models.lora import merge_lora
from agentlab.models.weights import named_arrays
from agentlab.types import Policy


def check_policy(model: Model, policy: Policy) -> None:
    """Refuse parameters that are not of the model's structure and shapes.

    Raises:
        ConfigError: they are not.
    """
    mine = jax.tree.map(lambda array: array.shape, model.params)
    theirs = jax.tree.map(lambda array: array.shape, policy.params)
    if mine != theirs:
        raise ConfigError(
            f"The parameters of policy {policy.version} must have the structure and shapes of {model.name}'s. "
            "Train the same model that is served."
        )


def write_weights(model: Model, policy: Policy, path: Path) -> None:
    """Write the merged weights to a safetensors file; it appears complete or not at all.

    Raises:
        EngineError: the disk or the shared memory is full.
    """
    from safetensors.numpy import save_file

    arrays = named_arrays(merge_lora(model.config, policy.params))
    made = path.with_suffix(".part")
    try:
        save_file(arrays, made, metadata={"format": "pt"})
        made.replace(path)
    except Exception as error:  # safetensors raises its own kind on a full disk
        made.unlink(missing_ok=True)
        size_bytes = sum(array.nbytes for array in arrays.values())
        raise EngineError(
            f"The weights of policy {policy.version} ({size_bytes / 1e9:.2f} GB) must fit in {path.parent}: {error}. "
            "Free some space there, or name another place with weights_folder=."
        ) from error


def shared_memory() -> Path:
    """A folder in memory where the system has one, else the one for temporary files."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())
