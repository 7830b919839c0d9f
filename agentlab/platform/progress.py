"""A progress bar where somebody can see it, and nothing elsewhere; one of a kind at a time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_shown: set[str] = set()
"""Kinds that have a bar now."""


def is_visible() -> bool:
    """Whether somebody can see a bar: stderr is a terminal, or there is a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def bar(
    total: int | None,
    label: str,
    *,
    kind: str = "",
    enabled: bool = True,
    unit: str = "",
    size_bytes: bool = False,
    form: str | None = None,
    visible: bool | None = None,
) -> Iterator[Any]:
    """A tqdm bar; silent unless stderr is a terminal or this is a notebook, or while one of its kind is there.

    A terminal has it on stderr; a notebook, where stderr looks like a warning, on stdout.

    Args:
        total: What counts as done; None if that is not known.
        label: What is being done, e.g. "Loading weights".
        kind: What it is one of, e.g. "loading": a second bar of a kind is not shown. By default the label.
        enabled: False never shows it.
        unit: Of the count.
        size_bytes: The count is in bytes: show it as MB.
        form: tqdm's `bar_format`; None for its own.
        visible: Whether somebody can see it; None finds out.
    """
    from tqdm import tqdm

    notebook = "ipykernel" in sys.modules
    seen = is_visible() if visible is None else visible
    kind = kind or label
    mine = enabled and seen and kind not in _shown
    if mine:
        _shown.add(kind)
    try:
        with tqdm(
            total=total,
            desc=label,
            unit="B" if size_bytes else unit,
            unit_scale=size_bytes,
            bar_format=form,
            disable=not mine,
            file=sys.stdout if notebook else sys.stderr,
        ) as made:
            yield made
    finally:
        if mine:
            _shown.discard(kind)
