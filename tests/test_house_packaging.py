"""The house: what is declared in pyproject.toml, environment.yml and the Makefile agrees, and suits Colab."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
]
PINS = {
    canonicalize_name(pin.name): next(iter(pin.specifier)).version
    for path in sorted((ROOT / "tests/pins").glob("*.txt"))
    for line in path.read_text(encoding="utf-8").splitlines()
    for pin in (map(Requirement, line.partition("#")[0].split()))
    if pin.specifier
}


@pytest.mark.parametrize("requirement", [r for r in DECLARED if canonicalize_name(r.name) in PINS], ids=str)
def test_the_version_that_colab_has_is_accepted(requirement: Requirement):
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("version", ["0.7.2", "0.8.0", "0.9.0", "0.10.2", "0.11.2", "0.12.0.1"])
def test_every_jax_from_colabs_to_the_newest_is_accepted(version: str):
    assert all(r.specifier.contains(version) for r in DECLARED if r.name == "jax")


def test_the_conda_environment_lists_what_people_look_for_in_the_ranges_of_the_package():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    own, *lines = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    listed = {requirement.name: requirement for requirement in map(Requirement, lines)}
    assert set(listed) == {
        "jax", "flax", "optax", "orbax-checkpoint", "ipywidgets", "matplotlib", "nest-asyncio", "nbmake", "pytest",
    }  # fmt: skip
    ranges = {r.name: r.specifier for r in DECLARED if not r.extras and r.name in listed}
    assert {name: r.specifier for name, r in listed.items()} == ranges
    extras = re.fullmatch(r"-e \.\[([a-z,-]+)\]", own)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    python = next(entry for entry in environment["dependencies"] if str(entry).startswith("python="))
    assert python.removeprefix("python=") in {"3.11", "3.12", "3.13"}


def test_the_lines_that_are_optional_in_the_conda_environment_are_right_once_uncommented():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    uncommented = yaml.safe_load(re.sub(r"^( +)# - ", r"\1- ", text, flags=re.MULTILINE))
    lines = next(entry["pip"] for entry in uncommented["dependencies"] if isinstance(entry, dict))
    added = [Requirement(line) for line in lines[1:] if line not in yaml.safe_load(text)["dependencies"][-1]["pip"]]
    declared = {(r.name, *sorted(r.extras)): r.specifier for r in DECLARED}
    assert {(r.name, *sorted(r.extras)): r.specifier for r in added} == {
        ("jax", "tpu"): declared["jax", "tpu"],
        ("vllm",): declared["vllm",],
    }


def test_make_install_uses_extras_that_exist():
    extras = re.search(r"^EXTRAS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_make_names_every_target_that_a_newcomer_needs():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[1] for line in listed.splitlines()}
    assert {"install", "test", "demo", "lab", "test-slow", "test-browser", "clean"} <= targets


def test_make_says_what_to_do_where_there_is_no_suitable_python(tmp_path: Path):
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    (tmp_path / "pyproject.toml").touch()
    asked = subprocess.run(["make", "install", "PYTHON="], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert asked.returncode != 0
    assert "Python 3.11 or newer" in asked.stderr
    assert "make PYTHON=/path/to/python3.12 install" in asked.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_make_test_and_nothing_that_only_one_machine_has():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("make --no-print-directory test")
