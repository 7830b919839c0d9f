"""In a real kernel: a run leaves the notebook free, survives interrupts, and re-run cells leave no second run."""

import queue
import re
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

SET_UP = """
import itertools, threading
import agentlab as al
from agentlab.inference import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Run
from agentlab.bench.simulated import SimulatedLearner

def score(task, answer):
    return float("4" in answer)

def start():
    def build():
        engine = ScriptedEngine("4", latency_s=0.02)
        orchestrator = RolloutOrchestrator(
            engine, agent_class=al.ModelAgent, env_class=al.TaskEnvironment, env_kwargs={"reward_fn": score},
            config=RolloutConfig(group_size=2, groups_per_step=2))
        return Parts(engine, orchestrator, SimulatedLearner(0.05), lambda policy: None)
    return Run("kernel", build, al.tasks.arithmetic(seed=0), 100_000)
"""


class Notebook:
    """Runs cells in a kernel and gives the text of what they put out."""

    def __init__(self, folder: Path):
        self.manager, self.client = start_new_kernel(cwd=str(folder), extra_arguments=["--log-level=ERROR"])

    def run(self, code: str, *, interrupt_after_s: float | None = None, timeout_s: float = 60.0) -> str:
        outputs: list[str] = []
        request = self.client.execute(code, stop_on_error=False)
        interrupt_at = None if interrupt_after_s is None else time.monotonic() + interrupt_after_s
        self.interrupted_at = 0.0
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if interrupt_at is not None and time.monotonic() >= interrupt_at:
                interrupt_at, self.interrupted_at = None, time.monotonic()
                self.manager.interrupt_kernel()
            try:
                message = self.client.get_iopub_msg(timeout=0.02)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                outputs.append(content["text"])
            elif kind in ("execute_result", "display_data"):
                outputs.append(content["data"].get("text/plain", ""))
            elif kind == "error":
                outputs.append(re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"])))
            elif kind == "status" and content["execution_state"] == "idle":
                return "\n".join(outputs)
        raise AssertionError(f"The cell did not end within {timeout_s} s: {code}")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    made = Notebook(tmp_path_factory.mktemp("kernel"))
    assert made.run(SET_UP) == ""
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


def test_a_cell_returns_at_once_and_later_cells_run_while_it_trains(notebook):
    began = time.monotonic()
    notebook.run("run = start()")
    assert time.monotonic() - began < 2.0
    first = int(notebook.run("import time; time.sleep(0.5); print(run.snapshot().step)"))
    second = int(notebook.run("time.sleep(0.5); print(run.snapshot().step)"))
    assert second > first


@pytest.mark.parametrize(("waiting", "after_s"), [("run.wait()", 1.0), ("await run", 1.0), ("run.watch()", 5.0)])
def test_an_interrupt_ends_the_waiting_within_a_second_and_not_the_run(notebook, waiting, after_s):
    text = notebook.run(waiting, interrupt_after_s=after_s)
    assert time.monotonic() - notebook.interrupted_at < 1.0
    if waiting == "run.wait()":
        assert "goes on in the background" in text and "run.stop()" in text
    assert notebook.run("print(run.status)").strip() == "running"


def test_running_the_cell_again_says_which_run_lives_and_how_to_stop_it(notebook):
    text = notebook.run("run = start()")
    assert "RunActiveError" in text and "al.current_run().stop()" in text
    assert notebook.run("print(run.status)").strip() == "running"


def test_a_reloaded_module_still_knows_the_live_run(notebook):
    notebook.run("import importlib, agentlab.run; importlib.reload(agentlab.run)")
    assert notebook.run("print(agentlab.run.current_run() is run)").strip() == "True"


def test_stopping_leaves_no_thread_and_the_next_run_may_start(notebook):
    notebook.run("run.stop()")
    assert notebook.run("print(run.status)").strip() == "stopped"
    alive = "print(sorted(t.name for t in threading.enumerate() if t.name.startswith('agentlab')))"
    assert notebook.run(alive).strip() == "[]"
    assert "RunActiveError" not in notebook.run("run = start(); run.stop();")


BRIEF = """
def brief():
    def build():
        engine = ScriptedEngine("4")
        orchestrator = RolloutOrchestrator(
            engine, agent_class=al.ModelAgent, env_class=al.TaskEnvironment, env_kwargs={"reward_fn": score},
            config=RolloutConfig(group_size=2, groups_per_step=2))
        return Parts(engine, orchestrator, SimulatedLearner(0.0), lambda policy: None)
    return Run("brief", build, al.tasks.arithmetic(seed=0), 2)
"""


def test_runs_work_one_after_the_other_in_a_cell_awaited_and_in_a_thread(notebook):
    notebook.run(BRIEF)
    assert notebook.run("print(brief().wait().status, (await brief()).status)").strip() == "finished finished"
    in_thread = (
        "found = []; t = threading.Thread(target=lambda: found.append(brief().wait().status)); t.start(); t.join()"
    )
    assert notebook.run(f"{in_thread}; print(*found)").strip() == "finished"


def test_a_run_works_where_uvloops_policy_is_set(notebook):
    notebook.run("import asyncio, uvloop; asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())")
    assert notebook.run("print(brief().wait().status)").strip() == "finished"
    notebook.run("asyncio.set_event_loop_policy(None)")


def test_a_loop_within_the_kernels_loop_works_only_when_asked_for(notebook):
    notebook.run("async def nested():\n    return (await brief()).status")
    assert "cannot be called from a running event loop" in notebook.run("print(asyncio.run(nested()))")
    notebook.run("al.notebook.enable_nested_asyncio()")
    assert notebook.run("print(asyncio.run(nested()))").strip().splitlines()[-1] == "finished"
    assert notebook.run("print(brief().wait().status)").strip() == "finished"
