"""The notebooks: their form, their paired text, and the quickstart run top to bottom without a browser."""

import ast
import functools
import itertools
import json
import re
from pathlib import Path

import jupytext
import nbformat
import pytest

import agentlab as al
from agentlab.bench import notebooks, quickstart
from agentlab.bench.simulated import simulated_run
from agentlab.errors import ConfigError, RunError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
DEFINED = {
    "02_agents_and_environments": {"Thermostat", "NumberAgent"},
    "07_bring_your_own_environment": {"TrafficLights"},
}
"""What a notebook may define: the agents, environments, tools and rewards that it is about, and nothing else."""
TO_COME: set[str] = set()
"""Notebooks that others point to already; a name is taken out when its notebook is there."""
WRITTEN = {".py", ".ipynb", ".md", ".toml", ".yml", ".txt", ".json", ""}
"""Endings of files that are text: what could name an address."""
ELSEWHERE = re.compile(r"/(root|home|tmp|work|Users)/")
"""Folders of the machine that stored the outputs."""


def code_of(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def shown(cell):
    """The data of everything that a cell shows, by mime type."""
    return [output.data for output in cell.get("outputs", []) if "data" in output]


def tree_of(cell):
    """The code of a cell without its magics."""
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.MULTILINE))


@EACH
def test_cells_are_short_and_define_only_what_the_notebook_is_about(path):
    defined = set()
    for cell in code_of(path):
        assert len(cell.source.splitlines()) <= 15, cell.source
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        defined |= {node.name for node in tree_of(cell).body if isinstance(node, kinds)}
    assert defined == DEFINED.get(path.stem, set())


@EACH
def test_a_notebook_says_the_same_as_its_paired_text(path):
    def cells(document):
        return [(cell.cell_type, cell.source) for cell in document.cells]

    assert cells(jupytext.read(path.with_suffix(".py"))) == cells(nbformat.read(path, as_version=4))


@EACH
def test_the_fast_preset_trains_a_tiny_model_of_the_family_that_the_full_one_names(path):
    code = path.with_suffix(".py").read_text(encoding="utf-8")
    if "Qwen/Qwen2.5" in code:
        assert "tiny_model(" in code and code.count("tiny_model(") == code.count('tiny_model(model_type="qwen2"')
    else:
        assert not re.search(r"load_model\(\"(?!HuggingFaceTB/SmolLM2)", code), "say here of which family it is"


@EACH
def test_a_notebook_begins_alike_everywhere(path):
    notebook = nbformat.read(path, as_version=4)
    head = notebook.cells[0].source.splitlines()
    assert head[0].startswith("# ") and head[2] == notebooks.opening(path.stem)
    assert "You will learn" in head and sum(line.startswith("- ") for line in head) == 3
    (time,) = [line for line in head if line.startswith("**Time:**")]
    assert "CPU" in " ".join(head[head.index(time) :]) and "TPU" in " ".join(head[head.index(time) :])
    assert [cell.source for cell in notebook.cells[1:3]] == [notebooks.install_cell(), notebooks.PRESET]
    assert len(notebooks.install_cell().splitlines()) <= 3
    for key, value in notebooks.RUNTIMES.get(path.stem, notebooks.PLAIN).items():
        assert notebook.metadata[key] == value


@EACH
def test_a_notebook_ends_with_exercises_whose_answers_are_hidden_and_with_what_is_next(path):
    last = nbformat.read(path, as_version=4).cells[-1]
    assert last.cell_type == "markdown" and "## Exercises" in last.source and "**Next:**" in last.source
    assert last.source.count("<details>") == last.source.count("</details>") >= 2


@EACH
def test_a_notebook_is_stored_with_outputs_that_show_without_a_kernel(path):
    notebook = nbformat.read(path, as_version=4)
    assert "widgets" not in notebook.metadata and path.stat().st_size <= notebooks.LIMIT_BYTES
    code = code_of(path)
    counts = [cell.execution_count for cell in code if cell.execution_count is not None]
    assert counts == sorted(set(counts)) and len(counts) > 0.8 * len(code), "not run top to bottom"
    assert all(cell.execution_count for cell in code if cell.outputs)
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", cell.source
            text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
            assert not ELSEWHERE.search(text), text
        assert not any("application/vnd.jupyter.widget-view+json" in data for data in shown(cell))


