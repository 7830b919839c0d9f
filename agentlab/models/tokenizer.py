"""Tokenizers come from transformers, which is imported when the first one is made and not before."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from agentlab.errors import ModelError

ADVICE_SWITCH = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def transformers() -> ModuleType:
    """The transformers package, imported without its advice to install PyTorch."""
    if "transformers" in sys.modules or ADVICE_SWITCH in os.environ:
        return importlib.import_module("transformers")
    os.environ[ADVICE_SWITCH] = "1"
    try:
        return importlib.import_module("transformers")
    finally:
        del os.environ[ADVICE_SWITCH]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder.

    Raises:
        ModelError: there is none, or transformers cannot read it.
    """
    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        raise ModelError(f"{folder} must hold tokenizer.json, and does not. Copy the tokenizer's files there.")
    try:
        return transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for a damaged or unknown tokenizer
        raise ModelError(
            f"The tokenizer in {folder} cannot be read ({type(error).__name__}: {error}). Download the model again."
        ) from error
