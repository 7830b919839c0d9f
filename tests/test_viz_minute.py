"""The last minute, kept up to date in ticks: the same picture and account as if it were counted whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.tracing import Span, account
from agentlab.tracing.table import STAGE_CODES, SpanTable
from agentlab.viz.canvas import lettering
from agentlab.viz.lanes import in_flight
from agentlab.viz.minute import Minute

SECOND = 1_000_000_000
COLUMNS = 60


def at(*spans: tuple[str, float, float]) -> SpanTable:
    return SpanTable.of([Span(stage, round(a * SECOND), round(b * SECOND)) for stage, a, b in spans])


def run_through(spans: SpanTable, start_ns: int, ticks: list[int]):
    """The last view of a minute that is told of spans as they end and sees those under way."""
    minute, last_ns, view = Minute(COLUMNS, start_ns), start_ns, None
    for now_ns in ticks:
        ended = spans.where((spans.end_ns > last_ns) & (spans.end_ns <= now_ns))
        open_ = spans.where((spans.start_ns <= now_ns) & (spans.end_ns > now_ns)).within(0, now_ns)
        view, last_ns = minute.take(ended, open_, now_ns), now_ns
    return view


moments = st.floats(0, 150)
pieces = st.tuples(
    st.sampled_from(["decode", "tool", "step", "model_call", "train", "rollout", "forward_backward"]), moments, moments
)


@settings(max_examples=40)
@given(st.lists(pieces, max_size=30), st.integers(1, 40))
def test_ticks_give_what_counting_the_whole_minute_gives(rows, num_ticks):
    spans = at(*((stage, min(a, b), max(a, b)) for stage, a, b in rows))
    ticks = [round(150 * SECOND * (i + 1) / num_ticks) for i in range(num_ticks)]
    view = run_through(spans, 0, ticks)
    stop_ns = ticks[-1]
    first = stop_ns // SECOND - COLUMNS + 1
    edges = (first + np.arange(COLUMNS + 1)) * SECOND
    for stage in ("decode", "tool", "train"):
        mine = spans.only(stage).within(0, stop_ns)
        assert view.flight[STAGE_CODES[stage]] == pytest.approx(in_flight(mine, edges), abs=1e-6)
    whole = account(spans, view.found.start_ns, stop_ns)
    assert view.found.stop_ns == stop_ns
    assert stop_ns - view.found.start_ns <= 62 * SECOND
    assert view.found.busy_s == pytest.approx(whole.busy_s, abs=1e-6)
    assert dict(view.found.idle) == pytest.approx(dict(whole.idle), abs=1e-6)


def test_the_account_covers_the_window_also_when_nobody_looked_for_long():
    view = run_through(at(("decode", 0, 500)), 0, [10 * SECOND, 400 * SECOND])
    assert view.found.utilisation == 1
    assert view.found.duration_s == pytest.approx(61, abs=1.1)


def test_a_wait_that_is_recorded_at_its_end_is_drawn_where_it_was():
    minute = Minute(COLUMNS, 0)
    for second in range(1, 31):
        minute.take(SpanTable.of(()), SpanTable.of(()), second * SECOND)
    view = minute.take(at(("queue", 5, 30.5)), SpanTable.of(()), 31 * SECOND)
    queue = view.flight[STAGE_CODES["queue"]]
    assert queue[COLUMNS - 1 - 31 + 5 : COLUMNS - 1 - 31 + 30] == pytest.approx(np.ones(25))
    assert queue.sum() == pytest.approx(25.5)


def test_a_compilation_that_is_recorded_late_still_takes_its_time():
    minute = Minute(COLUMNS, 0)
    for second in range(1, 21):
        minute.take(SpanTable.of(()), at(("model_call", 0, second)), second * SECOND)
    view = minute.take(at(("compile", 1, 19)), at(("model_call", 0, 21)), 21 * SECOND)
    assert view.found.idle == {"compile": pytest.approx(18), "engine": pytest.approx(3)}


def test_words_are_lettered_once_and_set_apart():
    both, first, second = (lettering(text, 15) for text in ("tool 41%", "tool", "41%"))
    assert both.shape[1] > first.shape[1] + second.shape[1]
    assert both.sum() == pytest.approx(first.sum() + second.sum())
    assert 0 < both.max() <= 1
