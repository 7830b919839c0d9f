"""The notebooks: their form, their paired text, and the quickstart run top to bottom without a browser."""

import json
from pathlib import Path

import jupytext
import nbformat
import pytest

from agentlab.bench import quickstart
from agentlab.errors import ConfigError, RunError

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_short_define_nothing_and_carry_no_widget_state(path):
    notebook = nbformat.read(path, as_version=4)
    assert "widgets" not in notebook.metadata
    assert path.stat().st_size < 1_000_000
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 15, cell.source
            assert not any(line.startswith(("def ", "class ")) for line in cell.source.splitlines()), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_the_same_as_its_paired_text(path):
    def cells(document):
        return [(cell.cell_type, cell.source) for cell in document.cells]

    assert cells(jupytext.read(path.with_suffix(".py"))) == cells(nbformat.read(path, as_version=4))


def test_the_quickstart_runs_without_a_browser_and_says_what_it_learned(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENTLAB_FAST", "1")
    assert quickstart.main(["--out", str(tmp_path / "demo"), "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "Success on 8 held-out tasks: " in printed and "run.pftrace" in printed
    assert len((tmp_path / "demo/metrics.jsonl").read_text().splitlines()) == 2
    assert len(json.loads((tmp_path / "demo/after.json").read_text())["solved"]) == 8
    executed = nbformat.read(tmp_path / "demo/01_quickstart.ipynb", as_version=4)
    assert "SEED = 3" in executed.cells[2].source and "widgets" not in executed.metadata
    kinds = [set(output.data) for cell in executed.cells for output in cell.get("outputs", []) if "data" in output]
    assert not any("application/vnd.jupyter.widget-view+json" in kind for kind in kinds)
    assert {"image/png", "text/html", "text/plain"} in kinds, "the dashboard is not frozen into a picture"
    assert "<img" in (tmp_path / "demo/01_quickstart.html").read_text(encoding="utf-8")


def test_a_gain_is_paired_task_by_task():
    outcome = quickstart.Outcome([0, 0, 1, 1], [1, 1, 1, 0], 60.0, Path("n"), Path("p"), Path("f"))
    gain, low, high = outcome.gain
    assert gain == 25.0
    assert low == pytest.approx(25 - 1.96 * 95.743 / 2, abs=0.1) and high == pytest.approx(
        25 + 1.96 * 95.743 / 2, abs=0.1
    )


def test_a_cell_that_fails_is_told_in_a_sentence_and_what_ran_is_kept(tmp_path):
    cells = ["SEED = 0", "import agentlab as al", "al.load_model('no such model')", "1"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbformat.write(notebook, tmp_path / "broken.ipynb")
    with pytest.raises(RunError, match=r"failed with ModelError: 'no such model' must be a folder"):
        quickstart.execute(tmp_path / "out", notebook=tmp_path / "broken.ipynb")
    kept = nbformat.read(tmp_path / "out/broken.ipynb", as_version=4)
    assert kept.cells[2].outputs[0].ename == "ModelError"


def test_a_notebook_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="must lie at .*nowhere.ipynb"):
        quickstart.execute(tmp_path, notebook=tmp_path / "nowhere.ipynb")
