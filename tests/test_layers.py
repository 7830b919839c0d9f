"""The layers of the design, read from the source: who may import what, and how long a file may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "agentlab"
FILES = sorted(PACKAGE.rglob("*.py"))

ROWS = [
    [{"types", "options", "schemas", "errors", "files", "numerals"}],
    [{"tracing"}],
    [{"concurrency"}],
    [{"chat"}, {"rewards"}, {"tasks"}, {"tools"}, {"platform"}],
    [{"agents"}, {"environments"}, {"models"}],
    [{"inference"}, {"training"}],
    [{"rollout"}],
    [{"learner", "run"}],
    [{"viz"}, {"bench"}, {"doctor"}, {"notebook"}, {"docs"}],
]
"""Rows from the ground up; each holds rooms that do not import each other."""
ROW_OF = {name: row for row, rooms in enumerate(ROWS) for room in rooms for name in room}
ROOM_OF = {name: frozenset(room) for rooms in ROWS for room in rooms for name in room}

JAX_ROOMS = frozenset({"models", "inference", "training", "platform"})
ONLY_IN = {
    **dict.fromkeys(("jax", "jaxlib", "flax", "optax", "orbax"), JAX_ROOMS),
    "ipywidgets": {"viz"},
    "matplotlib": {"viz"},
    "threading": {"concurrency", "tracing"},
    "_thread": set(),
    "torch": set(),
    "tensorflow": set(),
}
"""Packages that only these rooms may import, at whatever depth."""


def test_every_file_belongs_to_a_room_of_the_layer_table():
    assert {room_of(path) for path in FILES} - {"__init__"} <= set(ROW_OF)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_from_rows_above_its_own_or_from_its_own_room(path: Path):
    room = room_of(path)
    if room == "__init__":
        assert {name.partition(".")[0] for name, _ in imports(path)} <= {"importlib", "typing"}
        return
    for name, line in imports(path):
        other = agentlab_room(name)
        if other is not None and other not in ROOM_OF[room]:
            assert ROW_OF[other] < ROW_OF[room], f"{path.name}:{line} imports {name}: {room} must not know {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_packages_and_threads_stay_in_their_rooms(path: Path):
    if path.parent.name == "peer_scripts":
        return  # a script for another interpreter, with another library's packages; nobody imports it
    for name, line in imports(path, everywhere=True):
        top = name.partition(".")[0]
        assert room_of(path) in ONLY_IN.get(top, {room_of(path)}), f"{path.name}:{line} must not import {top}"
        if top == "vllm":
            assert path.parent.name == "inference", f"{path.name}:{line}: vllm stays in inference/vllm*.py"
            assert path.name.startswith("vllm"), f"{path.name}:{line}: vllm stays in inference/vllm*.py"


def test_the_rollout_knows_of_inference_only_what_an_engine_is():
    for path in FILES:
        for name, line in imports(path, everywhere=True) if room_of(path) == "rollout" else ():
            if agentlab_room(name) == "inference":
                assert name.startswith("agentlab.inference.base"), f"{path.name}:{line} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_short(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 500, f"{path.name} is longer than 500 lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno + 1 <= 60, f"{path.name}: {node.name} is longer than 60 lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_in_a_sentence_what_it_is_for(path: Path):
    assert (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").strip()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def agentlab_room(name: str) -> str | None:
    """The room that an imported name lies in; None for other packages."""
    top, _, rest = name.partition(".")
    if top != "agentlab":
        return None
    room = rest.partition(".")[0]
    assert room in ROW_OF, f"{name}: inside the package import from the room itself, not from the public names"
    return room


def imports(path: Path, *, everywhere: bool = False) -> Iterator[tuple[str, int]]:
    """Names that a file imports, with their lines: when it is loaded, or everywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else when_loaded(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def when_loaded(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is loaded: not function bodies, nor what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from when_loaded(child)
