"""Checkpoints that cannot be written are seen while the run lives and raised at its end, and leave nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_cases import HeavyTrainer
from resume_cases import start

from agentlab.errors import AgentLabError, CheckpointError, RunError

CASES = Path(__file__).parent / "checkpoint_cases.py"


def told(folder, case):
    """What is seen of a run of `checkpoint_cases`."""
    done = subprocess.run([sys.executable, str(CASES), str(folder), case], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_a_disk_that_stays_full_is_seen_everywhere_and_raised_at_the_end(tmp_path):
    seen = told(tmp_path, "full")
    assert seen["step"] == 6 and seen["trained"] == 12, "every update was done"
    assert seen["status"] == "failed" and seen["error"]["type"] == "CheckpointError"
    assert "The checkpoint of version 6 could not be written" in seen["error"]["text"]
    assert "too large" in seen["error"]["text"], "the system's own words"
    assert str(tmp_path) in seen["error"]["text"] and "Make room" in seen["error"]["text"]
    assert "al.save_model(learner.trained_model, folder)" in seen["error"]["notes"][0]
    assert "checkpoints in a row have failed" in seen["unsaved"] and seen["unsaved"] in seen["notes"]
    assert seen["unsaved"] in seen["dashboard"] and seen["unsaved"] in seen["verdict"]
    assert "Mend the folder of the checkpoints" in seen["verdict"].partition("What to change:")[2]


def test_nothing_half_written_is_left_on_a_full_disk(tmp_path):
    assert told(tmp_path, "full")["files"] == ["metrics.jsonl"]


def test_what_was_written_before_the_disk_was_full_can_be_gone_on_from(tmp_path):
    seen = told(tmp_path, "filling")
    assert seen["error"]["type"] == "CheckpointError" and "20" not in seen["files"]
    assert all(name.isdigit() or name == "metrics.jsonl" for name in seen["files"])
    notes = []
    run = start(tmp_path, lead=0, steps=21, kind=HeavyTrainer, told=notes).wait()
    assert run.snapshot().step == 21 and notes == []


def test_a_disk_that_was_full_for_a_while_is_told_and_is_no_error(tmp_path):
    seen = told(tmp_path, "passing")
    status, unsaved, notes = seen["during"]
    assert status == "running" and "could not be written" in unsaved and unsaved in notes
    assert seen["error"] is None and seen["status"] == "finished" and seen["unsaved"] is None
    assert any("was written. " in note and "could not be written to" in note for note in seen["notes"])
    assert "20" in seen["files"] and not any("tmp" in name for name in seen["files"])


def test_what_a_killed_process_left_half_written_is_removed_by_the_next_one(tmp_path):
    left = tmp_path / "2.orbax-checkpoint-tmp"
    (left / "state").mkdir(parents=True)
    (left / "state" / "data").write_bytes(b"half")
    start(tmp_path, lead=0, steps=3).wait()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["3"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="checkpoint_dir must be a folder that can be written, but .*file/run"):
        start(tmp_path / "file" / "run", lead=0, steps=3).wait()


def test_an_error_of_a_checkpoint_is_one_of_the_run():
    assert issubclass(CheckpointError, RunError) and issubclass(CheckpointError, AgentLabError)
