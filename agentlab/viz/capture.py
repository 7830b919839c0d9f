"""A profile of the next seconds of a live run, in which the accelerator's own events stand under our stages."""

import time
from pathlib import Path

from agentlab import tracing
from agentlab.errors import ConfigError
from agentlab.platform import profiling

_BEAT_S = 0.1


def xprof(seconds: float = 2.0, folder: str | Path = "xprof") -> Path:
    """Profile everything in this process for some seconds and return the folder, which opens in XProf or TensorBoard.

    Every span that begins meanwhile appears in it under its stage's name. Blocks; an interrupt ends
    the profile early and keeps it.

    Raises:
        ConfigError: seconds is not above 0.
        RunError: a profile is being taken already.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds must be above 0, got {seconds}.")
    with profiling.profile(folder) as target, tracing.annotated(profiling.annotation):
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _BEAT_S))
    return target
