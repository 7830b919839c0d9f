"""The pages that come with agentlab: up to date, and true to the names and texts of the code."""

import ast
import dataclasses
import functools
import inspect
import re
from pathlib import Path

import pytest

import agentlab as al
from agentlab.docs import FOLDER, REFERENCE, __main__, reference
from agentlab.docs.reference import as_markdown, called, shown

PACKAGE = Path(al.__file__).parent
PAGES = sorted(FOLDER.glob("*.md"))
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
HAND_WRITTEN = pytest.mark.parametrize("page", [p for p in PAGES if p != REFERENCE], ids=lambda page: page.stem)
NOT_OURS = {"asyncio.run() cannot be called from a running event loop"}
"""Python's own words."""


def test_the_reference_is_what_the_docstrings_say():
    made = reference()
    written = REFERENCE.read_text(encoding="utf-8")
    differing = [pair for pair in zip(made.splitlines(), written.splitlines(), strict=False) if pair[0] != pair[1]]
    assert made == written, f"Run python -m agentlab.docs. First difference: {differing[:1]}"


def test_checking_finds_a_reference_that_is_out_of_date_and_writing_mends_it(tmp_path, monkeypatch, capsys):
    page = tmp_path / "reference.md"
    page.write_text("old")
    monkeypatch.setattr(__main__, "REFERENCE", page)
    monkeypatch.setattr(__main__, "reference", lambda: "new")
    assert __main__.main(["--check"]) == 1 and "python -m agentlab.docs" in capsys.readouterr().err
    assert __main__.main([]) == 0 and page.read_text() == "new"
    assert __main__.main(["--check"]) == 0


def test_every_public_name_and_every_option_stands_in_the_reference():
    text = REFERENCE.read_text(encoding="utf-8")
    for name in al.__all__:
        assert f"## `al.{name}`\n" in text
    section = text.partition("## `al.GRPOConfig`\n")[2].partition("\n## ")[0]
    for field in dataclasses.fields(al.GRPOConfig):
        assert f"| `{field.name}` |" in section
    assert "| `group_size` | `8` | Episodes of one task; their rewards are compared with each other. |" in section


def test_a_signature_is_shown_without_types_and_the_same_in_every_process():
    def taken(first, /, second: int = 3, *rest: str, by=al.rewards.exact, data=object(), **more: float) -> None: ...  # noqa: B008

    assert called(taken) == "(first, /, second=3, *rest, by=exact, data=…, **more)"
    assert shown(al.algorithms.grpo) == "grpo"


def test_the_sections_of_a_docstring_become_lists():
    text = "Says.\n\nArgs:\n    one: The first,\n        and more.\n    **two: Others.\n\nRaises:\n    E: bad."
    expected = "Says.\n\n**Args**\n\n- `one`: The first,\n  and more.\n- `**two`: Others.\n\n**Raises**\n\n- `E`: bad."
    assert as_markdown(text) == expected


@EACH
def test_links_of_a_page_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in headings(text)}
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        assert (page.parent / path).exists(), target
        assert path or anchor in anchors, target


def headings(text):
    return re.findall(r"^#+ .*$", text, flags=re.MULTILINE)


@HAND_WRITTEN
def test_names_that_a_page_speaks_of_exist(page):
    for name in re.findall(r"\bal\.([A-Za-z_][\w.]*\w)", page.read_text(encoding="utf-8")):
        functools.reduce(getattr, name.split("."), al)


@HAND_WRITTEN
def test_files_that_a_page_speaks_of_exist(page):
    for name in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
        assert (PACKAGE / name).exists() or (PACKAGE.parent / name).exists(), name


def test_options_that_users_of_other_libraries_are_pointed_to_exist():
    known = {field.name for config in (al.GRPOConfig, al.SFTConfig) for field in dataclasses.fields(config)}
    known |= {name for call in (al.GRPOLearner, al.GRPOLearner.train) for name in inspect.signature(call).parameters}
    known |= {"train", "tool_map", "reward_fn", "env_kwargs", "data", "prompt", "advantages", "credit", "done", "info"}
    for row in rows_of(FOLDER / "coming_from.md"):
        for option in re.findall(r"`([a-z_]+)(?:=[^`]*)?`", row[1]):
            assert option in known, row


def test_texts_that_the_troubleshooting_page_quotes_are_in_the_code():
    texts = list(said_in_the_code())
    quoted = [row[0].strip("`") for row in rows_of(FOLDER / "troubleshooting.md") if row[0].startswith("`")]
    assert len(quoted) > 30
    for quote in quoted:
        assert quote in NOT_OURS or any(says(text, quote) for text in texts), quote


def rows_of(page):
    """The cells of the rows of all tables of a page, heads apart."""
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines if line.startswith("| ")]
    for row in rows:
        assert len(row) == 3, row
    heads = {number - 1 for number, row in enumerate(rows) if set(row[0]) == {"-"}}
    return [row for number, row in enumerate(rows) if number not in heads and set(row[0]) != {"-"}]


def said_in_the_code():
    """Every text of the package, with … for what is put into it."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def says(text, quote):
    """Whether the pieces of a quote stand in a text, in their order."""
    for piece in filter(None, map(str.strip, quote.split("…"))):
        _, found, text = text.partition(piece)
        if not found:
            return False
    return True
