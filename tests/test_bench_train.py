"""The training bench: its loads, its clock and its hook for other libraries."""

import sys

import numpy as np
import pytest

from agentlab.bench.train import LENGTHS, group_of, medians, one_of_each_shape, peer_rows, run
from agentlab.errors import ConfigError
from agentlab.training import pack


def test_works_are_run_in_turn_after_a_part_that_has_all_their_shapes():
    order = []
    found = medians(3, lambda: order.append("a"), lambda: order.append("b"))
    assert order == ["a", "b"] * 3
    assert len(found) == 2
    rng = np.random.default_rng(0)
    packed = pack([group_of(rng, 50, [60, 30, 9], str(n)) for n in range(9)], micro_batch_tokens=512)
    first = one_of_each_shape(packed)
    assert {batch.shape for batch in first.batches} == {batch.shape for batch in packed.batches}
    assert len(first.batches) == len({batch.shape for batch in packed.batches}) < len(packed.batches)


def test_the_loads_are_what_the_goals_speak_of():
    rng = np.random.default_rng(0)
    group = group_of(rng, 256, [64] * 8, "0")
    shared, plain = (pack([group], row_tokens=1024, micro_batch_tokens=1024, share_prefix=x) for x in (True, False))
    assert (shared.counts.tokens, plain.counts.tokens) == (256 + 8 * 63, 8 * 319)
    assert max(LENGTHS) / np.mean(LENGTHS) > 2


def test_figures_of_a_peer_are_reported_as_they_are():
    rows = peer_rows(f"{sys.executable} -c \"print('noise'); print('{{\\\"seconds\\\": 1.5}}')\"")
    assert [(row.figure, row.value, row.goal) for row in rows] == [("peer: seconds", 1.5, "")]
    with pytest.raises(ConfigError, match="--peer must be a command"):
        peer_rows(f'{sys.executable} -c "print(1/0)"')


def test_a_section_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        run(["--section", "paking"])
    assert "trainer, packing, prefix, memory, step" in capsys.readouterr().err.replace("'", "")


@pytest.mark.slow
def test_the_whole_bench_gives_its_rows():
    assert {row.figure for row in run(["--layers", "1", "--repeats", "1"])} >= {
        "trainer / bare",
        "packed / padded to the longest",
        "shared prompt / prompt in each",
        "all that a trainer of adapters adds",
    }
