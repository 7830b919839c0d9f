"""Builds, runs and stores the tutorials: `python -m agentlab.bench notebooks --fast 03_tools`.

How to make a notebook:

1. Write `notebooks/NAME.py` in jupytext's percent format. Cell 0 is text: a title, a line that begins with
   `*To open this` (how to do so is put there: badges, where `REPOSITORY` is set), "You will learn" with three bullets,
   and a line that begins with `**Time:**`. Cell 1 is
   code with the word `install`, cell 2 code with the word `PRESET`: both are put there, the same in every notebook.
   A sentence in italics stands after each figure; the last cell has exercises with hidden answers and a "Next" link.
   What a notebook may define is listed in `tests/test_notebooks.py`, which checks the form.
2. `python -m agentlab.bench notebooks --fast NAME` runs it as CI does, in `runs/notebooks`, and says what it took.
3. `python -m agentlab.bench notebooks --store NAME` runs it as a reader would (add `--fast` for the fast preset), and
   stores it with its outputs as `notebooks/NAME.ipynb`. `--pair` only takes over changed text; outputs stay.
"""

import argparse
import hashlib
import importlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlab.bench.contract import Row
from agentlab.errors import ConfigError, RunError, nearest
from agentlab.files import write_atomically

REPOSITORY = ""
"""The repository on GitHub, as "owner/name"; empty while it has no public address. Badges and install cells are made
from it, and from nothing else: set it, and run `python -m agentlab.bench notebooks --pair`."""
BRANCH = "main"
FOLDER = Path(__file__).parents[2] / "notebooks"
LIMIT_S = 120.0
"""What a notebook may take in fast mode on two cores."""
LIMIT_BYTES = 1_000_000
PROGRESS_S = 15.0

OPENING = "*To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. \
Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*"
OPENINGS = ("[![", "*To open this ")
"""How the line begins that says how to open a notebook, with badges and without."""
PRESET = """\
import agentlab as al

PRESET = "auto"  # or "fast" (seconds, nothing to download), "cpu", "tpu"
preset = al.notebook.preset(PRESET)
preset"""

RUNTIMES: Mapping[str, Mapping[str, Any]] = {
    "09_colab_tpu": {
        "accelerator": "TPU",
        "colab": {"gpuType": "V5E1", "provenance": []},
        "kaggle": {"accelerator": "tpuV5e8", "isInternetEnabled": True},
    },
    "10_kaggle_tpu": {
        "accelerator": "TPU",
        "colab": {"gpuType": "V5E1", "provenance": []},
        "kaggle": {"accelerator": "tpuV5e8", "isInternetEnabled": True},
    },
}
"""The machine that a notebook asks for, as Colab and Kaggle read it; the others ask for the plainest."""
PLAIN = {"colab": {"provenance": []}, "kaggle": {"accelerator": "none", "isInternetEnabled": True}}


def install_cell() -> str:
    """The code that installs agentlab where it is missing: from its repository, or else from a wheel beside it."""
    wheel = "$(ls agentlab-*.whl /kaggle/input/*/agentlab-*.whl 2>/dev/null)"
    source = f'"agentlab @ git+https://github.com/{REPOSITORY}@{BRANCH}"' if REPOSITORY else wheel
    return f"""\
# Installs agentlab where it is missing, and changes nothing else.
if not __import__("importlib.util").util.find_spec("agentlab"):
    %pip install -q {source}"""


def opening(name: str) -> str:
    """The line that opens this notebook in Colab and in Kaggle, or says how to."""
    if not REPOSITORY:
        return OPENING
    path = f"github.com/{REPOSITORY}/blob/{BRANCH}/notebooks/{name}.ipynb"
    colab = f"https://colab.research.google.com/{path.replace('github.com', 'github', 1)}"
    kaggle = f"https://kaggle.com/kernels/welcome?src=https://{path}"
    return (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}) "
        f"[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]({kaggle})"
    )


def names() -> list[str]:
    """The notebooks there are, in order."""
    return sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))


