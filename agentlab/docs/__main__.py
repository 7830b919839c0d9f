"""Write the reference of the public names, or check that it is up to date: `python -m agentlab.docs [--check]`."""

import argparse
import sys
from collections.abc import Sequence

from agentlab.docs.reference import REFERENCE, reference
from agentlab.files import write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the page is now as the docstrings are; 1 where `--check` finds that it is not."""
    parser = argparse.ArgumentParser(prog="python -m agentlab.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if it is out of date")
    options = parser.parse_args(arguments)
    text = reference()
    if options.check:
        if REFERENCE.read_text(encoding="utf-8") == text:
            return 0
        sys.stderr.write(f"{REFERENCE} is out of date. Write it again: python -m agentlab.docs\n")
        return 1
    write_atomically(REFERENCE, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
