"""What a TPU's runtime says: read where there is one, and silence everywhere else."""

import pytest

from agentlab.platform.tpu import read_metrics, tpu_metrics


def test_elsewhere_nothing_is_asked_and_nothing_said(capfd):
    def never():
        raise AssertionError("nobody must be asked")

    assert tpu_metrics(accelerator="cpu", probe=never)() == {}
    assert tpu_metrics(accelerator="tpu", probe=set)() == {}
    assert capfd.readouterr() == ("", "")


def test_a_runtime_that_cannot_be_imported_is_no_runtime(capfd):
    assert tpu_metrics(accelerator="tpu")() == {}
    assert capfd.readouterr() == ("", "")


def test_metrics_are_means_over_the_chips():
    said = {"duty_cycle_pct": ["40.0", "60.0"], "hbm_capacity_usage": ["1000"], "tensorcore_util": []}
    found = read_metrics(said.__getitem__, list(said))
    assert found == {"tpu_duty_cycle_percent": pytest.approx(50), "tpu_memory_bytes": pytest.approx(1000)}
