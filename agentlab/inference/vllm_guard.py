"""Runs a command in a session of its own, and ends all of it when standard input closes.

The process that asked for the command holds the other end of standard input. However it goes, killed
by SIGKILL included, the system closes that end: so the command never outlives it. Runs as a script,
needs the standard library alone.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

GRACE_S = 5.0
"""Seconds between asking the command to end and ending it."""
BEAT_S = 0.2


def main(command: list[str]) -> int:
    """Run the command until it ends or standard input closes; its exit code, or -signal."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.append(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interrupt of a notebook's cell is not for us
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while child.poll() is None and not stopped:
        readable, _, _ = select.select([sys.stdin], [], [], BEAT_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    end(child)
    return child.returncode


def end(child: "subprocess.Popen[bytes]") -> None:
    """End the child and whatever it left in its session."""
    send(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    send(child.pid, signal.SIGKILL)
    child.wait()


def send(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
