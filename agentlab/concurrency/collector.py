"""Short pauses of Python's garbage collector while many episodes are in flight."""

import contextlib
import gc
import threading
from collections.abc import Iterator

YOUNG = 2_000
"""New container objects after which the collector looks at the new ones; Python's own is 700."""

_lock = threading.Lock()
_depth = 0
_before: tuple[int, int, int] = gc.get_threshold()
_froze = False


@contextlib.contextmanager
def calm_collector() -> Iterator[None]:
    """Keep the collector's pauses short in the body, for the whole process; may be nested.

    A full collection looks at every container object of the process while all threads wait: 0.1 s
    and more with JAX and transformers loaded, and it comes the more often the more episodes live at
    once. So what exists when the body begins is set aside (`gc.freeze`), and new objects are looked
    at in larger portions. Nothing is switched off: garbage made in the body is collected in it. The
    price: garbage older than the body, as far as it lies in cycles, is kept until the body ends; to
    be rid of it, collect before. Does not freeze where somebody else has.
    """
    _calm()
    try:
        yield
    finally:
        _restore()


def _calm() -> None:
    global _depth, _before, _froze
    with _lock:
        _depth += 1
        if _depth > 1:
            return
        _before = gc.get_threshold()
        if gc.isenabled() and gc.get_freeze_count() == 0:
            gc.freeze()
            _froze = True
        if 0 < _before[0] < YOUNG:
            gc.set_threshold(YOUNG, *_before[1:])


def _restore() -> None:
    global _depth, _froze
    with _lock:
        _depth -= 1
        if _depth:
            return
        gc.set_threshold(*_before)
        if _froze:
            gc.unfreeze()
            _froze = False
