"""`load_model`: a model from a folder, from a GGUF file, or by its name on the Hugging Face hub."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agentlab.errors import ModelError
from agentlab.models.config import DecoderConfig, read_config
from agentlab.models.fetch import fetch_model
from agentlab.models.gguf_file import load_gguf
from agentlab.models.model import Model
from agentlab.models.tokenizer import load_tokenizer
from agentlab.models.weights import check_tensors, load_params

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
INDEX_FILE = "model.safetensors.index.json"


def load_model(name_or_path: str | Path, *, dtype: Any = "float32", progress: bool = True) -> Model:
    """Load a model: a folder in Hugging Face's layout, a `.gguf` file, or a name on the hub.

    A name is fetched once into the user's cache and read from there afterwards, without network.

    Args:
        name_or_path: E.g. "HuggingFaceTB/SmolLM2-135M-Instruct", "./my-model" or "model.gguf".
        dtype: Of the weights in memory, "float32" or "bfloat16".
        progress: Show a progress bar, where there is a terminal or a notebook to show it.

    Raises:
        ModelError: it cannot be found, fetched, read or trusted.
    """
    if not isinstance(name_or_path, str | Path) or not str(name_or_path).strip():
        raise ModelError(f"A model is named by a text or a path, got {name_or_path!r:.60}.")
    path, name = Path(name_or_path).expanduser(), str(name_or_path)
    if not path.exists():
        if not HUB_NAME.fullmatch(name):
            raise ModelError(
                f"{name!r} must be a folder, a .gguf file or a name on the Hugging Face hub (owner/model), "
                f"and there is nothing at {path.absolute()}. Check the spelling."
            )
        path = fetch_model(name, progress=progress)
    if path.is_dir():
        return _load_folder(path, name=name, dtype=dtype, progress=progress)
    if path.suffix == ".gguf":
        return load_gguf(path, name=name, dtype=dtype, progress=progress)
    raise ModelError(f"{path} must be a folder or a .gguf file. Give the folder that holds config.json.")


def _load_folder(folder: Path, *, name: str, dtype: Any, progress: bool) -> Model:
    config = _read_folder_config(folder)
    with _open_weights(folder) as weights:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key, file in weights.items()}
        check_tensors(config, shapes, source=str(folder))
        tokenizer = load_tokenizer(folder)

        def read(key: str) -> np.ndarray:
            return weights[key].get_tensor(key)

        params = load_params(config, read, source=str(folder), dtype=dtype, progress=progress)
    return Model(name, config, params, tokenizer)


def _read_folder_config(folder: Path) -> DecoderConfig:
    raw = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    stops = _read_json(generation).get("eos_token_id") if generation.exists() else None
    if stops is not None:
        raw = {**raw, "eos_token_id": stops}
    return read_config(raw, source=str(folder / "config.json"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} must exist, and does not. Give the folder of a Hugging Face model.") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} must be readable JSON: {error}. Download the model again.") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(raw).__name__}. Download the model again.")
    return raw


@contextmanager
def _open_weights(folder: Path) -> Iterator[dict[str, Any]]:
    """By tensor name, the open safetensors file that holds it."""
    from safetensors import SafetensorError, safe_open

    with ExitStack() as stack:
        weights = {}
        for path in _weight_files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="numpy"))
            except (OSError, SafetensorError) as error:
                raise ModelError(
                    f"{path} must be a complete safetensors file, and reading it failed ({error}). "
                    "It is truncated or damaged: download it again."
                ) from error
            weights.update(dict.fromkeys(file.keys(), file))
        yield weights


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX_FILE).exists():
        names = _read_json(folder / INDEX_FILE).get("weight_map", {}).values()
        files = sorted({folder / name for name in names})
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
