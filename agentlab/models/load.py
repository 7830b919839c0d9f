"""`load_model`: a model from a folder, from a GGUF file, or by its name on the Hugging Face hub."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentlab.errors import ConfigError, ModelError
from agentlab.models.adapters import ADAPTER_CONFIG
from agentlab.models.config import DecoderConfig
from agentlab.models.fetch import fetch_model
from agentlab.models.folder import read_json
from agentlab.models.gguf_file import load_gguf
from agentlab.models.hub_config import read_config
from agentlab.models.model import Model
from agentlab.models.safetensors_file import SafeTensor, read_safetensors
from agentlab.models.sharding import checked_mesh
from agentlab.models.tokenizer import load_tokenizer
from agentlab.models.weights import check_frequencies, check_tensors, load_params, with_head
from agentlab.tracing import span

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
DTYPES = ("float32", "bfloat16")
INDEX_FILE, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"


def load_model(
    name_or_path: str | Path, *, dtype: Any = None, mesh: Mesh | None = None, progress: bool = True
) -> Model:
    """Load a model: a folder in Hugging Face's layout, a `.gguf` file, or a name on the hub.

    A name is fetched once into the user's cache and read from there afterwards, without network.

    Args:
        name_or_path: E.g. "HuggingFaceTB/SmolLM2-135M-Instruct", "./my-model" or "model.gguf".
        dtype: Of the weights in memory, "float32" or "bfloat16"; None takes what suits the device, see `default_dtype`.
        mesh: Devices to lay the weights over, with an axis "fsdp", "tensor" or both (see
            `agentlab.models.sharding`); None for the default device. At no moment is a weight in memory twice.
        progress: Show a progress bar, where there is a terminal or a notebook to show it.

    Raises:
        ModelError: it cannot be found, fetched, read or trusted.
        ConfigError: the dtype or the mesh is not one of the above.
    """
    if not isinstance(name_or_path, str | Path) or not str(name_or_path).strip():
        raise ModelError(f"A model is named by a text or a path, got {name_or_path!r:.60}.")
    dtype = _checked_dtype(dtype)
    if mesh is not None:
        checked_mesh(mesh)
    path, name = Path(name_or_path).expanduser(), str(name_or_path)
    if not path.exists():
        if not HUB_NAME.fullmatch(name):
            raise ModelError(
                f"{name!r} must be a folder, a .gguf file or a name on the Hugging Face hub (owner/model), "
                f"and there is nothing at {path.absolute()}. Check the spelling."
            )
        path = fetch_model(name, progress=progress)
    read = _load_folder if path.is_dir() else load_gguf if path.suffix == ".gguf" else None
    if read is not None:
        with span("load", model=name):
            return read(path, name=name, dtype=dtype, mesh=mesh, progress=progress)
    raise ModelError(f"{path} must be a folder or a .gguf file. Give the folder that holds config.json.")


def default_dtype(backend: str) -> str:
    """bfloat16 on a TPU, whose matrix unit multiplies in it; float32 elsewhere."""
    return "bfloat16" if backend == "tpu" else "float32"


def _checked_dtype(dtype: Any) -> Any:
    dtype = default_dtype(jax.default_backend()) if dtype is None else dtype
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    if name not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {name:.60}.")
    return jnp.dtype(name)


def _load_folder(folder: Path, *, name: str, dtype: Any, mesh: Mesh | None, progress: bool) -> Model:
    if (folder / ADAPTER_CONFIG).exists():
        raise ModelError(
            f"{folder} must hold a whole model, and holds adapters ({ADAPTER_CONFIG}). Load the model that they belong "
            "to, and put them on it: al.load_adapters(al.load_model(...), folder). If weights of a model lie beside "
            "them, move the adapters to a folder of their own."
        )
    config = _read_folder_config(folder)
    config, tensors = with_head(config, _folder_tensors(folder), source=str(folder), dtype=dtype)
    check_tensors(config, {key: tensor.shape for key, tensor in tensors.items()}, source=str(folder))
    check_frequencies(config, tensors, source=str(folder))
    tokenizer = load_tokenizer(folder)
    params = load_params(config, tensors, source=str(folder), dtype=dtype, mesh=mesh, progress=progress)
    return Model(name, config, params, tokenizer)


def _read_folder_config(folder: Path) -> DecoderConfig:
    raw = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    stops = read_json(generation).get("eos_token_id") if generation.exists() else None
    if stops is not None:
        raw = {**raw, "eos_token_id": stops}
    return read_config(raw, source=str(folder / "config.json"))


def _folder_tensors(folder: Path) -> dict[str, SafeTensor]:
    tensors: dict[str, SafeTensor] = {}
    for path in _weight_files(folder):
        for name, tensor in read_safetensors(path).items():
            if name in tensors:
                raise ModelError(
                    f"{folder} must hold each tensor once, and {tensors[name].path.name} and {path.name} both hold "
                    f"{name}. Remove the file that does not belong to the model."
                )
            tensors[name] = tensor
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    single = folder / SINGLE_FILE
    if (folder / INDEX_FILE).exists():
        names = read_json(folder / INDEX_FILE).get("weight_map", {}).values()
        files = sorted({folder / name for name in names})
        if single.exists() and single not in files:
            raise ModelError(
                f"{folder} must hold one set of weights, and holds two: {SINGLE_FILE}, and the files that {INDEX_FILE} "
                "names. Remove those that do not belong to the model."
            )
    elif single.exists():
        files = [single]
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [path.name for path in files if not path.exists()]
    if missing:
        raise ModelError(f"{folder} must hold {', '.join(missing)}, which its index names. Download the model again.")
    if not files:
        raise ModelError(
            f"{folder} must hold its weights as .safetensors, and has none. "
            "Download the model again, or save it with save_pretrained(..., safe_serialization=True)."
        )
    return files
