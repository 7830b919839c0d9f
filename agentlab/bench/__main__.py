"""`python -m agentlab.bench NAME [--json FILE] [options of the bench]`."""

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentlab.bench.contract import Report, check_writable, discover, load, machine, write_json
from agentlab.errors import ConfigError


def parser(package_name: str) -> argparse.ArgumentParser:
    """The words of the command line that are the same for every bench."""
    benches = discover(importlib.import_module(package_name))
    width = max(map(len, benches), default=0)
    made = argparse.ArgumentParser(
        prog="python -m agentlab.bench",
        description="Measure something, and hold it against its goals. The exit status is 1 when a goal is missed.",
        epilog="benches:\n" + "\n".join(f"  {name.ljust(width)}  {line}" for name, line in benches.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    made.add_argument("name", nargs="?", metavar="NAME", help="the bench; NAME --help lists its own options")
    made.add_argument("--json", type=Path, metavar="FILE", help="write rows, versions and machine to this file")
    return made


def main(arguments: Sequence[str] | None = None, package_name: str = "agentlab.bench") -> int:
    """Run one bench and return the exit status: 0, 1 for a missed goal, 2 for a wrong command line."""
    words = parser(package_name)
    options, rest = words.parse_known_args(arguments)
    if options.name is None:
        words.print_help()
        return 0 if set(rest) & {"-h", "--help"} else 2
    try:
        run = load(importlib.import_module(package_name), options.name)
        if options.json is not None:
            check_writable(options.json)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    started = time.perf_counter()
    rows = tuple(run(rest))
    report = Report(options.name, rows, time.perf_counter() - started, tuple(rest))
    sys.stdout.write(report.table() + "\n")
    try:
        if options.json is not None:
            write_json(options.json, report.as_json(machine()))
    except OSError as error:
        sys.stderr.write(f"The table above could not be written to {str(options.json)!r}: {error}\n")
        return 1
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
