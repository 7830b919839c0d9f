"""Where a completion ends by its text: stop strings, also split over tokens."""

from collections.abc import Sequence
from typing import Any


def stop_string_end(tokens: Sequence[int], stop: Sequence[str], tokenizer: Any, *, start: int = 0) -> int | None:
    """How many tokens there are when the first stop string is complete; None when none is.

    Args:
        tokens: The sampled tokens.
        stop: Stop strings; they may begin and end inside a token.
        tokenizer: Turns tokens into text.
        start: Tokens known to complete no stop string.
    """
    longest = max((len(text.encode()) for text in stop), default=0)
    if not longest:
        return None
    window = longest + 4  # a token adds a byte or more; the rest is for a character cut at the window's start
    if not _complete(tokens[max(0, start - window) :], stop, tokenizer):
        return None
    for end in range(start + 1, len(tokens)):
        if _complete(tokens[max(0, end - window) : end], stop, tokenizer):
            return end
    return len(tokens)


def _complete(tokens: Sequence[int], stop: Sequence[str], tokenizer: Any) -> bool:
    decoded = tokenizer.decode(list(tokens), skip_special_tokens=False)
    return any(text in decoded for text in stop if text)
