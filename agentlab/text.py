"""Text that can always be written: what objects of users show of themselves, and halves of surrogate pairs."""

from collections.abc import Callable
from typing import Any


def escaped(text: str) -> str:
    """The text with what no encoding has, halves of surrogate pairs, spelled out: backslash, "ud800".

    A model can write one in valid JSON; files, pages and messages to a browser cannot hold it.
    """
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")


def shown(value: Any, show: Callable[[Any], str] = repr) -> str:
    """What `repr` (or `str`, or another) shows of a value, `escaped`; where that raises, its type and the error's."""
    try:
        return escaped(show(value))
    except (Exception, SystemExit) as error:  # user code: what it cannot show must not keep the rest from being shown
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
