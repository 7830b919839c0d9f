"""A device's own metrics beside the spans: read off the loop, silent elsewhere, and never the end of a run."""

import threading

import anyio
import pytest

from agentlab import tracing
from agentlab.learner.rl import device_meter
from agentlab.rollout.meter import MeterThread


def served(open_meter, until, **options) -> None:
    """Run a meter until the event is set."""

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(MeterThread(open_meter, every_s=0.001, **options).serve)
            with anyio.fail_after(20):
                while not until.is_set():
                    await anyio.sleep(0.001)
            group.cancel_scope.cancel()

    anyio.run(main)


def test_what_the_device_says_is_recorded_as_counters_by_a_thread_of_its_own():
    since_ns, values, over, threads = tracing.now_ns(), [10.0, 30.0, 55.0], threading.Event(), set()

    def read():
        threads.add(threading.current_thread().name)
        if not values:
            over.set()
            return {}
        return {"tpu_duty_cycle_percent": values.pop(0)}

    served(lambda: read, over)
    told = [(reading.name, reading.value) for reading in tracing.counters(since_ns)]
    assert told == [("tpu_duty_cycle_percent", value) for value in (10.0, 30.0, 55.0)]
    assert threads == {"agentlab-meter"}


@pytest.mark.parametrize("fails_when", ["opened", "read"])
def test_a_device_that_cannot_be_read_is_told_of_once_and_the_run_goes_on(fails_when):
    def fail():
        raise OSError("no metrics server")

    notes, told = [], threading.Event()

    def note(text):
        notes.append(text)
        told.set()

    served(fail if fails_when == "opened" else lambda: fail, told, on_note=note)
    assert notes == ["The device's own metrics are not read: OSError: no metrics server"]


def test_only_a_tpu_is_asked():
    assert device_meter("cpu", print) is None
    assert device_meter("gpu", print) is None
    assert isinstance(device_meter("tpu", print), MeterThread)
