"""`save_model`: a folder that transformers, and `load_model`, can read."""

import json
from pathlib import Path

from agentlab.chat import private_copy
from agentlab.models.folder import new_folder, write_json
from agentlab.models.hub_config import write_config
from agentlab.models.lora import merged
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
    with new_folder(folder, of=model.name) as made:
        _write(merged(model), made)
    return Path(folder).expanduser().absolute()


def _write(model: Model, folder: Path) -> None:
    from safetensors.numpy import save_file

    arrays = named_arrays(model.params)
    dtype = str(arrays["model.embed_tokens.weight"].dtype)
    config = {**write_config(model.config), "dtype": dtype, "torch_dtype": dtype}
    write_json(folder / "config.json", config)
    stops = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    write_json(folder / "generation_config.json", {key: value for key, value in stops.items() if value is not None})
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    private_copy(model.tokenizer).save_pretrained(folder)  # without the truncation of a call that somebody made
    _name_tokenizer_for_old_readers(folder / "tokenizer_config.json")


def _name_tokenizer_for_old_readers(path: Path) -> None:
    """transformers 5 writes a class that 4 does not know; both know this one."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        write_json(path, {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
