"""Ids of tasks: what may be one, what becomes of it, and that a checkpoint gives it back exactly."""

import enum
import json
from dataclasses import dataclass
from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given
from resume_cases import outcome, start, tasks

from agentlab.errors import ConfigError
from agentlab.rollout.conversations import id_of
from agentlab.rollout.ledger import Ledger, Progress, RunRecord
from agentlab.rollout.orchestrator import check_tasks
from agentlab.tools import Record, Replay
from agentlab.training.checkpoint import CheckpointStore
from agentlab.types import Counts, Task, as_task


class Color(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Old(str, enum.Enum):  # noqa: UP042  (as it was written before StrEnum)
    ONE = "one"


class Plain(enum.Enum):
    ONE = 1


scalars = st.one_of(
    st.text(),
    st.text(alphabet=st.characters(categories=("Cc", "Zl", "So"))),
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
numpys = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 255).map(np.uint8),
    st.booleans().map(np.bool_),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32),
    st.floats(allow_nan=False, allow_infinity=False).map(np.float64),
    st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=("Cs",))).map(np.str_),
)
members = st.sampled_from((Color.RED, Size.BIG, Old.ONE))
ids = st.recursive(st.one_of(scalars, numpys, members), lambda items: st.lists(items, max_size=4).map(tuple))


def is_plain(value):
    """Whether it is of Python's own types, all the way down."""
    return all(map(is_plain, value)) if type(value) is tuple else type(value) in (str, int, float, bool)


def through_a_checkpoint(given_ids):
    """The ids of tasks as a resumed run knows them."""
    ledger = Ledger()
    for index, given_id in enumerate(given_ids):
        ledger.begin(index, as_task(Task(given_id, "p"), index).id)
    record = RunRecord(version=1, progress=ledger.progress(Counts(), 0))
    return RunRecord.from_json(json.loads(json.dumps(record.as_json()))).progress


@given(given_id=ids)
@example(given_id=("a", 0))
@example(given_id=np.int64(7))
@example(given_id=(Size.BIG, (np.str_("x"), np.bool_(True))))
def test_an_id_becomes_plain_data_that_the_same_tables_know(given_id):
    made = as_task(Task(given_id, "p"), 0).id
    assert is_plain(made) and made == given_id and {given_id: "here"}[made] == "here"


@given(given_ids=st.lists(ids, max_size=8))
@example(given_ids=[("a", 0), np.int64(3), "3", 3.0, True, "\u2028", 2**100, (), ((1,),)])
def test_ids_come_back_from_a_checkpoint_exactly_and_of_the_same_types(given_ids):
    progress = through_a_checkpoint(given_ids)
    ours = tuple(as_task(Task(given_id, "p"), 0).id for given_id in given_ids)
    assert progress.task_ids == ours
    assert list(map(repr, progress.task_ids)) == list(map(repr, ours))
    ledger = Ledger(progress)
    assert all(ledger.is_wanted(index, own) for index, own in enumerate(ours)), "none was ended"


@given(one=ids, other=ids)
def test_a_resumed_run_tells_two_tasks_apart_that_are_not_equal(one, other):
    one, other = (as_task(Task(given_id, "p"), 0).id for given_id in (one, other))
    ledger = Ledger(Progress(task_ids=(one,), open=(0,)))
    if one == other:
        assert ledger.is_wanted(0, other)
    else:
        with pytest.raises(ConfigError, match="same tasks in the same order"):
            ledger.is_wanted(0, other)


@dataclass(frozen=True)
class Key:
    name: str


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        object(),
        Key("a"),
        Plain.ONE,
        float("nan"),
        np.float64("inf"),
        "\ud800\udc00",
        b"a",
        {1},
        {"a": 1},
        Decimal(1),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: ("a", (value,))], ids=["alone", "nested"])
def test_anything_else_is_refused_and_the_task_named(wrong, wrap):
    with pytest.raises(ConfigError, match=r"An id must be valid text, a finite number, or a tuple .* task 4 has"):
        as_task(Task(wrap(wrong), "p"), 4)


def test_arrays_and_times_are_no_ids():
    for wrong in (np.arange(2), np.datetime64("2026-01-01"), np.timedelta64(1, "s"), np.bytes_(b"a")):
        with pytest.raises(ConfigError, match="An id must be"):
            as_task(Task(wrong, "p"), 0)


def test_a_list_becomes_the_tuple_that_it_means():
    assert as_task(Task(["a", [np.int64(0)]], "p"), 0).id == ("a", (0,))  # pyright: ignore[reportArgumentType]


def test_the_id_of_a_dictionary_is_the_text_of_it_or_its_place():
    rows = [{"id": np.int64(7)}, {"id": ("a", np.int64(0))}, {"id": Color.RED}, {}, {"id": None}]
    texts = ["7", "('a', 0)", "red", "3", "4"]
    assert [as_task({**row, "prompt": "p"}, index).id for index, row in enumerate(rows)] == texts
    assert [id_of({**row, "messages": []}, index) for index, row in enumerate(rows)] == texts
    with pytest.raises(ConfigError, match="task 0 has set"):
        as_task({"id": {"b", "a"}, "prompt": "p"}, 0)


def test_every_task_of_a_list_is_looked_at_before_a_run_begins():
    with pytest.raises(ConfigError, match="task 1 has object"):
        check_tasks([Task("a", "p"), Task(object(), "p")])  # pyright: ignore[reportArgumentType]


def finish(folder, given_tasks, **options):
    trainers, notes = [], []
    run = start(folder, lead=0, given=given_tasks, trainers=trainers, told=notes, **options).wait()
    return outcome(run, trainers[-1]), notes


@pytest.mark.parametrize(
    "make_id",
    [np.int64, lambda n: ("shelf", n), lambda n: ("shelf", (np.int32(0), np.int64(n))), lambda n: [str(n)]],
    ids=["numpy", "tuple", "nested", "list"],
)
def test_a_run_with_such_ids_goes_on_as_one_with_text(tmp_path, make_id):
    def given_tasks():
        return [Task(make_id(int(row["id"])), row["prompt"]) for row in tasks()]

    unbroken, _ = finish(tmp_path / "text", tasks())
    finish(tmp_path / "run", given_tasks(), steps=4)
    ended, notes = finish(tmp_path / "run", given_tasks())
    assert ended == unbroken and notes == []


def test_the_record_of_a_run_whose_rows_hold_numbers_of_numpy_is_written(tmp_path):
    rows = ({"loss": np.float32(0.5), "step": np.int64(1), "low": float("nan")},)
    record = RunRecord(version=1, metrics=rows, evaluations=({"success": np.float64(1.0)},))
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": np.ones(3)}, about={}, record=record.as_json())
    store.wait()
    found = RunRecord.from_json(store.restore({"a": np.ones(3)}, about={}).record)
    store.close()
    assert found.metrics[0]["loss"] == 0.5 and found.metrics[0]["step"] == 1


def test_a_recording_is_played_again_for_a_task_with_a_tuple_as_id(tmp_path):
    def add(a: int) -> str:
        """Adds one."""
        return str(a + counted.pop())

    counted = [2, 1]
    path = tmp_path / "calls.jsonl"
    for task_id in (("a", 0), ("a", 1)):
        Record(add, path).bind(Task(task_id, "p"))(a=1)
    for task_id, answer in ((("a", 0), "2"), (("a", 1), "3")):
        assert Replay(add, path).bind(Task(task_id, "p"))(a=1) == answer
