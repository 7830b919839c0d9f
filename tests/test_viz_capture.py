"""A profile of live threads, opened again: our stages stand in it by name."""

import threading

import jax
import jax.numpy as jnp
import pytest

from agentlab.errors import ConfigError, RunError
from agentlab.platform import profiling
from agentlab.tracing import span
from agentlab.viz import xprof


def names_in(folder) -> set[str]:
    (path,) = folder.rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(path))
    return {event.name for plane in data.planes for line in plane.lines for event in line.events}


@pytest.mark.skipif(not hasattr(jax.profiler, "ProfileData"), reason="this JAX cannot read its own profiles")
def test_a_profile_holds_the_stages_of_all_threads(tmp_path):
    warm, ended = threading.Barrier(3), threading.Event()

    def work(stage):
        program = jax.jit(lambda x: x @ x)
        program(jnp.ones((32, 32))).block_until_ready()
        warm.wait()
        while not ended.is_set():
            with span(stage):
                program(jnp.ones((32, 32))).block_until_ready()

    threads = [threading.Thread(target=work, args=(stage,)) for stage in ("decode", "forward_backward")]
    for thread in threads:
        thread.start()
    warm.wait()
    try:
        folder = xprof(0.5, tmp_path / "profile")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert names_in(folder) >= {"decode", "forward_backward"}


def test_there_is_one_profile_at_a_time(tmp_path):
    with profiling.profile(tmp_path / "a"), pytest.raises(RunError, match="Only one profile"):
        xprof(0.1, tmp_path / "b")


def test_no_time_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="above 0"):
        xprof(0.0, tmp_path)
