"""Tasks drawn from a seed: repeatable, unique, and apart from the held-out ones."""

import subprocess
import sys
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import tasks
from agentlab.errors import ConfigError
from agentlab.rewards import same_number
from agentlab.tasks.lake import shortest_way

NO_SPLIT: Any = "test"
MAKERS = {
    "arithmetic": tasks.arithmetic,
    "prices": tasks.prices,
    "frozen_lake": tasks.frozen_lake,
    "terminal": tasks.terminal,
    "countdown": tasks.countdown,
}
asked = {
    "arithmetic": lambda task: task.prompt,
    "prices": lambda task: (task.data["item"], task.data["answer"]),
    "frozen_lake": lambda task: task.data["map"],
    "terminal": lambda task: (task.prompt, str(task.data["files"])),
    "countdown": lambda task: (tuple(sorted(task.data["numbers"])), task.data["target"]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_iterating_again_gives_the_same_tasks_again(name):
    drawn = MAKERS[name](seed=3, count=20)
    assert list(drawn) == list(drawn) == list(islice(MAKERS[name](seed=3), 20))


@pytest.mark.parametrize("name", MAKERS)
def test_another_seed_draws_other_tasks(name):
    assert list(MAKERS[name](seed=0, count=20)) != list(MAKERS[name](seed=1, count=20))


@pytest.mark.parametrize("name", MAKERS)
def test_ids_are_unique_over_seeds_and_splits(name):
    ids = [t.id for seed in (0, 1) for split in ("train", "eval") for t in MAKERS[name](seed, 50, split=split)]
    assert len(set(ids)) == len(ids) == 200


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_held_out_never_occurs_in_training_whatever_the_seed(name):
    held_out = {asked[name](task) for task in MAKERS[name](seed=7, count=150, split="eval")}
    trained = {asked[name](task) for seed in range(3) for task in MAKERS[name](seed=seed, count=500)}
    assert len(held_out) == 150
    assert not held_out & trained


@pytest.mark.parametrize("name", MAKERS)
def test_tasks_are_the_same_in_another_process(name):
    code = f"from agentlab import tasks; print(list(tasks.{name}(seed=5, count=3, split='eval')))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str(list(MAKERS[name](seed=5, count=3, split="eval")))


@given(
    seed=st.integers(0, 100),
    digits=st.integers(1, 4),
    terms=st.integers(2, 5),
    operators=st.sampled_from(["+", "*", "+-*"]),
)
def test_the_answer_of_arithmetic_is_its_value(seed, digits, terms, operators):
    for task in tasks.arithmetic(seed, 5, digits=digits, terms=terms, operators=operators):
        assert int(task.data["answer"]) == eval(task.data["expression"])
        assert task.prompt == f"What is {task.data['expression']}?"
        assert same_number(task, task.data["answer"]) == 1


def test_the_options_of_arithmetic_shape_its_tasks():
    drawn = tasks.arithmetic(0, 50, digits=(1, 3), operators="*", terms=3, prompt="Work out {expression}")
    assert all(task.prompt.startswith("Work out ") and task.data["expression"].count("*") == 2 for task in drawn)
    assert {len(number) for task in drawn for number in task.data["expression"].split(" * ")} == {1, 2, 3}


def test_a_price_is_in_the_list_of_its_own_task():
    for task in tasks.prices(0, 50, max_quantity=3, table_size=4, price_range=(5, 9)):
        assert len(task.data["table"]) == 4
        price = task.data["table"][task.data["item"]]
        assert 5 <= price <= 9
        assert int(task.data["answer"]) == price * task.data["quantity"]
        assert task.prompt == f"What do {task.data['quantity']} pieces of {task.data['item']} cost?"


def test_every_lake_can_be_crossed_in_the_steps_it_says():
    for task in tasks.frozen_lake(0, 50, size=5, holes=0.3):
        assert len(shortest_way(task.data["map"], (0, 0)) or ()) == task.data["steps"]


def test_a_lake_that_cannot_be_crossed_has_no_way():
    assert shortest_way(("SH", "HG"), (0, 0)) is None


def test_more_held_out_tasks_than_there_are_is_an_error_that_says_how_many():
    with pytest.raises(ConfigError, match=r"no more tasks: \d+ different ones"):
        list(tasks.arithmetic(count=10_000, split="eval", digits=1, operators="+"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tasks.arithmetic(split=NO_SPLIT), "no split 'test'"),
        (lambda: tasks.arithmetic(count=0), "count must be at least 1"),
        (lambda: tasks.arithmetic(digits=0), "digits must lie in 1 to 12"),
        (lambda: tasks.arithmetic(operators="/"), r"some of \+ - \*"),
        (lambda: tasks.arithmetic(terms=1), "terms must lie in 2 to 10"),
        (lambda: tasks.arithmetic(prompt="?"), "must contain {expression}"),
        (lambda: tasks.prices(table_size=100), "number of items"),
        (lambda: tasks.prices(price_range=(9, 5)), "lowest and the highest"),
        (lambda: tasks.prices(max_quantity=0), "max_quantity"),
        (lambda: tasks.prices(max_quantity=2, prompt="{item}?"), "and {quantity}"),
        (lambda: tasks.frozen_lake(size=1), "size must lie in 2 to 32"),
        (lambda: tasks.frozen_lake(holes=0.9), "holes must lie in 0 to 0.5"),
    ],
)
def test_impossible_options_are_refused_at_once(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
