"""Traces of the accelerator's own profiler, with the names of our stages in them."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentlab.errors import RunError


def annotation(name: str) -> contextlib.AbstractContextManager[Any]:
    """A stretch of host time that carries this name in a profile."""
    import jax

    return jax.profiler.TraceAnnotation(name)


@contextlib.contextmanager
def profile(folder: str | Path) -> Iterator[Path]:
    """Profile what the body's time covers, on all threads; the folder is for XProf or TensorBoard.

    Python calls are not recorded: they would slow the run down several times.

    Raises:
        RunError: a profile is being taken already.
    """
    import jax

    target = Path(folder).expanduser().resolve()
    target.mkdir(parents=True, exist_ok=True)
    try:
        jax.profiler.start_trace(str(target), **_options(jax.profiler))
    except RuntimeError as error:
        raise RunError(f"Only one profile can be taken at a time: {error}") from error
    try:
        yield target
    finally:
        jax.profiler.stop_trace()


def _options(profiler: Any) -> dict[str, Any]:
    make: Callable[[], Any] | None = getattr(profiler, "ProfileOptions", None)
    if make is None:
        return {}
    options = make()
    options.python_tracer_level = 0
    return {"profiler_options": options}
