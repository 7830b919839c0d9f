"""Progress of long work: one bar of a kind, none where nobody can see it, and none left behind."""

import io
import sys

import pytest

from agentlab.agents import ModelAgent
from agentlab.environments import TaskEnvironment
from agentlab.inference import ScriptedEngine
from agentlab.platform.progress import bar
from agentlab.rollout import evaluate


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


def test_in_a_notebook_it_is_not_written_where_warnings_are(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with bar(3, "Loading weights") as shown:
        shown.update(3)
    written = capsys.readouterr()
    assert written.err == "" and "3/3" in written.out


def test_nothing_is_written_where_there_is_no_terminal_and_no_notebook(capsys):
    with bar(3, "Loading weights") as shown:
        shown.update(3)
    assert capsys.readouterr().err == ""


def test_there_is_one_bar_of_a_kind(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with (
        bar(2, "Loading a", kind="loading", visible=True) as first,
        bar(2, "Loading b", kind="loading", visible=True) as second,
        bar(2, "Compiling", visible=True) as other,
    ):
        assert (first.disable, second.disable, other.disable) == (False, True, False)
    with bar(2, "Loading c", kind="loading", visible=True) as third:
        assert not third.disable
    assert "Loading a" in sys.stderr.getvalue() and "Loading b" not in sys.stderr.getvalue()


def test_a_bar_ends_with_what_it_counts_also_when_that_fails(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(ZeroDivisionError), bar(2, "Loading", visible=True):
        _ = 1 / 0
    with bar(2, "Loading", visible=True) as again:
        assert not again.disable


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar(2, "Loading", enabled=False, visible=True) as shown:
        shown.update(2)
    assert sys.stderr.getvalue() == ""


def test_an_evaluation_counts_its_tasks(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    sys.stderr.isatty = lambda: True
    tasks = [{"prompt": f"task {index}"} for index in range(5)]
    seen = []
    roles = {
        "agent_class": ModelAgent,
        "env_class": TaskEnvironment,
        "env_kwargs": {"reward_fn": lambda task, text: 1.0},
    }
    evaluate(ScriptedEngine("yes"), tasks, on_group=seen.append, **roles)
    assert seen == [1, 2, 3, 4, 5]
    assert "Evaluating" in sys.stderr.getvalue() and "5/5" in sys.stderr.getvalue()
    sys.stderr.truncate(0)
    evaluate(ScriptedEngine("yes"), tasks, progress=False, **roles)
    assert "Evaluating" not in sys.stderr.getvalue()
