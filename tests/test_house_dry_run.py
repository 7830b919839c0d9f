"""Installing agentlab on Colab changes no package that is there: pip itself is asked, by a dry run."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PINS = {
    canonicalize_name(pin.name): next((specifier.version for specifier in pin.specifier), "99")
    for path in sorted((ROOT / "tests/pins").glob("*.txt"))
    for line in path.read_text(encoding="utf-8").splitlines()
    for pin in map(Requirement, line.partition("#")[0].split())
}
"""Versions by name; a package that is there in whatever version has a high one."""


def test_pip_would_only_add_packages_where_colabs_versions_are_installed(tmp_path: Path):
    """The environment holds the names and versions of Colab's packages, which is all that pip reads of them here.

    `test_pip_would_only_add_packages_to_colabs_real_stack` does the same with the packages themselves.
    """
    venv.create(tmp_path / "env", with_pip=True, symlinks=True)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    for name, version in PINS.items():
        pretend_installed(site, name, version)
    added = would_install(tmp_path / "env/bin/python", tmp_path)
    assert "agentlab" in added
    assert not set(PINS) & added


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pip_would_only_add_packages_to_colabs_real_stack(tmp_path: Path):
    interpreter = shutil.which("python3.13") or sys.executable
    subprocess.run([interpreter, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    pip(python, "install", *(f"-r{path}" for path in sorted((ROOT / "tests/pins").glob("*.txt"))))
    there = {canonicalize_name(row["name"]) for row in json.loads(pip(python, "list", "--format=json"))}
    added = would_install(python, tmp_path)
    assert "agentlab" in added
    assert not there & added


def pretend_installed(site: Path, name: str, version: str) -> None:
    """What pip reads of an installed package, without the package."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("pip\n")
    (folder / "RECORD").write_text("")


def would_install(python: Path, folder: Path) -> set[str]:
    """Names of the packages that `pip install agentlab` would install or change."""
    report = folder / "report.json"
    pip(python, "install", "--dry-run", "--report", str(report), str(ROOT))
    return {canonicalize_name(entry["metadata"]["name"]) for entry in json.loads(report.read_text())["install"]}


def pip(python: Path, *arguments: str) -> str:
    """Run pip and return what it printed; its errors are shown when it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-3000:]}"
    return done.stdout
