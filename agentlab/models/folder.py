"""Folders of models and adapters: JSON that must be readable, and folders that appear complete or not at all."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentlab.errors import ModelError


def read_json(path: Path, *, hint: str = "Give the folder of a Hugging Face model.") -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: Of the file.
        hint: What to do where there is none.

    Raises:
        ModelError: it is not there, cannot be read, or holds something else.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} must exist, and does not. {hint}") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} must be readable JSON: {error}. Download it again.") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(raw).__name__}. Download it again.")
    return raw


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object as others write it by hand: indented, and with letters as they are."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def new_folder(folder: str | Path, *, of: str) -> Iterator[Path]:
    """A folder to write into, which becomes `folder` when the body has ended well.

    Args:
        folder: Must not exist yet, or be empty.
        of: What is saved there, for error texts.

    Raises:
        ModelError: the folder holds something already, or cannot be written (e.g. full disk).
    """
    target = Path(folder).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} must be a new or an empty folder, and holds something. Name another, or remove it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelError(f"{target} cannot be made: {error}. Name a folder that you may write.") from error
    try:
        yield made
        made.chmod(0o755)
        made.replace(target)
    except Exception as error:  # whatever kept it from being complete: safetensors raises its own kind on a full disk
        raise ModelError(f"{of} could not be saved to {target}: {error}. Nothing was left there.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
