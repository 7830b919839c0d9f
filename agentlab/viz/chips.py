"""What the accelerator's own runtime said of the chips: duty cycle and memory, where it offers them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentlab.tracing import Reading

CHIP_COUNTERS = DUTY, MEMORY, CAPACITY = ("tpu_duty_cycle_percent", "tpu_memory_bytes", "tpu_memory_total_bytes")
"""Counters, as `agentlab.platform.tpu` names them."""


@dataclass(frozen=True)
class Chips:
    """Means over the chips; NaN where the runtime says nothing."""

    duty: float = math.nan
    """Share of the time in which they executed, in [0, 1]; the mean of the readings."""
    memory_bytes: float = math.nan
    """In use at the last reading."""
    capacity_bytes: float = math.nan

    @classmethod
    def of(cls, readings: Iterable[Reading]) -> "Chips":
        """From readings by time; those of other counters are passed over."""
        said: dict[str, list[float]] = {name: [] for name in CHIP_COUNTERS}
        for reading in readings:
            if reading.name in said:
                said[reading.name].append(reading.value)
        duty = sum(said[DUTY]) / len(said[DUTY]) / 100 if said[DUTY] else math.nan
        return cls(duty, *(said[name][-1] if said[name] else math.nan for name in (MEMORY, CAPACITY)))

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """(name, value) of what is known."""
        rows = [("chip's duty cycle", f"{self.duty:.0%}")] if math.isfinite(self.duty) else []
        if math.isfinite(self.memory_bytes):
            whole = f" of {self.capacity_bytes / 1e9:.1f}" if math.isfinite(self.capacity_bytes) else ""
            rows.append(("chip memory", f"{self.memory_bytes / 1e9:.1f}{whole} GB"))
        return rows

    @property
    def sentence(self) -> str:
        """The same in words; "" where nothing is known."""
        rows: Sequence[str] = [f"{name} {value}" for name, value in self.numbers]
        return f"The runtime's own readings: {', '.join(rows)}." if rows else ""
