"""A progress bar where somebody can see it, and nothing elsewhere."""

import sys
from typing import Any


def bar(total: int, label: str, *, enabled: bool = True, unit: str = "", size_bytes: bool = False) -> Any:
    """A tqdm bar on stderr, to be used in `with`; silent unless stderr is a terminal or a notebook.

    Args:
        total: What counts as done.
        label: What is being done, e.g. "Loading weights".
        enabled: False never shows it.
        unit: Of the count.
        size_bytes: The count is in bytes: show it as MB.
    """
    from tqdm import tqdm

    visible = enabled and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    return tqdm(total=total, desc=label, unit="B" if size_bytes else unit, unit_scale=size_bytes, disable=not visible)
