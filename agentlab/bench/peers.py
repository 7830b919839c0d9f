"""Processes that measure themselves, ours and other people's: one JSON line in, one JSON line out."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlab.errors import ConfigError, nearest

TIMEOUT_S = 1800.0
FOLDER = Path(__file__).parent / "peer_scripts"
"""In a clone of the project. A script imports nothing of agentlab: its Python may not have it."""
SCRIPTS = {path.stem.removesuffix("_peer"): path for path in sorted(FOLDER.glob("*_peer.py"))}
"""NAME_peer.py by NAME."""


def parse_peer(text: str) -> tuple[str, str]:
    """NAME=PYTHON of the command line.

    Raises:
        ConfigError: there is no script for the name, or no such Python.
    """
    name, _, python = text.partition("=")
    if name not in SCRIPTS:
        raise ConfigError(f"There is no script for the peer {name!r} in {FOLDER}.{nearest(name, SCRIPTS)}")
    if not Path(python).is_file():
        raise ConfigError(f"--peer must be NAME=PYTHON with a Python that has {name}, got {text!r}.")
    return name, python


def ask_peer(name: str, python: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """What a peer's script answers.

    Raises:
        ConfigError: the script failed, or did not answer in time; the end of what it wrote is told.
    """
    return ask([python, str(SCRIPTS[name])], question, f"The peer {name}")


def ask(
    command: Sequence[str], question: Mapping[str, Any], what: str, *, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a process answers; its last argument is the question.

    Args:
        what: It is, for errors.
        environ: Its environment variables; None for ours.

    Raises:
        ConfigError: it failed, or did not answer in time; the end of what it wrote is told.
    """
    try:
        answered = subprocess.run(
            [*command, json.dumps(question)], capture_output=True, text=True, env=environ, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{what} did not answer within {TIMEOUT_S:.0f} s.") from error
    if answered.returncode:
        raise ConfigError(f"{what} failed with status {answered.returncode}: {answered.stderr[-500:]}")
    return json.loads(answered.stdout.splitlines()[-1])
