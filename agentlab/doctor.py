"""`python -m agentlab.doctor`: what this machine is, what agentlab misses on it, and the line that mends it."""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentlab.platform.cache import cache_dir
from agentlab.platform.detect import DeviceProbeError, Platform, detect, ending, probe_devices
from agentlab.platform.versions import Needed, VersionOf, declared_requirements, installed_version, needed_packages

GIB = 2**30
MEMORY_BYTES = 3 * GIB
"""The quickstart's peak: the default model in float32, its training state, and JAX itself."""
DISK_BYTES = 2 * GIB
"""The default model as fetched and as converted, with compiled programs and one checkpoint."""

Status = Literal["ok", "optional", "warning", "missing"]
"""Only "missing" keeps agentlab from working, and makes the exit status 1."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    fix: str = ""
    """The line to run, or what to do, unless all is well."""


def check_python(version: tuple[int, int]) -> Check:
    """Whether this Python is one that agentlab runs on."""
    found = ".".join(map(str, version))
    if version < (3, 11):
        return Check("python", "missing", f"{found}, needs 3.11 or newer", "install Python 3.11, 3.12 or 3.13")
    return Check("python", "ok", found)


def check_packages(needed: Sequence[Needed], version_of: VersionOf = installed_version) -> list[Check]:
    """Installed versions against supported ranges.

    Args:
        needed: From agentlab's own metadata; none means that agentlab is not installed.
        version_of: Reads the installed version of a distribution.
    """
    if not needed:
        return [Check("agentlab", "missing", "not installed as a package", "pip install -e .")]
    return [_check_package(package, version_of(package.name)) for package in needed]


def _check_package(needed: Needed, version: str | None) -> Check:
    wanted = f"agentlab[{needed.extra}]" if needed.extra else needed.requirement
    if version is None:
        found = "not installed" + (f" (for {needed.extra})" if needed.extra else "")
        return Check(needed.name, "optional" if needed.extra else "missing", found, f"pip install {wanted!r}")
    if not needed.accepts(version):
        status = "warning" if needed.extra else "missing"
        return Check(needed.name, status, f"{version}, needs {needed.specifier}", f"pip install {needed.requirement!r}")
    return Check(needed.name, "ok", version)


def check_memory(memory_bytes: int | None, wanted_bytes: int = MEMORY_BYTES) -> Check:
    """Whether the default model can be trained in main memory."""
    if memory_bytes is None:
        return Check("memory", "ok", "this system does not say")
    found = f"{memory_bytes / GIB:.1f} GiB"
    if memory_bytes < wanted_bytes:
        needs = f"{found}, the quickstart needs {wanted_bytes / GIB:.0f} GiB"
        return Check("memory", "warning", needs, "take a larger machine, or al.tiny_model()")
    return Check("memory", "ok", found)


def check_disk(folder: Path, wanted_bytes: int = DISK_BYTES) -> Check:
    """Whether models fit where they are cached. The folder is not made."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        return Check("cache", "missing", f"{folder} cannot be written to", f"chmod u+w {str(existing)!r}")
    free = shutil.disk_usage(existing).free
    found = f"{free / GIB:.1f} GiB free in {folder}"
    if free < wanted_bytes:
        return Check("cache", "warning", f"{found}, needs {wanted_bytes / GIB:.0f} GiB", f"make room on {existing}")
    return Check("cache", "ok", found)


def check_devices(platform: Platform, accelerators: Iterable[str]) -> Check:
    """The devices that JAX uses, against the accelerators that the machine shows.

    Args:
        platform: With the devices that JAX named.
        accelerators: Any of "tpu" and "gpu", as the operating system shows them.
    """
    counted = Counter(device.kind for device in platform.devices)
    found = ", ".join(f"{count} × {kind}" for kind, count in counted.items())
    fixes = {"tpu": "pip install 'agentlab[tpu]'", "gpu": "pip install -U 'jax[cuda12]'"}
    unused = list(accelerators) if platform.accelerator == "cpu" else []
    if unused:
        found += f"; JAX does not use the {unused[0].upper()} that is there"
        return Check("devices", "warning", found, fixes[unused[0]])
    return Check("devices", "ok", found)


def visible_accelerators(root: Path = Path("/")) -> tuple[str, ...]:
    """The accelerators that the operating system shows as device files, whatever JAX sees."""
    tpu = any((root / "dev").glob("accel[0-9]*")) or any((root / "dev/vfio").glob("[0-9]*"))
    gpu = (root / "dev/nvidia0").exists()
    return tuple(name for name, there in (("tpu", tpu), ("gpu", gpu)) if there)


def check_tpu_metrics(
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
    timeout_s: float = 60.0,
) -> Check:
    """Whether libtpu's metrics can be read: asked in a process of its own, which some versions crash."""
    name = "libtpu.sdk"
    try:
        asked = run([sys.executable, "-c", "import libtpu.sdk"], capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Check(name, "warning", f"no answer within {timeout_s:.0f} s", "pip install -U libtpu")
    if asked.returncode != 0:
        reason = ending(asked.stderr) or f"its import ends the process (status {asked.returncode})"
        return Check(name, "warning", f"{reason}; no TPU metrics", "pip install -U libtpu")
    return Check(name, "ok", "TPU metrics can be read")


def examine() -> list[Check]:
    """Everything that the doctor looks at on this machine, in the order of the report."""
    needed = needed_packages(declared_requirements())
    platform = detect(devices=tuple)
    checks = [
        Check("platform", "ok", f"{platform.kind}, {platform.system}, {platform.cores} cores"),
        check_python(sys.version_info[:2]),
        check_memory(platform.memory_bytes),
        check_disk(cache_dir()),
        *check_packages(needed),
    ]
    try:
        checks.append(check_devices(detect(devices=probe_devices), visible_accelerators()))
    except DeviceProbeError as error:
        jax = next((package.requirement for package in needed if package.name == "jax"), "jax")
        checks.append(Check("devices", "missing", str(error), f"pip install --force-reinstall {jax!r}"))
    if importlib.util.find_spec("libtpu") is not None:
        checks.append(check_tpu_metrics())
    return checks


def table(checks: Sequence[Check]) -> str:
    """One line per check, and under what is not well the line that mends it."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<9} {check.name:<{width}}  {check.found}".rstrip())
        if check.fix and check.status != "optional":
            lines.append(f"{'':<9} {'':<{width}}  → {check.fix}")
    fixes = sorted({check.fix for check in checks if check.status == "optional"})
    if fixes:
        lines.append(f"what is optional comes with: {'; '.join(fixes)}")
    return "\n".join(lines)


def verdict(checks: Sequence[Check]) -> str:
    """The last line of the report."""
    missing = [check.name for check in checks if check.status == "missing"]
    if missing:
        return f"agentlab cannot work here yet: {', '.join(missing)}."
    warnings = [check.name for check in checks if check.status == "warning"]
    return "agentlab works here" + (f", but see {', '.join(warnings)}." if warnings else ".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit status: 0 if agentlab works here, else 1."""
    argparse.ArgumentParser(prog="python -m agentlab.doctor", description=__doc__).parse_args(arguments)
    checks = examine()
    sys.stdout.write(f"{table(checks)}\n{verdict(checks)}\n")
    return int(any(check.status == "missing" for check in checks))


if __name__ == "__main__":
    sys.exit(main())
