"""A real run in classic Notebook with Colab's pins: ipywidgets 7.7, ipykernel 6.17, notebook 6.5."""

import json
import time

import pytest
from browser_cases import CLASSIC, classic_of, classic_page_of, screenshots_folder
from test_viz_browser_transports import BUSY_CELL, START, wait_for_change

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

BEGUN = "print('begun')\n"
CELLS = [
    START,
    "run",
    BUSY_CELL,
    f"{BEGUN}run.watch()",
    f"{BEGUN}run.wait()",
    f"{BEGUN}await run",
    'run.dashboard("iframe")',
    "run.status",
    "run.stop().status",
]
SHOW, BUSY, WATCH, WAIT, AWAIT, IFRAME, TELL, STOP = range(1, 9)


def test_the_dashboard_lives_acts_is_interrupted_and_freezes_in_classic_notebook(chromium, colab_python, tmp_path):
    shots = screenshots_folder(tmp_path)
    with (
        classic_of(tmp_path, colab_python, {"classic.ipynb": CELLS}) as address,
        classic_page_of(chromium, address, "classic.ipynb") as page,
    ):
        begin(page, 0, SHOW, BUSY)  # before the widgets' own code has loaded, as with "Run All"
        output(page, BUSY).get_by_text("cell is busy").wait_for()
        picture = output(page, SHOW).locator("img.jupyter-widgets").first
        wait_for_change(page, picture)
        page.screenshot(path=shots / "classic-live.png")
        narrow(page)
        page.screenshot(path=shots / "classic-phone.png")
        page.set_viewport_size({"width": 1200, "height": 1000})
        interrupted(page, BUSY)

        page.wait_for_timeout(4000)  # until the widgets' own code has loaded and the dashboard is there again
        wait_for_change(page, picture)  # while the kernel is idle
        shown = output(page, SHOW)
        shown.get_by_role("button", name="Pause").click()
        shown.get_by_text("paused", exact=True).wait_for()
        shown.get_by_role("button", name="Resume").click()
        shown.get_by_text("running", exact=True).wait_for()

        for cell in (WATCH, WAIT, AWAIT):
            assert quickest_interrupt(page, cell) < 1.0
            finish(page, TELL)
            assert text_of(page, TELL) == "'running'"
        assert output(page, WATCH).locator("img[alt=lanes]").count() == 1  # watched no longer: static

        finish(page, IFRAME)
        inside = page.frame_locator("iframe[title='agentlab dashboard']")
        begin(page, BUSY)
        output(page, IFRAME).evaluate("area => area.scrollIntoView()")  # frames that nobody sees are not drawn
        wait_for_change(page, inside.locator("#lanes"))
        inside.get_by_role("button", name="Pause").click()
        inside.get_by_text("paused", exact=True).wait_for()
        page.screenshot(path=shots / "classic-iframe.png")
        interrupted(page, BUSY)

        finish(page, STOP)
        output(page, SHOW).locator("img[alt=lanes]").first.wait_for()
        output(page, IFRAME).locator("img[alt=lanes]").first.wait_for()
        assert output(page, SHOW).locator("img.jupyter-widgets").count() == 0
        assert page.get_by_role("button", name="Pause").count() == 0
        page.screenshot(path=shots / "classic-frozen.png")
        page.evaluate(f"{CLASSIC}.save_notebook()")
        page.wait_for_function(f"!{CLASSIC}.dirty")
    cells = json.loads((tmp_path / "classic.ipynb").read_text())["cells"]
    for cell in (SHOW, WATCH, IFRAME):
        static = [set(o["data"]) for o in cells[cell]["outputs"] if o["output_type"] == "display_data"]
        assert static == [{"text/plain", "text/html", "image/png"}]


def output(page, cell: int):
    return page.locator("div.code_cell").nth(cell).locator("div.output_wrapper")


def text_of(page, cell: int) -> str:
    return output(page, cell).locator("pre").first.inner_text()


def prompt(cell: int) -> str:
    """JavaScript that gives the number of a cell's execution, or "*" while it is under way."""
    return f"String({CLASSIC}.get_cell({cell}).input_prompt_number)"


def begin(page, *cells: int) -> None:
    page.evaluate(f"{CLASSIC}.execute_cells({list(cells)})")


def finish(page, cell: int) -> None:
    begin(page, cell)
    page.wait_for_function(f"/^[0-9]+$/.test({prompt(cell)}) && !{CLASSIC}.kernel_busy")


def interrupted(page, cell: int) -> float:
    """Interrupt the kernel; seconds until this cell has ended."""
    taken_s = page.evaluate(
        f"""async () => {{
            const begin = performance.now();
            {CLASSIC}.kernel.interrupt();
            while ({prompt(cell)} === "*" && performance.now() < begin + 60000)
                await new Promise((next) => setTimeout(next, 5));
            return (performance.now() - begin) / 1000;
        }}"""
    )
    page.wait_for_function(f"!{CLASSIC}.kernel_busy")
    page.wait_for_timeout(500)  # until then the kernel throws away what is sent after an error
    return taken_s


def quickest_interrupt(page, cell: int) -> float:
    """The quickest of three, as the machine may be loaded."""
    taken, deadline = [], time.monotonic() + 100
    while len(taken) < 3 and min(taken, default=9.0) >= 1.0 and time.monotonic() < deadline:
        begin(page, cell)
        output(page, cell).get_by_text("begun").wait_for()
        if cell == WATCH:
            wait_for_change(page, output(page, WATCH).locator("img").first)
        taken.append(interrupted(page, cell))
    return min(taken)


def narrow(page) -> None:
    """Make the window as narrow as a phone's; nothing of the dashboard may be wider than its place."""
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_timeout(500)
    too_wide = page.evaluate(
        """() => {
            const area = document.querySelector('img.jupyter-widgets').closest('.output_subarea');
            const right = area.getBoundingClientRect().right + 1;
            return [...area.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > right)
                .map(e => e.className + ' ' + e.getBoundingClientRect().right + ' > ' + right);
        }"""
    )
    assert too_wide == []
