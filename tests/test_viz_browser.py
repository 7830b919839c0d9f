"""The live dashboard in JupyterLab, driven by a headless Chromium on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parent.parent
TOKEN = "agentlab"
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

IDLE = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"

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
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    return found


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab whose folder holds the notebook dashboard.ipynb."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "source": text, "metadata": {}, "outputs": [], "execution_count": None}
        for i, text in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}
    (tmp_path / "dashboard.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "fake_run.py").write_text(RUN)
    env = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    env |= {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--ip=127.0.0.1",
        "--port=0",
        "--allow-root",
        "--expose-app-in-browser",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={tmp_path}",
    ]
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        yield _address(tmp_path / "RUNTIME", server, tmp_path / "lab.log")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=20)


def _address(folder: Path, server: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline and server.poll() is None:
        for file in folder.glob("jpserver-*.json"):
            url = json.loads(file.read_text() or "{}").get("url")
            try:
                if url and urllib.request.urlopen(f"{url}api/status?token={TOKEN}", timeout=5).status == 200:
                    return url
            except (urllib.error.URLError, TimeoutError):
                pass
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def test_the_picture_changes_while_a_later_cell_runs_and_is_static_in_the_end(lab, chromium, tmp_path):
    api = pytest.importorskip("playwright.sync_api")
    screenshots = Path(os.environ.get("AGENTLAB_SCREENSHOTS", tmp_path))
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{lab}lab/tree/dashboard.ipynb?token={TOKEN}")
        page.wait_for_function("window.jupyterapp && window.jupyterapp.restored", timeout=40_000)
        page.locator(".jp-CodeCell").first.wait_for()
        page.wait_for_function(IDLE)
        for index in range(3):
            _run_cell(page, index)
        picture = page.locator(".jp-OutputArea-output img").first
        picture.wait_for(timeout=30_000)
        page.get_by_text("busy", exact=True).wait_for(timeout=30_000)
        first = picture.get_attribute("src")
        page.wait_for_function(f"document.querySelector('.jp-OutputArea-output img').src !== {json.dumps(first)}")
        assert page.get_by_role("button", name="Pause").is_visible()
        page.wait_for_timeout(int(os.environ.get("AGENTLAB_SCREENSHOT_AFTER_MS", "0")))
        page.screenshot(path=screenshots / "dashboard-live.png")
        _check_nothing_overflows(page)
        page.set_viewport_size({"width": 400, "height": 900})
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.wait_for_timeout(500)
        page.screenshot(path=screenshots / "dashboard-phone.png")
        _check_nothing_overflows(page)
        page.evaluate("void window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
        page.set_viewport_size({"width": 1200, "height": 1000})
        page.get_by_text("KeyboardInterrupt").first.wait_for()
        page.wait_for_function(IDLE)  # until then the kernel throws away what is sent after an error
        page.wait_for_timeout(500)
        _run_cell(page, 3)
        page.locator(".jp-OutputArea-output img[src^='data:image/png']").first.wait_for(timeout=20_000)
        assert page.get_by_role("button", name="Pause").count() == 0
        page.screenshot(path=screenshots / "dashboard-frozen.png")
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
        browser.close()
    assert errors == []
    saved = json.loads((tmp_path / "dashboard.ipynb").read_text())
    (output,) = saved["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/plain", "text/html", "image/png"}
    assert output["metadata"] == {}


def _run_cell(page, index: int) -> None:
    page.evaluate(f"window.jupyterapp.shell.currentWidget.content.activeCellIndex = {index}")
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")


def _check_nothing_overflows(page) -> None:
    """No part of the dashboard is wider than the output it stands in."""
    too_wide = page.evaluate(
        """() => {
            const area = document.querySelector('.jp-OutputArea-output img').closest('.jp-OutputArea-output');
            const right = area.getBoundingClientRect().right + 1;
            return [...area.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > right)
                .map(e => e.className + ' ' + e.getBoundingClientRect().right + ' > ' + right);
        }"""
    )
    assert too_wide == []
