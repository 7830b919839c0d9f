"""`save_model`: a folder that transformers, and `load_model`, can read."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentlab.chat import private_copy
from agentlab.errors import ModelError
from agentlab.models.hub_config import write_config
from agentlab.models.lora import merge_lora
from agentlab.models.model import Model
from agentlab.models.weights import named_arrays


def save_model(model: Model, folder: str | Path) -> Path:
    """Write config, weights and tokenizer in Hugging Face's layout; adapters are folded in.

    The folder appears complete or not at all.

    Args:
        model: What to write.
        folder: Must not exist yet, or be empty.

    Returns:
        The folder.

    Raises:
        ModelError: the folder holds something already, or cannot be written (e.g. full disk).
    """
    target = Path(folder).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} must be a new or an empty folder, and holds something. Name another, or remove it.")
    merged = replace(model, config=model.config.without_lora(), params=merge_lora(model.config, model.params))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelError(f"{target} cannot be made: {error}. Name a folder that you may write.") from error
    try:
        _write(merged, made)
        made.chmod(0o755)
        made.replace(target)
    except Exception as error:  # whatever kept it from being complete: safetensors raises its own kind on a full disk
        raise ModelError(f"{model.name} could not be saved to {target}: {error}. Nothing was left there.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _write(model: Model, folder: Path) -> None:
    from safetensors.numpy import save_file

    arrays = named_arrays(model.params)
    dtype = str(arrays["model.embed_tokens.weight"].dtype)
    config = {**write_config(model.config), "dtype": dtype, "torch_dtype": dtype}
    _write_json(folder / "config.json", config)
    stops = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    _write_json(folder / "generation_config.json", {key: value for key, value in stops.items() if value is not None})
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    private_copy(model.tokenizer).save_pretrained(folder)  # without the truncation of a call that somebody made
    _name_tokenizer_for_old_readers(folder / "tokenizer_config.json")


def _name_tokenizer_for_old_readers(path: Path) -> None:
    """transformers 5 writes a class that 4 does not know; both know this one."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        _write_json(path, {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
