"""However a process ends while a run lives: the run's threads end first, and nothing aborts."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OUTCOMES = {"raise": 1, "end": 0, "exit": 3, "interrupt": -2, "hung": 1, "stopping": 1}
"""How a process ends, and its exit code."""
WITHOUT_THE_PRIVATE_NAME = """
import concurrent.futures.thread, sys, threading
del threading._register_atexit
import exit_cases
exit_cases.main(*sys.argv[1:])
"""
FORKED = """
import asyncio, os, sys
from agentlab.concurrency import LoopThread
loop = LoopThread(asyncio.Event().wait)
loop.call(int)
child = os.fork()
if child == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
raise ValueError("of the parent")
"""


def ended(how, what, folder, seed=0, program=("exit_cases.py",)):
    """A process of `exit_cases` that has ended."""
    command = [sys.executable, *program, how, what, str(folder), str(seed)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=HERE)


def check(done, how):
    assert done.returncode == OUTCOMES[how], done.stderr[-3000:]
    assert "Fatal Python error" not in done.stderr and "terminate called" not in done.stderr


@pytest.mark.parametrize("how", OUTCOMES)
def test_a_run_is_ended_and_told_of_however_its_process_ends(how, tmp_path):
    done = ended(how, "counted", tmp_path)
    check(done, how)
    assert how == "stopping" or "when the process ended; it is stopped." in done.stderr
    left = [path.name for path in tmp_path.iterdir()]
    assert any(name.isdigit() for name in left) and not any("tmp" in name for name in left)


def test_an_engine_and_a_trainer_of_jax_are_ended_before_the_process(tmp_path):
    check(ended("raise", "jax", tmp_path), "raise")


@pytest.mark.parametrize("seed", range(3))
def test_a_script_that_raises_does_not_abort(seed, tmp_path):
    done = ended("raise", "counted", tmp_path, seed)
    check(done, "raise")
    assert "ValueError: of the script" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_fifty_scripts_that_raise_none_aborts(tmp_path):
    for seed in range(50):
        check(ended("raise", "counted", tmp_path / str(seed), seed), "raise")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_twenty_scripts_that_raise_with_jax_at_work_none_aborts(tmp_path):
    for seed in range(20):
        check(ended("raise", "jax", tmp_path / str(seed), seed), "raise")


def test_a_python_without_the_private_name_of_threading_ends_them_too(tmp_path):
    check(ended("raise", "counted", tmp_path, program=("-c", WITHOUT_THE_PRIVATE_NAME)), "raise")


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "5" and done.returncode == 1, done.stderr
