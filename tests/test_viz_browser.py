"""The live dashboard in JupyterLab, driven by a headless Chromium on loopback."""

import json
import os

import pytest
from browser_cases import (
    IDLE,
    as_on_a_phone,
    check_nothing_overflows,
    lab_of,
    page_of,
    run_cell,
    save,
    screenshots_folder,
)

pytestmark = pytest.mark.browser

RUN = '''
"""A run of nothing: a thread that traces real spans and tells its listeners twice a second."""

import random, threading, time
from agentlab.tracing import now_ns, span, tagged
from agentlab.types import Counts, EngineStats, EpisodeInFlight, RunSnapshot


class FakeRun:
    def __init__(self, steps=200):
        self.steps, self.listeners, self.start_ns = steps, [], now_ns()
        self.status, self.rows, self.tokens = "running", [], 0
        self.roll = random.Random(0)
        self.threads = [threading.Thread(target=self.main, daemon=True)]
        self.threads += [threading.Thread(target=self.episode, daemon=True, args=(i,)) for i in range(6)]
        for thread in self.threads:
            thread.start()

    def snapshot(self):
        rows = [r["reward_mean"] for r in self.rows]
        evaluations = [dict(step=float(i), success=0.2 + i / 250, low=0.1 + i / 250, high=0.3 + i / 250, count=100.0)
                       for i in range(0, len(rows), 10)]
        return RunSnapshot(
            name="arithmetic", status=self.status, step=len(rows), steps=self.steps, start_ns=self.start_ns,
            now_ns=now_ns(), metrics=tuple(self.rows), evaluations=tuple(evaluations),
            counts=Counts(admitted=30, in_flight=6, trained=23, stale=1),
            engine=EngineStats(num_running=5, num_waiting=2, num_slots=8, tokens_sampled=self.tokens),
            episodes=tuple(EpisodeInFlight("g", i, 1, "tool", now_ns()) for i in range(6)), queue_depth=2,
            max_concurrency=8, failures={"tool": 2})

    def add_listener(self, listener, /):
        self.listeners.append(listener)

    def pause(self):
        self.status = "paused"

    def resume(self):
        self.status = "running"

    def stop(self):
        self.status = "stopped"
        self.threads[0].join()
        return self

    def episode(self, index):
        while self.status in ("running", "paused"):
            with tagged(group="g", episode=index), span("rollout"):
                with span("model_call"):
                    time.sleep(self.roll.uniform(0.05, 0.4))
                with span("step"), span("tool", tool="calculator"):
                    time.sleep(self.roll.expovariate(4))
                with span("reward"):
                    time.sleep(0.01)

    def main(self):
        told = 0
        while self.status in ("running", "paused"):
            for _ in range(10):
                with span("decode"):
                    time.sleep(0.02)
                self.tokens += 5
            if self.status == "running":
                with span("train"):
                    with span("forward_backward"):
                        time.sleep(0.2)
                    with span("weight_sync"):
                        time.sleep(0.01)
                step = len(self.rows) + 1
                self.rows.append({"step": step, "time_s": (now_ns() - self.start_ns) / 1e9,
                                  "reward_mean": 0.2 + step / 250 + self.roll.random() / 10,
                                  "staleness_mean": 0.4, "staleness_max": 1.0})
            self.tell()
        self.tell()

    def tell(self):
        snapshot = self.snapshot()
        for listener in self.listeners:
            listener(snapshot)
'''

CELLS = [
    "import time\nfrom fake_run import FakeRun\nfrom agentlab import viz\nrun = FakeRun()",
    "viz.dashboard(run)",
    "for beat in range(1200):\n    time.sleep(0.1)\n    if beat == 0: print('busy')",
    "run.stop().status",
]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab whose folder holds the notebook dashboard.ipynb."""
    with lab_of(tmp_path, {"dashboard.ipynb": CELLS}, {"fake_run.py": RUN}) as address:
        yield address


def test_the_picture_changes_while_a_later_cell_runs_and_is_static_in_the_end(lab, chromium, tmp_path):
    screenshots = screenshots_folder(tmp_path)
    with page_of(chromium, lab, "dashboard.ipynb") as page:
        for index in range(3):
            run_cell(page, index)
        picture = page.locator(".jp-OutputArea-output img").first
        picture.wait_for()
        page.get_by_text("busy", exact=True).wait_for()
        first = picture.get_attribute("src")
        page.wait_for_function(f"document.querySelector('.jp-OutputArea-output img').src !== {json.dumps(first)}")
        assert page.get_by_role("button", name="Pause").is_visible()
        page.wait_for_timeout(int(os.environ.get("AGENTLAB_SCREENSHOT_AFTER_MS", "0")))
        page.screenshot(path=screenshots / "dashboard-live.png")
        check_nothing_overflows(page)
        as_on_a_phone(page)
        page.screenshot(path=screenshots / "dashboard-phone.png")
        check_nothing_overflows(page)
        page.evaluate("void window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
        page.set_viewport_size({"width": 1200, "height": 1000})
        page.get_by_text("KeyboardInterrupt").first.wait_for()
        page.wait_for_function(IDLE)  # until then the kernel throws away what is sent after an error
        page.wait_for_timeout(500)
        run_cell(page, 3)
        page.locator(".jp-OutputArea-output img[src^='data:image/png']").first.wait_for()
        assert page.get_by_role("button", name="Pause").count() == 0
        page.screenshot(path=screenshots / "dashboard-frozen.png")
        save(page)
    saved = json.loads((tmp_path / "dashboard.ipynb").read_text())
    (output,) = saved["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/plain", "text/html", "image/png"}
    assert output["metadata"] == {}
