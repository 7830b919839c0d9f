"""Where this process runs: kind of machine, processor cores, memory and accelerators."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from agentlab.errors import AgentLabError

_PROBE = "from agentlab.platform.detect import write_devices; write_devices()"

PlatformKind = Literal["colab", "kaggle", "jupyter", "terminal"]


@dataclass(frozen=True)
class Device:
    """One device that JAX computes on."""

    platform: str
    """ "cpu", "gpu" or "tpu"."""
    kind: str
    """As JAX names it, e.g. "TPU v5 lite"."""
    memory_bytes: int | None = None
    """None where the device does not say, as CPUs do not."""


@dataclass(frozen=True)
class Platform:
    """The machine as this process may use it: limits of its container count."""

    kind: PlatformKind
    python: str
    system: str
    """Operating system and processor, e.g. "linux x86_64"."""
    cores: int
    memory_bytes: int | None
    """Main memory; None where the system does not say."""
    devices: tuple[Device, ...]

    @property
    def accelerator(self) -> str:
        """The platform of the first device: "cpu", "gpu" or "tpu"."""
        return self.devices[0].platform if self.devices else "cpu"


class DeviceProbeError(AgentLabError):
    """JAX could not be asked for its devices; the text is the end of what it wrote."""


def detect(*, devices: Callable[[], tuple[Device, ...]] | None = None) -> Platform:
    """What this process runs on.

    Args:
        devices: How to ask for the devices; by default JAX is asked in this process, which
            takes hold of the accelerator. `probe_devices` asks in a process of its own.
    """
    return Platform(
        kind=platform_kind(os.environ),
        python=".".join(map(str, sys.version_info[:3])),
        system=f"{sys.platform} {os.uname().machine if hasattr(os, 'uname') else ''}".strip(),
        cores=usable_cores(),
        memory_bytes=usable_memory_bytes(),
        devices=(devices or jax_devices)(),
    )


def platform_kind(environ: Mapping[str, str], modules: Container[str] = sys.modules) -> PlatformKind:
    """The kind of machine, by the environment that it sets for kernels and for their subprocesses.

    Kaggle is asked for first, because its images are built from Colab's.
    """
    if "KAGGLE_KERNEL_RUN_TYPE" in environ or "KAGGLE_DATA_PROXY_TOKEN" in environ:
        return "kaggle"
    if "COLAB_RELEASE_TAG" in environ or "google.colab" in modules:
        return "colab"
    if "JPY_PARENT_PID" in environ or "JPY_SESSION_NAME" in environ or "ipykernel" in modules:
        return "jupyter"
    return "terminal"


def jax_devices() -> tuple[Device, ...]:
    """The devices of JAX in this process."""
    import jax

    return tuple(Device(d.platform, d.device_kind, _device_memory_bytes(d.memory_stats)) for d in jax.devices())


def _device_memory_bytes(memory_stats: Callable[[], Mapping[str, int] | None]) -> int | None:
    stats = memory_stats() or {}
    return stats.get("bytes_limit")


def probe_devices(*, timeout_s: float = 120.0) -> tuple[Device, ...]:
    """The devices of JAX, asked in a process of its own that a broken accelerator library cannot take down with ours.

    Raises:
        DeviceProbeError: that process failed, crashed, or did not answer in time.
    """
    try:
        asked = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise DeviceProbeError(f"JAX did not name its devices within {timeout_s:.0f} s.") from error
    if asked.returncode != 0:
        raise DeviceProbeError(ending(asked.stderr) or f"the process ended with status {asked.returncode}")
    return tuple(Device(**fields) for fields in json.loads(asked.stdout.splitlines()[-1]))


def ending(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def usable_cores() -> int:
    """Processor cores that this process may use: its affinity and its container's quota count."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def usable_memory_bytes() -> int | None:
    """Main memory of the machine or, where that is smaller, of the container."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:
        return None
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _cgroup("memory.max")
    return min(physical, int(limit)) if limit.isdigit() else physical


def free_memory_bytes() -> int | None:
    """Main memory that can still be had, of the machine or, where that is less, of the container; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if available is None or not (limit.isdigit() and used.isdigit()):
        return available
    return min(available, max(0, int(limit) - int(used)))


def _cgroup(name: str) -> str:
    """A limit of this container, or nothing where there is none."""
    try:
        return Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return ""


def write_devices() -> None:
    """Write the devices of JAX as one line of JSON."""
    sys.stdout.write(json.dumps([asdict(device) for device in jax_devices()]) + "\n")
