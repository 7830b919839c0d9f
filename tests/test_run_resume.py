"""A run that is killed or stopped goes on where its last checkpoint was: no task twice, none left out."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from resume_cases import BROKEN, NUM_TASKS, outcome, start, tasks

from agentlab.errors import ConfigError
from agentlab.learner.weights import CheckpointPlan

HERE = Path(__file__).parent
ONCE = [int(number not in BROKEN) for number in range(NUM_TASKS)]


def killed_runs(folder, kills, lead):
    """What `resume_cases` tells: its first outcome is that of a run that was never killed."""
    command = [sys.executable, str(HERE / "resume_cases.py"), str(folder), str(kills), str(lead)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["killed"] >= kills
    return told["outcomes"]


def check_each_once(run):
    """Every task was trained on once, or dropped as too old or failed, and was counted."""
    assert run["failed"] == len(BROKEN) and run["admitted"] == NUM_TASKS
    assert run["trained"] + run["stale"] + run["failed"] == NUM_TASKS
    assert sum(run["counts"]) == run["trained"] and max(run["counts"]) == 1
    assert all(count <= once for count, once in zip(run["counts"], ONCE, strict=True))


def finish(folder, **options):
    trainers = []
    run = start(folder, trainers=trainers, **options).wait()
    return outcome(run, trainers[-1]), run


@pytest.mark.timeout(400)
def test_killed_anywhere_an_on_policy_run_ends_as_if_it_had_never_been(tmp_path):
    """The same tasks in the same updates, and the same losses bit for bit."""
    unbroken, *broken = killed_runs(tmp_path, 10, 0)
    assert unbroken["counts"] == ONCE
    for run in broken:
        lines = run.pop("lines")
        assert run == unbroken
        assert lines == unbroken["losses"], "metrics.jsonl has each update once"


@pytest.mark.timeout(400)
def test_killed_anywhere_a_run_that_is_ahead_consumes_every_task_once(tmp_path):
    for run in killed_runs(tmp_path, 10, 1):
        check_each_once(run)
        assert run["steps"] == list(range(1, len(run["steps"]) + 1))


def test_a_run_goes_on_to_more_steps_and_counts_from_its_beginning(tmp_path):
    first, _ = finish(tmp_path, lead=0, steps=4)
    assert first["trained"] == 8
    second, run = finish(tmp_path, lead=0, steps=7)
    assert second["steps"] == [1, 2, 3, 4, 5, 6, 7] and second["trained"] == 14
    assert second["losses"][:4] == first["losses"]
    times = [row["time_s"] for row in run.metrics]
    assert times == sorted(times)


def test_a_run_that_had_ended_ends_at_once(tmp_path):
    first, _ = finish(tmp_path, lead=0, steps=4)
    again, run = finish(tmp_path, lead=0, steps=4)
    assert run.status == "finished" and again == first


def test_a_stopped_run_keeps_the_newest_update(tmp_path):
    run = start(tmp_path, lead=1, every=1000)
    while run.snapshot().step < 5:
        threading.Event().wait(0.005)
    run.stop()
    for thread in threading.enumerate():
        if thread.name == "agentlab-learner":
            thread.join(20)
    versions = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert versions and max(versions) >= 5
    ended, _ = finish(tmp_path, lead=1)
    check_each_once(ended)


def test_checkpoints_are_written_by_the_clock_too(tmp_path):
    finish(tmp_path, lead=0, steps=6, every=1000, every_s=1e-6)
    versions = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert versions[-1] == 6 and len(versions) > 1


def test_tasks_that_are_not_the_same_again_are_refused(tmp_path):
    finish(tmp_path, lead=0, steps=4)
    with pytest.raises(ConfigError, match="task 0 was '0' and is '1' now"):
        start(tmp_path, lead=0, given=tasks()[1:]).wait()
    with pytest.raises(ConfigError, match="had begun 9 of them and there are only 3 now"):
        start(tmp_path, lead=0, given=tasks(3)).wait()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": 0}, "checkpoint_every must be at least 1, got 0"),
        ({"every_s": 0}, "checkpoint_every_s must be more than 0 seconds"),
        ({"keep": 0}, "keep_checkpoints must be at least 1, got 0"),
        ({"folder": None}, "resume=True needs the folder of the checkpoints"),
    ],
)
def test_impossible_plans_are_refused(wrong, message):
    options = {"folder": "x", "every": 1, "every_s": 1.0, "keep": 1, "resume": True} | wrong
    with pytest.raises(ConfigError, match=message):
        CheckpointPlan.of(*options.values())