@EACH
def test_a_sentence_follows_each_figure(path):
    cells = nbformat.read(path, as_version=4).cells
    for cell, following in itertools.pairwise(cells):
        if cell.cell_type == "code" and any("image/png" in data for data in shown(cell)):
            assert following.cell_type == "markdown" and following.source.startswith("*"), cell.source


@EACH
def test_the_names_and_files_that_a_notebook_speaks_of_exist(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((?!https?://|#)([^)]+)\)", cell.source):
                assert (FOLDER / target).exists() != (target in TO_COME), target
            spoken = re.findall(r"`al\.([\w.]+)", cell.source)
        else:
            spoken = [ast.unparse(node)[3:] for node in ast.walk(tree_of(cell)) if is_public_name(node)]
        for name in spoken:
            functools.reduce(getattr, name.split("."), al)


def is_public_name(node):
    """Whether it reads `al.x` or `al.x.y`, no longer than that."""
    return isinstance(node, ast.Attribute) and re.fullmatch(r"al\.\w+(\.\w+)?", ast.unparse(node)) is not None


def test_badges_and_the_install_cell_name_the_repository_that_is_named_in_one_place(monkeypatch):
    monkeypatch.setattr(notebooks, "REPOSITORY", "somebody/something")
    path = "github.com/somebody/something/blob/main/notebooks/07_x.ipynb"
    colab, kaggle = re.findall(r"\)\]\((https://[^)]+)\)", notebooks.opening("07_x"))
    assert colab == "https://colab.research.google.com/" + path.replace("github.com", "github")
    assert kaggle == "https://kaggle.com/kernels/welcome?src=https://" + path
    assert '%pip install -q "agentlab @ git+https://github.com/somebody/something@main"' in notebooks.install_cell()


def test_without_a_public_address_a_line_says_how_to_open_a_notebook_in_colab(monkeypatch):
    monkeypatch.setattr(notebooks, "REPOSITORY", "")
    assert "in Colab: File > Upload notebook" in notebooks.opening("07_x") and "http" not in notebooks.opening("07_x")
    assert "%pip install -q $(ls agentlab-*.whl " in notebooks.install_cell() and "http" not in notebooks.install_cell()


def test_nothing_but_that_one_place_names_an_address_of_the_repository():
    """Neither with a scheme nor without, nor as somebody's name before ours; what is made from the one place may."""
    address = re.compile(r"""(?:https?:|github\.com|\bgit@)[^\s"'`)\\]*agentlab|[\w-]+/agentlab(?:\.git|@\w|/blob/)""")
    made = [notebooks.install_cell(), *map(notebooks.opening, notebooks.names())]
    files = [
        *ROOT.glob("*"),
        *(path for name in ("agentlab", "notebooks", "tests", ".ci") for path in (ROOT / name).rglob("*")),
    ]
    texts = [path for path in files if path.suffix in WRITTEN and path.is_file() and path != Path(__file__)]
    assert {ROOT / name for name in ("README.md", "pyproject.toml", "environment.yml", "Makefile")} < set(texts)
    for path in texts:
        text = path.read_text(encoding="utf-8")
        for line in made:
            text = text.replace(line, "").replace(json.dumps(line)[1:-1], "")
        assert not address.search(text), f"{path.relative_to(ROOT)}: {address.search(text)}"


def test_readmes_table_of_notebooks_is_read_as_plain_text():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d\d_\w+)\] .*$", text, re.MULTILINE)
    assert rows == notebooks.names()
    lines = [line for line in text.splitlines() if re.match(r"\| \[\d\d_", line)]
    assert len({len(line) for line in lines}) == 1 and max(map(len, lines)) <= 120
    assert not any("http" in line or "<" in line or "![" in line for line in lines)
    assert all(f"[{name}]: notebooks/{name}.ipynb" in text.splitlines() for name in rows)


@pytest.mark.slow
@pytest.mark.timeout(600)
@EACH
def test_a_notebook_runs_in_fast_mode_within_two_minutes(path, tmp_path):
    environ = {"AGENTLAB_FAST": "1", "HF_HUB_OFFLINE": "1"}
    spent_s = notebooks.execute(nbformat.read(path, as_version=4), tmp_path / path.name, environ=environ)
    assert spent_s <= notebooks.LIMIT_S


def test_a_notebook_is_made_from_its_text_and_keeps_the_outputs_of_cells_that_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    cells = ["# %% [markdown]\n# # T\n#\n# [![", "# %%\n# install", "# %%\nPRESET", "# %%\n1 + 1", "# %%\n2 + 2"]
    (tmp_path / "11_x.py").write_text("\n\n".join(cells) + "\n")
    document = notebooks.formed("11_x")
    assert document.cells[0].source.endswith(notebooks.opening("11_x"))
    assert document.cells[1].source == notebooks.install_cell()
    document.cells[3].outputs = [nbformat.v4.new_output("stream", name="stdout", text="10%\r50%\r")]
    document.cells[3].outputs += [nbformat.v4.new_output("stream", name="stdout", text="done\n")]
    document.cells[4].outputs = [nbformat.v4.new_output("stream", name="stdout", text="4")]
    notebooks.store("11_x", document)
    (tmp_path / "11_x.py").write_text((tmp_path / "11_x.py").read_text().replace("2 + 2", "2 + 3"))
    notebooks.pair("11_x")
    again = notebooks.read(tmp_path / "11_x.ipynb").cells
    assert [output.text for output in again[3].outputs] == ["done\n"] and again[4].outputs == []
    assert again[2].source == notebooks.PRESET


def test_a_notebook_that_warned_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("stream", name="stderr", text="Beware")])
    with pytest.raises(RunError, match="wrote to the error output:\nBeware"):
        notebooks.store("11_x", nbformat.v4.new_notebook(cells=[cell]))
    assert not (tmp_path / "11_x.ipynb").exists()


