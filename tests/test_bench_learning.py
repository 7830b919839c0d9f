"""Learning from end to end: a tiny model is taught a format by example, and then learns by reinforcement."""

import pytest

from agentlab.bench import learning
from agentlab.bench.learning import Outcome, demonstrations, gain_interval, questions, rows_of, success_interval
from agentlab.rewards import same_number


@pytest.mark.timeout(900)
def test_reinforcement_adds_thirty_points_and_asynchrony_loses_none_of_them():
    missed = [row for row in learning.measure() if row.holds is False]
    assert not missed, missed


def test_the_demonstrations_solve_their_share_and_no_held_out_question():
    shown = demonstrations(0, 1000)
    held_out = {task.prompt + str(task.data["table"][task.data["item"]]) for task in questions(3, "eval", 100)}
    solved = 0
    for task, conversation in zip(questions(1000, count=1000), shown, strict=True):
        assert conversation["id"] == task.id
        assert task.prompt + str(task.data["table"][task.data["item"]]) not in held_out
        answer = conversation["messages"][-1]["content"]
        solved += len(conversation["messages"]) == 6 and same_number(task, answer) == 1.0
    assert solved / 1000 == pytest.approx(learning.KNOWS_HOW, abs=0.05)


def outcome(before, after, wall_s=10.0):
    return Outcome((True,) * before + (False,) * (100 - before), (True,) * after + (False,) * (100 - after), wall_s)


def test_the_figures_are_those_of_the_outcomes():
    sync = [outcome(40, 90), outcome(35, 95), outcome(45, 94)]
    mean, half = gain_interval(sync)
    assert mean == pytest.approx((50 + 60 + 49) / 3) and 0 < half < 10
    low, high = success_interval(sync)
    assert low < 93 < high and low < 90.0 < high
    rows = {row.figure: row for row in rows_of(sync, [outcome(40, 93, 7.0)] * 3, 20.0)}
    assert all(row.holds is not False for row in rows.values())
    worse = {row.figure: row for row in rows_of(sync, [outcome(40, 60, 12.0)] * 3, 20.0)}
    assert worse["held-out success one step ahead"].holds is False
    assert worse["wall time of the same updates one step ahead, over synchronous"].holds is False
    flat = {row.figure: row for row in rows_of([outcome(40, 60)] * 3, [outcome(40, 60)] * 3, 20.0)}
    assert flat["gain, over all seeds"].holds is False
