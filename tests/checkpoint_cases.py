"""Runs whose disk is full for a while, as programs: `python checkpoint_cases.py FOLDER CASE` writes one JSON object.

A limit on the size of files stands for the disk: a write beyond it fails as one on a full disk does.
"""

import json
import resource
import sys
import threading
from pathlib import Path

import numpy as np
from resume_cases import CountingTrainer, start, tasks

from agentlab.errors import AgentLabError
from agentlab.viz import diagnose
from agentlab.viz.facts import as_text

FREE = resource.RLIM_INFINITY


class HeavyTrainer(CountingTrainer):
    """Has a large array besides, which no compression makes small."""

    ballast = np.random.default_rng(0).random(60_000)

    def state(self):
        return {**super().state(), "ballast": self.ballast}


def limit(num_bytes):
    """Let no file grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, FREE))


def until(condition):
    """Wait for it."""
    while not condition():
        threading.Event().wait(0.005)


def told_of(run, folder):
    """What a person can see of a run that has ended."""
    last = run.snapshot()
    error = None
    try:
        run.wait()
    except AgentLabError as raised:
        error = {"type": type(raised).__name__, "text": str(raised), "notes": raised.__notes__}
    return {
        "status": last.status,
        "step": last.step,
        "unsaved": last.unsaved,
        "notes": last.notes,
        "dashboard": as_text(last, 0.0, "verdict"),
        "verdict": str(diagnose(last, ())),
        "error": error,
        "files": sorted(path.name for path in Path(folder).iterdir()),
    }


def full(folder):
    """The disk is full from before the first checkpoint to the end."""
    limit(100_000)
    trainers = []
    run = start(folder, lead=0, steps=6, every=1, trainers=trainers, kind=HeavyTrainer)
    until(lambda: run.done)
    return told_of(run, folder) | {"trained": int(trainers[-1].counts.sum())}


def slowly(more):
    """Tasks one after the other, with time between them until `more` is set."""
    for task in tasks():
        more.wait(0.1)
        yield task


def filling(folder):
    """The disk becomes full after the first checkpoint."""
    more = threading.Event()
    run = start(folder, lead=0, steps=20, every=1, given=slowly(more), kind=HeavyTrainer)
    until(lambda: (Path(folder) / "1").exists())
    limit(100_000)
    more.set()
    until(lambda: run.done)
    return told_of(run, folder)


def passing(folder):
    """There is room again before the run ends."""
    more = threading.Event()
    limit(100_000)
    run = start(folder, lead=0, steps=20, every=1, given=slowly(more), kind=HeavyTrainer)
    until(lambda: run.snapshot().unsaved or run.done)
    during = run.snapshot()
    limit(FREE)
    more.set()
    until(lambda: run.done)
    return told_of(run, folder) | {"during": [during.status, during.unsaved, list(during.notes)]}


if __name__ == "__main__":
    case = {"full": full, "filling": filling, "passing": passing}[sys.argv[2]]
    told = json.dumps(case(sys.argv[1]))
    limit(FREE)
    sys.stdout.write(told)