def test_a_notebook_without_a_line_for_how_to_open_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    (tmp_path / "11_x.py").write_text("# %% [markdown]\n# # T\n")
    with pytest.raises(ConfigError, match="one line that begins with"):
        notebooks.formed("11_x")
    with pytest.raises(ConfigError, match="Did you mean '11_x'"):
        notebooks.formed("11_y")


@pytest.mark.parametrize(
    ("given", "fast", "expected"),
    [("auto", "", "cpu"), ("cpu", "", "cpu"), ("tpu", "", "tpu"), ("fast", "", "fast"), ("tpu", "1", "fast")],
)
def test_a_preset_is_what_was_asked_for_unless_fast_mode_is_set(given, fast, expected, monkeypatch):
    monkeypatch.setenv("AGENTLAB_FAST", fast)
    assert al.notebook.preset(given) == expected


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'fast'"):
        al.notebook.preset("fats")


def test_the_quickstart_runs_without_a_browser_and_says_what_it_learned(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENTLAB_FAST", "1")
    assert quickstart.main(["--out", str(tmp_path / "demo"), "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "Success on 8 held-out tasks: " in printed and "run.pftrace" in printed
    assert len((tmp_path / "demo/metrics.jsonl").read_text().splitlines()) == 2
    assert len(json.loads((tmp_path / "demo/after.json").read_text())["solved"]) == 8
    executed = nbformat.read(tmp_path / "demo/01_quickstart.ipynb", as_version=4)
    assert any("SEED = 3" in cell.source.splitlines() for cell in executed.cells)
    assert "widgets" not in executed.metadata
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


def test_a_simulated_run_is_a_run_whose_rewards_are_drawn_by_lot():
    run = simulated_run(steps=3, tokens=4, world_s=0.01, update_s=0.01).wait()
    assert run.status == "finished" and len(run.metrics) == 3
    assert all(trajectory.reward in (0.0, 1.0) for trajectory in run.trajectories)
    assert 0 < sum(trajectory.reward for trajectory in run.trajectories) < len(run.trajectories)
    assert {"decode", "forward_backward", "step"} <= {span.stage for span in run.spans()}