def formed(name: str) -> Any:
    """The notebook as its text says, without outputs, with how to open it, install cell and runtime put in.

    Raises:
        ConfigError: there is no such text, or the places for these are missing.
    """
    jupytext = _package("jupytext")
    text = FOLDER / f"{name}.py"
    if not text.is_file():
        raise ConfigError(f"There is no notebook {name!r} in {FOLDER}.{nearest(name, names())}")
    document = jupytext.read(text)
    head, places = document.cells[0], {1: ("install", install_cell()), 2: ("PRESET", PRESET)}
    lines = head.source.splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith(OPENINGS)]
    if len(at) != 1:
        raise ConfigError(f"The first cell of {name} must have one line that begins with {OPENINGS[1]!r}.")
    lines[at[0]] = opening(name)
    head.source = "\n".join(lines)
    for number, (word, source) in places.items():
        if document.cells[number].cell_type != "code" or word not in document.cells[number].source:
            raise ConfigError(f"Cell {number} of {name} must be code with the word {word!r}; it is put in there.")
        document.cells[number].source = source
    for number, cell in enumerate(document.cells):
        cell.id = f"{number:02d}-{hashlib.sha1(cell.source.encode()).hexdigest()[:8]}"
        cell.metadata = {}
    document.metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        **RUNTIMES.get(name, PLAIN),
    }
    document.nbformat_minor = 5
    return document


def read(path: Path) -> Any:
    """A stored notebook."""
    return _package("nbformat").read(path, as_version=4)


def pair(name: str) -> Path:
    """Write the notebook from its text; a cell whose code is the same keeps its outputs."""
    document, path = formed(name), FOLDER / f"{name}.ipynb"
    old = read(path) if path.is_file() else None
    kept = {cell.source: cell for cell in old.cells if cell.cell_type == "code"} if old else {}
    for cell in document.cells:
        if cell.cell_type == "code" and cell.source in kept:
            cell.outputs, cell.execution_count = kept[cell.source].outputs, kept[cell.source].execution_count
    if old and "language_info" in old.metadata:
        document.metadata["language_info"] = old.metadata["language_info"]
    return store(name, document)


def store(name: str, document: Any) -> Path:
    """Write a notebook, with the outputs that it has, and its text.

    Raises:
        RunError: it warned, or it is too large.
    """
    clean(document)
    warned = [out.text for cell in document.cells for out in cell.get("outputs", []) if out.get("name") == "stderr"]
    if warned:
        raise RunError(f"{name} is not stored, for a cell wrote to the error output:\n{warned[0][:500]}")
    text = _package("nbformat").writes(document) + "\n"
    if (size := len(text.encode())) > LIMIT_BYTES:
        raise RunError(f"{name} is not stored: it has {size:,} bytes, and may have {LIMIT_BYTES:,}.")
    write_atomically(FOLDER / f"{name}.py", _package("jupytext").writes(document, fmt="py:percent"))
    return write_atomically(FOLDER / f"{name}.ipynb", text)


def clean(document: Any) -> None:
    """Leave out what is of no use to a reader: widget state, progress bars, this machine's home folder."""
    document.metadata.pop("widgets", None)
    for cell in document.cells:
        merged: list[Any] = []
        for output in cell.get("outputs", []):
            if merged and output.output_type == "stream" and merged[-1].get("name") == output.name:
                merged[-1].text += output.text
            else:
                merged.append(output)
        for output in merged:
            if output.output_type == "stream":
                progress = r"[^\n]*\r[^\n]*\n?" if output.name == "stderr" else r"[^\n]*\r(?!\n)"
                output.text = re.sub(progress, "", output.text).replace(str(Path.home()), "~")
        if cell.cell_type == "code":
            cell.outputs = [out for out in merged if out.output_type != "stream" or out.text.strip()]


