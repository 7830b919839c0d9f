"""The notebooks of the browser tests without a browser: executed by nbmake, saved, converted to HTML."""

import json
import os
import subprocess
import sys

import pytest
from browser_cases import ROOT, write_notebooks
from test_viz_browser_transports import BACKGROUND, CELLS, IFRAME, SHOW

STATIC = {"text/plain", "text/html", "image/png"}


@pytest.mark.timeout(120)
def test_the_dashboards_notebooks_pass_nbmake_and_convert_to_html_with_the_frozen_picture(tmp_path):
    notebooks = {"background": BACKGROUND, "iframe": IFRAME, "run": CELLS}
    write_notebooks(tmp_path, {f"{name}.ipynb": cells for name, cells in notebooks.items()})
    names = [f"{name}.ipynb" for name in notebooks]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "PYTEST"))}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "STEPS": "8", "BEATS": "10"}
    nbmake = [sys.executable, "-m", "pytest", "-q", "--nbmake", "--overwrite", "-p", "no:cacheprovider", *names]
    done = subprocess.run(nbmake, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:]
    pictures = {}
    for name, shown in {"background": 1, "iframe": 1, "run": SHOW}.items():
        cells = json.loads((tmp_path / f"{name}.ipynb").read_text())["cells"]
        (output,) = [o for o in cells[shown]["outputs"] if o["output_type"] == "display_data"]
        assert set(output["data"]) == STATIC
        pictures[name] = json.dumps(cells).count('<img alt=\\"lanes\\"')
    assert pictures["background"] == pictures["iframe"] == 1
    convert = [sys.executable, "-m", "nbconvert", "--to", "html", "--log-level", "ERROR", *names]
    subprocess.run(convert, cwd=tmp_path, env=env, check=True, timeout=100)
    for name, count in pictures.items():
        page = (tmp_path / f"{name}.html").read_text()
        assert page.count('<img alt="lanes"') == count >= 1
