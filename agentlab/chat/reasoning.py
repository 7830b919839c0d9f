"""Reasoning that a model writes before its answer: how it is marked, and where a prompt has begun it already."""

import re
from typing import Any

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
OPENED = re.compile(rf"{THINK_OPEN}\s*\Z")


def opened_thought(prompt: str) -> str:
    """What a prompt has written of the model's turn already: "<think>" and the white space after it, or nothing.

    Qwen 3.5, DeepSeek R1 and Nemotron are asked so: their templates end the generation prompt with the tag. All that
    the model says before the first "</think>" is then reasoning, and all of it where it says none.

    Args:
        prompt: The text that the model was asked to go on after, or the end of it.
    """
    found = OPENED.search(prompt)
    return found.group() if found else ""


def reasons(tokenizer: Any) -> bool:
    """Whether the model of this tokenizer was taught to reason in tags, as its chat template tells."""
    template = str(getattr(tokenizer, "chat_template", None))
    return THINK_OPEN in template or THINK_CLOSE in template
