"""What a TPU's runtime says of itself: duty cycle and memory; nothing, and no noise, anywhere else."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

Metrics = Callable[[str], Any]
"""From a metric's name to its values, one text per chip."""

COUNTERS = {
    "duty_cycle_pct": "tpu_duty_cycle_percent",
    "tensorcore_util": "tpu_tensorcore_percent",
    "hbm_capacity_usage": "tpu_memory_bytes",
    "hbm_capacity_total": "tpu_memory_total_bytes",
}
"""By the runtime's name, ours."""

_PROBE = "from libtpu.sdk import tpumonitoring as m; print(*m.list_supported_metrics())"


def tpu_metrics(*, accelerator: str, probe: Callable[[], set[str]] | None = None) -> Callable[[], Mapping[str, float]]:
    """A function that reads the chips of this process, as means over them by counter; {} where there is nothing.

    Some versions of the library crash when they are imported, and ask for ever where there is no
    TPU: it is tried in a process of its own, and only on a TPU.

    Args:
        accelerator: "tpu", or anything else for nothing.
        probe: Names the metrics that can be read; by default that process is asked.
    """
    if accelerator != "tpu":
        return dict
    names = [name for name in COUNTERS if name in (probe or _probed)()]
    if not names:
        return dict
    from libtpu.sdk import tpumonitoring  # pyright: ignore[reportMissingImports]

    return lambda: read_metrics(lambda name: tpumonitoring.get_metric(name).data(), names)


def read_metrics(metric: Metrics, names: list[str]) -> dict[str, float]:
    """The mean over the chips of each metric; those that say nothing now are left out."""
    found = {}
    for name in names:
        values = [float(text) for text in metric(name)]
        if values:
            found[COUNTERS[name]] = sum(values) / len(values)
    return found


def _probed(timeout_s: float = 20.0) -> set[str]:
    """The metrics that the runtime offers, asked in a process of its own; none if it fails, crashes or hangs."""
    try:
        asked = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=timeout_s)
    except (subprocess.TimeoutExpired, OSError):
        return set()
    return set(asked.stdout.split()) if asked.returncode == 0 else set()
