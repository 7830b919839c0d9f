"""A cheap run that can be killed anywhere: a scripted engine, a trainer of plain arrays, real checkpoints.

As a program it kills its own children: `python resume_cases.py FOLDER KILLS LEAD` writes one JSON object.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import agentlab.learner  # noqa: F401  (so that forked children need not import it)
from agentlab.agents import ModelAgent
from agentlab.inference.scripted import ScriptedEngine
from agentlab.learner.weights import CheckpointPlan, TrainedWeights
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Run
from agentlab.types import EnvStepResult, Policy

NUM_TASKS = 64
BROKEN = frozenset(range(5, NUM_TASKS, 13))
"""Tasks whose environment raises."""


def number_of(task):
    """The number of a task is its id, or the last of a tuple."""
    last = task.id
    while isinstance(last, tuple):
        last = last[-1]
    return int(last)


class Env:
    """Pays the number of the task, a little late; some break."""

    def __init__(self, task):
        self.number = number_of(task)

    def reset(self):
        return f"task {self.number}", {}

    def step(self, action):
        if self.number in BROKEN:
            raise ValueError("broken")
        time.sleep(0.002 * (self.number % 5))
        return EnvStepResult("", float(self.number % 7), True)

    def close(self):
        pass


class CountingTrainer:
    """Its whole state is what it was given: how often each task came, when, and a number that all of it made."""

    def __init__(self):
        self.version = 0
        self.counts, self.when = np.zeros(NUM_TASKS, np.int32), np.full(NUM_TASKS, -1, np.int32)
        self.value = np.asarray(1.0)

    @property
    def policy(self):
        return Policy(self.version, None)

    def update(self, groups):
        for group in groups:
            number = number_of(group.task)
            self.counts[number] += 1
            self.when[number] = self.version
            self.value = np.asarray(np.sin(self.value * 1.7 + group.rewards[0] + number))
        self.version += 1
        return SimpleNamespace(policy=self.policy, metrics={"loss": float(self.value)}, notes=())

    def state(self):
        return {"counts": self.counts, "when": self.when, "value": self.value}

    def about(self):
        return {"kind": "counting"}

    def go_on(self, found):
        self.version = found.version
        self.counts, self.when, self.value = (np.array(found.state[name]) for name in ("counts", "when", "value"))


def tasks(count=NUM_TASKS):
    return [{"id": str(number), "prompt": f"task {number}"} for number in range(count)]


def start(
    folder, *, lead, steps=1000, given=None, every=3, every_s=300.0, trainers=None, told=None, kind=None, about=None
):
    """A run that goes on from what is in `folder`; the trainer is left in `trainers`, notes in `told`."""
    config = RolloutConfig(group_size=2, groups_per_step=2, max_off_policy_steps=lead, max_failed_groups=NUM_TASKS)

    def make_trainer():
        made = (kind or CountingTrainer)()
        if trainers is not None:
            trainers.append(made)
        return made

    weights = TrainedWeights(SimpleNamespace(params=None), make_trainer)
    begun = weights.begin(CheckpointPlan.of(folder, every, every_s, 3, True), (), about or {})
    notes = [] if told is None else told
    notes += begun.notes

    def build():
        engine = ScriptedEngine("yes")
        if weights.policy.version:
            engine.update_policy(weights.policy)
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=ModelAgent,
            env_class=Env,
            config=config,
            version=weights.policy.version,
            progress=begun.progress,
        )
        orchestrator.gate.limit = steps * config.groups_per_step
        learner = weights.thread(begun, notes.append)
        options = {"record": begun.record, "schedule": begun.schedule(), "sinks": begun.plan.sinks()}
        options["notes"] = notes
        return Parts(engine, orchestrator, learner, weights.publish, **options)

    return Run("counted", build, tasks() if given is None else given, steps)


def outcome(run, trainer):
    """What a run that has ended consumed, as plain JSON."""
    last = run.snapshot()
    return {
        "counts": trainer.counts.tolist(),
        "when": trainer.when.tolist(),
        "losses": [row["loss"] for row in last.metrics],
        "steps": [row["step"] for row in last.metrics],
        "trained": last.counts.trained,
        "failed": last.counts.failed,
        "stale": last.counts.stale,
        "admitted": last.counts.admitted,
    }


def live(folder, lead, told):
    """One life of the run, in a child: to its end, unless it is killed before."""
    trainers = []
    run = start(folder, lead=lead, trainers=trainers).wait()
    Path(told).write_text(json.dumps(outcome(run, trainers[-1])))


def life(folder, lead, told, kill_after_s=None):
    """Fork a life and kill it after so many seconds; whether it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            live(folder, lead, told)
            status = 0
        finally:
            os._exit(status)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a life ended with an error of its own"
    return os.WIFSIGNALED(status)


def main(folder, kills, lead):
    """Runs, each killed again and again until it has ended by itself; as many as it takes for `kills` kills."""
    rng = random.Random(7)
    began_s = time.monotonic()
    life(folder / "unbroken", lead, folder / "unbroken.json")
    whole_s = time.monotonic() - began_s
    killed, outcomes = 0, [json.loads((folder / "unbroken.json").read_text())]
    while killed < kills:
        place, told = folder / f"broken{len(outcomes)}", folder / f"broken{len(outcomes)}.json"
        while not told.exists():
            killed += life(place, lead, told, rng.uniform(0.1, 0.95) * whole_s if killed < kills else None)
        outcomes.append(json.loads(told.read_text()))
        lines = (place / "metrics.jsonl").read_text().splitlines()
        outcomes[-1]["lines"] = [json.loads(line)["loss"] for line in lines]
    sys.stdout.write(json.dumps({"killed": killed, "outcomes": outcomes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
