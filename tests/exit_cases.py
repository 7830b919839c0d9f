"""Processes that end while a run lives: `python exit_cases.py HOW WHAT FOLDER SEED`.

HOW it ends: "raise", "end" (of the script), "exit", "interrupt", "hung" (raises while an environment never comes
back) or "stopping" (raises while `stop` waits). WHAT runs: "counted", see `resume_cases`, or "jax", an engine and a
trainer of JAX.
"""

import contextlib
import itertools
import os
import random
import signal
import sys
import threading

import resume_cases

import agentlab as al
from agentlab.errors import RunError
from agentlab.models import tiny_model


class Hung(resume_cases.Env):
    """Some never come back."""

    def step(self, action):
        if self.number == 6:
            threading.Event().wait()
        return super().step(action)


def endless():
    """Tasks without an end, of which none breaks."""
    return itertools.cycle(task for task in resume_cases.tasks() if int(task["id"]) not in resume_cases.BROKEN)


def trained(folder):
    """A run of a tiny model on an engine of JAX."""
    learner = al.GRPOLearner(
        model=tiny_model(),
        agent_class=al.ModelAgent,
        env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": lambda task, answer: float(len(answer))},
        config=al.GRPOConfig(
            group_size=2, groups_per_step=1, max_tokens=8, tokens_per_slot=128, num_slots=4, max_off_policy_steps=1
        ),
    )
    tasks = ({"prompt": f"{number}"} for number in range(10_000))
    return learner.train(tasks, steps=1000, checkpoint_dir=folder, checkpoint_every=1)


def main(how, what, folder, seed):
    if how == "hung":
        resume_cases.Env = Hung
    run = (
        trained(folder) if what == "jax" else resume_cases.start(folder, lead=1, every=1, given=endless(), steps=10**6)
    )
    wanted = 2 if what == "jax" else 3
    while run.snapshot().step < wanted and not run.done:
        threading.Event().wait(0.002)
    threading.Event().wait(random.Random(seed).uniform(0, 0.05))
    if how == "stopping":
        with contextlib.suppress(RunError):  # it has no time to end
            run.stop(timeout_s=0)
    if how in ("raise", "hung", "stopping"):
        raise ValueError("of the script")
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        run.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
