"""A JupyterLab or a classic Notebook on loopback, and what tests do with it in a headless Chromium."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
STATUS = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
IDLE = f"{STATUS} === 'idle'"
CLASSIC = "window.Jupyter.notebook"
PATIENCE_MS = 60_000
"""For anything that a loaded machine delays."""


def screenshots_folder(default: Path) -> Path:
    """Where screenshots are kept: the folder in AGENTLAB_SCREENSHOTS, or the test's own."""
    folder = Path(os.environ.get("AGENTLAB_SCREENSHOTS", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def lab_of(folder: Path, notebooks: dict[str, Sequence[str]], files: dict[str, str]) -> Iterator[str]:
    """The address of a JupyterLab whose folder holds these notebooks, by name, and files."""
    write_notebooks(folder, notebooks)
    for name, text in files.items():
        (folder / name).write_text(text)
    settings = folder / "CONFIG" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    options = ["--expose-app-in-browser", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    with _serving(folder, [sys.executable, "-m", "jupyterlab", *options], "jpserver") as address:
        yield address


@contextlib.contextmanager
def classic_of(folder: Path, python: str, notebooks: dict[str, Sequence[str]]) -> Iterator[str]:
    """The address of a classic Notebook of that interpreter's environment, whose folder holds these notebooks."""
    write_notebooks(folder, notebooks)
    options = [f"--NotebookApp.token={TOKEN}", f"--notebook-dir={folder}"]
    with _serving(folder, [python, "-m", "notebook", *options], "nbserver") as address:
        yield address


@contextlib.contextmanager
def _serving(folder: Path, command: Sequence[str], tells: str) -> Iterator[str]:
    """The address of a server that writes where it listens into a file whose name begins with `tells`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    env |= {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    env |= {"HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--no-browser", "--ip=127.0.0.1", f"--port={_free_port()}", "--allow-root"],
            env=env,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield _address(folder / "RUNTIME", server, folder / "server.log", tells)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=20)


def write_notebooks(folder: Path, notebooks: dict[str, Sequence[str]]) -> None:
    """Write notebooks of these cells, by name."""
    for name, cells in notebooks.items():
        (folder / name).write_text(json.dumps(_notebook(cells)))


def _notebook(sources: Sequence[str]) -> dict[str, Any]:
    cells = [
        {"cell_type": "code", "id": f"c{i}", "source": text, "metadata": {}, "outputs": [], "execution_count": None}
        for i, text in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def _free_port() -> int:
    """One that nobody uses now; classic Notebook does not tell which it took when it is asked for any."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


def _address(folder: Path, server: subprocess.Popen, log: Path, tells: str) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        for file in folder.glob(f"{tells}-*.json"):
            url = json.loads(file.read_text() or "{}").get("url")
            try:
                if url and urllib.request.urlopen(f"{url}api/status?token={TOKEN}", timeout=5).status == 200:
                    return url
            except (urllib.error.URLError, TimeoutError):
                pass
        time.sleep(0.1)
    raise AssertionError(f"The server did not start:\n{log.read_text()[-3000:]}")


@contextlib.contextmanager
def page_of(chromium: str, address: str, notebook: str) -> Iterator[Any]:
    """A page with the notebook open and its kernel idle; what the console calls an error fails the test."""
    with _browsing(chromium) as page:
        alone = f"lab/workspaces/{Path(notebook).stem}/tree/{notebook}"  # in no other workspace's tabs
        page.goto(f"{address}{alone}?token={TOKEN}")
        page.wait_for_function("window.jupyterapp && window.jupyterapp.restored")
        page.locator(".jp-CodeCell").first.wait_for()
        page.wait_for_function(IDLE)
        yield page


@contextlib.contextmanager
def classic_page_of(chromium: str, address: str, notebook: str) -> Iterator[Any]:
    """A page of classic Notebook with its kernel connected; what the console calls an error fails the test."""
    with _browsing(chromium) as page:
        page.goto(f"{address}notebooks/{notebook}?token={TOKEN}")
        page.wait_for_function(f"window.Jupyter && Jupyter.notebook && {CLASSIC}.kernel?.is_connected()")
        yield page


@contextlib.contextmanager
def _browsing(chromium: str) -> Iterator[Any]:
    import pytest

    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(_told(message)) if message.type == "error" else None)
        yield page
        browser.close()
    told = [error for error in errors if not _is_labs_own(error)]
    assert not told, told


def _told(message: Any) -> str:
    return f"{message.text} at {message.location.get('url', '')}"


def _is_labs_own(error: str) -> bool:
    """What JupyterLab itself says where it may reach no network, and of files that it looks for and may lack; badges,
    which are pictures of Colab and Kaggle."""
    return any(part in error for part in ("/lab/api/", "/api/", "/static/", "colab-badge.svg", "open-in-kaggle.svg"))


def run_cell(page: Any, index: int) -> None:
    """Begin a cell; returns at once."""
    page.evaluate(f"window.jupyterapp.shell.currentWidget.content.activeCellIndex = {index}")
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")


def finish_cell(page: Any, index: int) -> None:
    """Run a cell and wait for its end; again where the kernel threw it away, as it does shortly after an error."""
    before, deadline = page.evaluate(prompt_of(index)), time.monotonic() + 100
    run_cell(page, index)
    begun = time.monotonic()
    while True:
        page.wait_for_timeout(200)
        prompt = page.evaluate(prompt_of(index))
        if prompt != before and any(map(str.isdigit, prompt)):
            return
        assert time.monotonic() < deadline, f"cell {index} was not executed: {prompt}"
        if "*" not in prompt and page.evaluate(IDLE) and time.monotonic() > begun + 5:
            run_cell(page, index)
            begun = time.monotonic()


def prompt_of(index: int) -> str:
    """JavaScript that gives the prompt of a cell, such as [7]: or, while it is being executed, [*]:"""
    cell = f"window.jupyterapp.shell.currentWidget.content.widgets[{index}]"
    return f"({cell}.node.querySelector('.jp-InputPrompt').textContent)"


def runs(index: int) -> str:
    """JavaScript that says whether a cell is being executed. The kernel's status does not: comms of widgets, which
    ipykernel 7 handles beside a running cell, make it idle."""
    return f"{prompt_of(index)}.includes('*')"


def output_of(page: Any, index: int) -> Any:
    """What a cell has put out."""
    return page.locator(".jp-CodeCell").nth(index).locator(".jp-OutputArea-output")


def interrupt(page: Any, cell: int) -> float:
    """Interrupt the kernel; seconds until this cell has ended, a minute if it has not."""
    return page.evaluate(
        f"""async () => {{
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            const begin = performance.now();
            await kernel.interrupt();
            while ({runs(cell)} && performance.now() < begin + 60000) await new Promise((next) => setTimeout(next, 5));
            return (performance.now() - begin) / 1000;
        }}"""
    )


def save(page: Any) -> None:
    """Save the notebook, and wait until it is."""
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")


def check_nothing_overflows(page: Any, selector: str = ".jp-OutputArea-output img") -> None:
    """No part of the output that holds what is selected is wider than the output."""
    too_wide = page.evaluate(
        """(selector) => {
            const area = document.querySelector(selector).closest('.jp-OutputArea-output');
            const right = area.getBoundingClientRect().right + 1;
            return [...area.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > right)
                .map(e => e.className + ' ' + e.getBoundingClientRect().right + ' > ' + right);
        }""",
        selector,
    )
    assert too_wide == []


def as_on_a_phone(page: Any) -> None:
    """Make the window as narrow as a phone's."""
    page.set_viewport_size({"width": 400, "height": 900})
    page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.wait_for_timeout(500)