def execute(document: Any, path: Path, *, environ: Mapping[str, str] | None = None) -> float:
    """Run a notebook top to bottom and save it, with its outputs, as `path` and as HTML beside it.

    Args:
        document: Changed in place: it gets the outputs.
        path: The folder is made if missing, and what the notebook writes lands in it.
        environ: Variables of the kernel, besides those of this process.

    Returns:
        Seconds that it took, with the start of its kernel.

    Raises:
        ConfigError: a package of the extra "notebook" is missing.
        RunError: a cell raised; what ran so far is saved.
    """
    nbformat, exceptions, nbconvert = map(_package, ("nbformat", "nbclient.exceptions", "nbconvert"))
    path.parent.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    try:
        _client(document, path.parent).execute(env={**os.environ, **(environ or {})})
    except exceptions.CellExecutionError as error:
        raise RunError(
            f"A cell of the notebook failed with {error.ename}: {error.evalue}\nWhat ran so far is in {path}."
        ) from error
    finally:
        nbformat.write(document, path)
    page = nbconvert.HTMLExporter().from_notebook_node(document)[0]
    path.with_suffix(".html").write_text(page, encoding="utf-8")
    return time.monotonic() - began_s


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"Running notebooks needs {error.name}. Install it: pip install 'agentlab[notebook]'."
        ) from None


def _client(document: Any, folder: Path) -> Any:
    from nbclient import NotebookClient

    class Client(NotebookClient):
        """Says which cell runs and, now and then, what a live display says."""

        last_s = 0.0

        async def async_execute_cell(self, cell: Any, cell_index: int, *args: Any, **options: Any) -> Any:
            if cell.cell_type == "code":
                lines = [line for line in cell.source.splitlines() if line.strip()]
                line = next((line for line in lines if not line.startswith(("import ", "from ", "#"))), lines[0])
                print(f"  [{cell_index + 1}/{len(document.cells)}] {line[:100]}", flush=True)
            return await super().async_execute_cell(cell, cell_index, *args, **options)

        def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
            if time.monotonic() - self.last_s > PROGRESS_S and (line := _live_line(msg)):
                self.last_s = time.monotonic()
                print(f"      {line[:110]}", flush=True)
            return super().process_message(msg, cell, cell_index)

    return Client(
        document,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )


def _live_line(message: Mapping[str, Any]) -> str:
    """What the head of a live dashboard now says, if this message updates it."""
    if message["msg_type"] != "comm_msg":
        return ""
    html = message["content"]["data"].get("state", {}).get("value", "")
    return " ".join(re.sub(r"<[^>]*>", " ", html).split()) if isinstance(html, str) and " of " in html else ""


def measure(name: str, *, fast: bool, stored: bool, out: Path) -> list[Row]:
    """Run one notebook, store it if asked to, and say what it took; a failure is told and counts as a missed goal."""
    print(name, flush=True)
    figure = f"{name}, {'fast' if fast else 'auto'}"
    document = formed(name)
    try:
        spent_s = execute(document, out / f"{name}.ipynb", environ={"AGENTLAB_FAST": "1" if fast else ""})
        sizes = [stored_row(name, store(name, document))] if stored else []
    except RunError as error:
        print(error)
        return [Row(figure, float("nan"), "runs without an error", "s", holds=False)]
    return [Row.at_most(figure, spent_s, LIMIT_S, "s") if fast else Row(figure, spent_s, unit="s"), *sizes]


def stored_row(name: str, path: Path) -> Row:
    """The size of a stored notebook."""
    return Row.at_most(f"{name}, stored", path.stat().st_size, LIMIT_BYTES, "B")


def run(arguments: Sequence[str] = ()) -> list[Row]:
    """Run the notebooks that are named, or all."""
    about = "Run tutorials top to bottom, and hold their time against the limit of fast mode."
    parser = argparse.ArgumentParser(prog="python -m agentlab.bench notebooks", description=about)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 03_tools; all if none is given")
    parser.add_argument("--fast", action="store_true", help="with AGENTLAB_FAST=1")
    parser.add_argument("--store", action="store_true", help="keep the outputs in notebooks/")
    parser.add_argument("--pair", action="store_true", help="run nothing: take over changed text only")
    parser.add_argument("--out", type=Path, default=Path("runs/notebooks"), help="folder for what they write")
    chosen = parser.parse_args(arguments)
    wanted = chosen.names or names()
    if chosen.pair:
        return [stored_row(name, pair(name)) for name in wanted]
    options = {"fast": chosen.fast, "stored": chosen.store, "out": chosen.out.resolve()}
    return [row for name in wanted for row in measure(name, **options)]
