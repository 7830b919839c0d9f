"""Runs in a process of its own: compares mathematical expressions with math-verify, one after the other.

A comparison can take for ever, and the library's own time limits work on a main thread only. So they are off here, and
whoever asks ends this process when it takes too long. One line of JSON in, one out; it ends when its input does.
"""

import contextlib
import json
import logging
import sys

MAX_BYTES = 4 << 30
"""Address space; a power of powers would take all there is."""


def main() -> None:
    """Say that it is ready, then answer."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits, macOS not this one
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    logging.disable()  # the library says for every text that its time limits are off
    answers, sys.stdout = sys.stdout, sys.stderr
    answer: dict[str, object] = {"ready": True}
    for line in _lines():
        if line is not None:
            answer = compared(**json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _lines():
    import math_verify  # noqa: F401, before the first comparison's time runs

    yield None
    yield from sys.stdin


def compared(right: str, given: str) -> dict[str, object]:
    """{"equal": whether they are}, or {"unreadable": True} where the right answer is no expression."""
    from math_verify import verify

    wanted, read = _parsed(right), _parsed(given)
    if not wanted:
        return {"unreadable": True}
    return {"equal": bool(read) and bool(verify(wanted, read, timeout_seconds=None))}


def _parsed(text: str) -> list:
    from math_verify import LatexExtractionConfig, parse

    return parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
