"""Busy and idle device time, against schedules whose answer is plain arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.tracing import STAGES, Span, account

SECOND = 1_000_000_000


def s(stage: str, start: float, end: float) -> Span:
    return Span(stage, round(start * SECOND), round(end * SECOND))


def test_overlapping_executions_count_once_and_are_split_evenly():
    found = account([s("decode", 0, 4), s("forward_backward", 2, 6), s("decode", 8, 10)])
    assert found.duration_s == 10
    assert found.busy_s == pytest.approx(8, abs=1e-6)
    assert found.utilisation == pytest.approx(0.8, abs=1e-6)
    assert found.busy["decode"] == pytest.approx(2 + 1 + 2, abs=1e-6)
    assert found.busy["forward_backward"] == pytest.approx(1 + 2, abs=1e-6)
    assert found.idle == {"nothing": pytest.approx(2, abs=1e-6)}


def test_a_gap_goes_to_what_the_episodes_were_waiting_for():
    schedule = [
        s("model_call", 0, 2),
        s("decode", 0.5, 2),  # 0.5 s of engine before it
        s("step", 2, 5),
        s("tool", 2, 4),  # 2 s tool, then 1 s environment
        s("reward", 5, 5.5),
        s("queue", 5.5, 6),
        s("train", 6, 9),
        s("pack", 6, 7),  # 1 s learner
        s("forward_backward", 7, 8.5),  # then 0.5 s learner
        s("reset", 9.25, 9.5),
        s("compile", 9.5, 10),
    ]
    found = account(schedule)
    expected = {
        "engine": 0.5,
        "tool": 2,
        "environment": 1,
        "reward": 0.5,
        "queue": 0.5,
        "learner": 1.5,
        "nothing": 0.25,
        "reset": 0.25,
        "compile": 0.5,
    }
    assert found.idle == pytest.approx(expected, abs=1e-6)
    assert next(iter(found.idle)) == "tool"
    assert found.busy_s == pytest.approx(3, abs=1e-6)


def test_episodes_that_wait_for_different_things_share_a_gap_by_their_number():
    tools = [s("step", 0, 4), s("tool", 0, 4), s("step", 0, 4), s("tool", 0, 4), s("step", 0, 4), s("tool", 0, 4)]
    found = account([*tools, s("reward", 0, 2)])
    assert found.idle == pytest.approx({"tool": 2 * 3 / 4 + 2, "reward": 2 / 4}, abs=1e-6)


def test_an_episode_between_its_stages_is_in_its_agent():
    found = account([s("rollout", 0, 4), s("agent", 0, 1), s("decode", 2, 3)])
    assert found.idle == pytest.approx({"agent": 3}, abs=1e-6)


def test_only_the_window_counts():
    found = account([s("decode", 0, 10), s("tool", 10, 20)], start_ns=9 * SECOND, stop_ns=14 * SECOND)
    assert (found.busy_s, found.utilisation) == (pytest.approx(1), pytest.approx(0.2))
    assert found.idle_shares == {"tool": pytest.approx(0.8)}


def test_nothing_recorded_is_no_use_of_the_device():
    assert account([]).utilisation == 0
    assert account([], 0, SECOND).idle == {"nothing": 1.0}


moments = st.integers(-(2**40), 2**40)
any_spans = st.lists(st.tuples(st.sampled_from(sorted(STAGES)), moments, moments), max_size=40)


@given(any_spans, st.none() | moments, st.none() | moments)
def test_busy_and_idle_add_up_for_any_spans(spans, start_ns, stop_ns):
    found = account([Span(*span) for span in spans], start_ns, stop_ns)
    assert 0 <= found.utilisation <= 1
    assert all(seconds > 0 for seconds in found.idle.values())
    assert found.busy_s + sum(found.idle.values()) == pytest.approx(found.duration_s, rel=1e-9, abs=1e-6)
    assert sum(found.busy.values()) == pytest.approx(found.busy_s, rel=1e-9, abs=1e-6)
