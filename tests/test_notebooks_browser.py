"""Every tutorial in a real JupyterLab, from top to bottom, as a reader steps through it."""

from pathlib import Path

import pytest
from browser_cases import lab_of, page_of, screenshots_folder

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOK = "window.jupyterapp.shell.currentWidget"
CELLS = f"{NOTEBOOK}.content.widgets.filter((cell) => cell.model.type === 'code')"
OUTPUTS = f"{CELLS}.flatMap((cell) => cell.model.outputs.toJSON())"
LIMIT_MS = 500_000
TRACKER = '{"windowingMode": "none"}'
"""So that all cells are on the page, for the picture of it."""

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_reader_runs_it_and_sees_no_warning_no_error_and_nothing_cut_off(path, tmp_path, monkeypatch, chromium):
    monkeypatch.setenv("AGENTLAB_FAST", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = tmp_path / "CONFIG/lab/user-settings/@jupyterlab/notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text(TRACKER)
    with lab_of(tmp_path, {}, {path.name: path.read_text()}) as address, page_of(chromium, address, path.name) as page:
        page.evaluate("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
        page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        last = f"{CELLS}.at(-1).model.executionCount"
        page.wait_for_function(f"{last} !== null || {OUTPUTS}.some((o) => o.output_type === 'error')", timeout=LIMIT_MS)
        page.wait_for_timeout(1500)
        outputs = page.evaluate(OUTPUTS)
        height = page.evaluate(f"{NOTEBOOK}.content.node.querySelector('.jp-WindowedPanel-viewport').scrollHeight")
        page.set_viewport_size({"width": 1200, "height": min(int(height) + 120, 16_000)})
        page.evaluate(f"{NOTEBOOK}.content.node.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
        page.wait_for_timeout(1500)
        page.screenshot(path=str(screenshots_folder(tmp_path) / f"{path.stem}.png"))
        wide = page.evaluate(
            "[...document.querySelectorAll('.jp-OutputArea-output')]"
            ".filter((o) => o.scrollWidth > o.clientWidth + 1).map((o) => o.textContent.slice(0, 200))"
        )
    assert [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"] == []
    assert wide == []
