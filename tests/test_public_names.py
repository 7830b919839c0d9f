"""The public surface: every name resolves, is described, is documented, and costs nothing until used."""

import ast
import inspect
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import agentlab as al

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "tensorflow", "vllm", "transformers"}
SECONDS_BEYOND_JAX = 0.3


@pytest.mark.parametrize("name", al.__all__)
def test_every_public_name_resolves_and_is_described(name: str):
    value = getattr(al, name)
    assert (inspect.getdoc(value) or "").strip(), f"agentlab.{name} has no docstring"
    if not inspect.ismodule(value):
        assert value.__name__ == name


def test_public_names_are_listed_once_and_completed_by_tab():
    assert len(set(al.__all__)) == len(al.__all__)
    assert set(dir(al)) == {*al.__all__, "__version__"}


def test_a_type_checker_sees_the_same_names_as_the_interpreter():
    tree = ast.parse((ROOT / "agentlab/__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(seen) == sorted(al.__all__)


def test_an_unknown_name_is_refused_with_the_nearest():
    misspelt = "GRPOLerner"
    with pytest.raises(AttributeError, match=r"agentlab has no 'GRPOLerner'\. Did you mean 'GRPOLearner'\?"):
        getattr(al, misspelt)


def test_readme_lists_every_public_name():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [name for name in al.__all__ if not re.search(rf"\b(al\.)?{name}\b", readme)]
    assert not missing, f"README.md does not mention {', '.join(missing)}"


def test_importing_agentlab_loads_no_other_framework_and_neither_does_using_its_names():
    code = "import sys, agentlab\nbefore = set(sys.modules)\n[getattr(agentlab, name) for name in agentlab.__all__]\n"
    code += "print(*sorted(name for name in before if '.' not in name))\n"
    code += "print(*sorted(name for name in sys.modules if '.' not in name))\n"
    on_import, on_use = python(code).splitlines()
    assert not HEAVY & set(on_import.split())
    assert not HEAVY & set(on_use.split())
    assert "jax" not in on_import.split()


def test_importing_agentlab_after_jax_costs_little():
    code = "import jax, time\nstart = time.perf_counter()\nimport agentlab\nprint(time.perf_counter() - start)"
    assert statistics.median(float(python(code)) for _ in range(5)) <= SECONDS_BEYOND_JAX


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100).stdout
