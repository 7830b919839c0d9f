"""The doctor: what it says of a machine, and the line that mends what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentlab import doctor
from agentlab.doctor import Check
from agentlab.platform.detect import Device, Platform, detect, platform_kind, probe_devices, usable_cores
from agentlab.platform.versions import Needed, declared_requirements, needed_packages

DECLARED = [
    "numpy>=2.0",
    "jax<0.13,>=0.7.2",
    'jax[tpu]>=0.7.2; (sys_platform == "linux") and extra == "tpu"',
    'gymnasium[toy-text]>=1.0; extra == "gym"',
    'winonly>=1; sys_platform == "win32"',
]


def needed() -> tuple[Needed, ...]:
    return needed_packages(DECLARED)


def test_requirements_are_read_from_metadata_with_their_extras_and_markers():
    assert needed() == (Needed("numpy", ">=2.0"), Needed("jax", "<0.13,>=0.7.2"), Needed("gymnasium", ">=1.0", "gym"))


def test_all_is_well_when_every_version_lies_in_its_range():
    versions = {"numpy": "2.1.3", "jax": "0.10.2", "gymnasium": "1.4.0"}
    checks = doctor.check_packages(needed(), versions.get)
    assert [(c.name, c.status, c.found) for c in checks] == [(name, "ok", v) for name, v in versions.items()]


def test_a_missing_package_is_named_with_the_line_that_installs_it():
    numpy, jax, gymnasium = doctor.check_packages(needed(), {"numpy": "2.1.3"}.get)
    assert numpy.status == "ok"
    assert jax == Check("jax", "missing", "not installed", "pip install 'jax<0.13,>=0.7.2'")
    assert gymnasium == Check("gymnasium", "optional", "not installed (for gym)", "pip install 'agentlab[gym]'")


def test_a_version_out_of_range_is_named_with_the_range():
    versions = {"numpy": "1.26.4", "jax": "0.13.0", "gymnasium": "0.29"}
    numpy, jax, gymnasium = doctor.check_packages(needed(), versions.get)
    assert numpy == Check("numpy", "missing", "1.26.4, needs >=2.0", "pip install 'numpy>=2.0'")
    assert jax == Check("jax", "missing", "0.13.0, needs <0.13,>=0.7.2", "pip install 'jax<0.13,>=0.7.2'")
    assert gymnasium.status == "warning"


def test_a_clone_that_was_never_installed_is_told_so():
    assert doctor.check_packages(()) == [Check("agentlab", "missing", "not installed as a package", "pip install -e .")]


def test_an_old_python_is_refused():
    assert doctor.check_python((3, 10)).status == "missing"
    assert doctor.check_python((3, 11)).status == "ok"


def test_little_memory_is_a_warning_and_unknown_memory_is_not():
    assert doctor.check_memory(2 * doctor.GIB).found == "2.0 GiB, the quickstart needs 3 GiB"
    assert doctor.check_memory(12 * doctor.GIB) == Check("memory", "ok", "12.0 GiB")
    assert doctor.check_memory(None).status == "ok"


def test_the_cache_is_measured_where_it_will_be_made_without_making_it(tmp_path: Path):
    folder = tmp_path / "cache" / "agentlab"
    assert doctor.check_disk(folder, wanted_bytes=1).status == "ok"
    assert doctor.check_disk(folder, wanted_bytes=2**80).status == "warning"
    assert not folder.parent.exists()


@pytest.mark.parametrize("visible", ["tpu", "gpu"])
def test_an_accelerator_that_jax_does_not_use_is_a_warning_with_the_line_that_enables_it(visible: str):
    check = doctor.check_devices(platform_with("cpu"), [visible])
    assert check.status == "warning"
    assert check.found == f"1 × cpu; JAX does not use the {visible.upper()} that is there"
    assert {"tpu": "agentlab[tpu]", "gpu": "jax[cuda12]"}[visible] in check.fix


def test_an_accelerator_that_jax_uses_is_well():
    assert doctor.check_devices(platform_with("tpu", "tpu"), ["tpu"]) == Check("devices", "ok", "2 × tpu")


def test_accelerators_are_seen_by_their_device_files(tmp_path: Path):
    (tmp_path / "dev/vfio").mkdir(parents=True)
    assert doctor.visible_accelerators(tmp_path) == ()
    (tmp_path / "dev/vfio/0").touch()
    (tmp_path / "dev/nvidia0").touch()
    assert doctor.visible_accelerators(tmp_path) == ("tpu", "gpu")


@pytest.mark.parametrize(
    ("status", "stderr", "said"),
    [
        (0, "", "TPU metrics can be read"),
        (-11, "", "its import ends the process (status -11); no TPU metrics"),
        (1, "Traceback\nModuleNotFoundError: No module named 'libtpu.sdk'\n", "ModuleNotFoundError"),
    ],
)
def test_a_tpu_library_that_crashes_takes_only_its_own_process_down(status: int, stderr: str, said: str):
    check = doctor.check_tpu_metrics(lambda command, **_: subprocess.CompletedProcess(command, status, "", stderr))
    assert check.found.startswith(said)
    assert check.status == ("warning" if status else "ok")


def test_the_report_shows_a_fix_under_each_fault_and_gathers_what_is_optional():
    checks = [
        Check("jax", "missing", "not installed", "pip install jax"),
        Check("vllm", "optional", "-", "pip install v"),
    ]
    assert doctor.table(checks).splitlines() == [
        "missing   jax   not installed",
        "                → pip install jax",
        "optional  vllm  -",
        "what is optional comes with: pip install v",
    ]
    assert doctor.verdict(checks) == "agentlab cannot work here yet: jax."


def test_the_verdict_names_warnings_and_is_glad_without_them():
    assert doctor.verdict([Check("memory", "warning", "1 GiB", "-")]) == "agentlab works here, but see memory."
    assert doctor.verdict([Check("memory", "ok", "9 GiB")]) == "agentlab works here."


def test_the_exit_status_is_1_only_when_something_needed_is_missing(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: [Check("jax", "warning", "old", "pip install jax")])
    assert doctor.main([]) == 0
    monkeypatch.setattr(doctor, "examine", lambda: [Check("jax", "missing", "none", "pip install jax")])
    assert doctor.main([]) == 1
    assert capsys.readouterr().out.endswith("agentlab cannot work here yet: jax.\n")


def test_the_doctor_finds_this_environment_well():
    asked = subprocess.run([sys.executable, "-m", "agentlab.doctor"], capture_output=True, text=True, timeout=100)
    assert declared_requirements(), "agentlab is not installed here: make install"
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert "agentlab works here" in asked.stdout


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({"COLAB_RELEASE_TAG": "release", "JPY_PARENT_PID": "7"}, "colab"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release"}, "kaggle"),
        ({"JPY_PARENT_PID": "7"}, "jupyter"),
        ({}, "terminal"),
    ],
)
def test_the_kind_of_platform_is_told_by_its_environment(environ: dict[str, str], kind: str):
    assert platform_kind(environ, modules=()) == kind


def test_detect_describes_this_machine():
    found = detect(devices=lambda: (Device("tpu", "TPU v5 lite", 2**34),))
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert 1 <= found.cores == usable_cores() <= (os.cpu_count() or 1)
    assert found.memory_bytes is None or found.memory_bytes > 2**28
    assert found.accelerator == "tpu"


def test_devices_asked_in_another_process_are_those_of_this_one():
    assert probe_devices() == detect().devices


def platform_with(*kinds: str) -> Platform:
    devices = tuple(Device(kind, kind) for kind in kinds)
    return Platform("terminal", "3.13.0", "linux x86_64", 2, 2**33, devices)
