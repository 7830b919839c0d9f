"""What a resumed run must have in common with the one before is told the same in every process."""

import collections
import enum
import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from agentlab.options import described
from agentlab.training.checkpoint import differences

HERE = Path(__file__).parent


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Thing:
    """Has a `repr` with its address in it."""


def judge(text, weight=1.0):
    return weight * len(text)


@dataclass(frozen=True)
class Options:
    names: frozenset[str] = frozenset()
    table: Any = None
    fresh: list[int] = field(default_factory=list)


def everything():
    """Keyword arguments of every kind, made anew each time."""
    words = [f"word{n}" for n in range(40)]
    return {
        "set": set(words),
        "nested": [{"deep": (frozenset(words), {frozenset(words[:20]): 1, ("a", 1): {2, "b"}})}],
        "mixed": {None, 1, "1", 2.5, ("a", frozenset(words))},
        "keys": {Color.RED: 1, 3: 2, "3": 3, Thing(): 4},
        "dataclass": Options(frozenset(words), {"x": set(words)}),
        "object": Thing(),
        "objects": {Thing(), Thing()},
        "functions": (judge, lambda text: 0.0, Thing, len, "".join, Thing().__init__),
        "partial": functools.partial(judge, weight=np.float32(0.5)),
        "arrays": {"one": np.arange(6).reshape(2, 3), "jax": jnp.ones(3), "words": np.array([{"b", "a"}], object)},
        "namespace": SimpleNamespace(words=set(words), thing=Thing()),
        "values": (date(2026, 1, 2), timedelta(1), Path("a") / "b", re.compile("a+"), b"ab", 1j, range(3)),
        "nan": float("nan"),
    }


def in_a_process(code, seed, *arguments):
    """What Python writes under a hash seed."""
    settings = os.environ | {"PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=HERE, env=settings)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


TELL = "import json, test_options_described as t; print(json.dumps(t.described(t.everything()), sort_keys=True))"
LIVE = """
import sys, test_options_described as t
from resume_cases import start
run = start(sys.argv[1], lead=0, steps=int(sys.argv[2]), about=t.described(t.everything())).wait()
print(run.snapshot().step)
"""


def test_what_is_told_depends_on_no_seed_of_hashes_and_on_no_address():
    told = [in_a_process(TELL, seed) for seed in (1, 2, 3)]
    assert told[0] == told[1] == told[2] and " at 0x" not in told[0]


def test_a_run_goes_on_in_a_process_with_another_hash_seed(tmp_path):
    assert in_a_process(LIVE, 1, tmp_path, 3).strip() == "3"
    assert in_a_process(LIVE, 2, tmp_path, 5).strip() == "5"


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
keys = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.tuples(st.integers(), st.text(max_size=1)))
values = st.recursive(
    scalars,
    lambda items: st.one_of(
        st.lists(items, max_size=4),
        st.dictionaries(keys, items, max_size=4),
        st.frozensets(keys, max_size=4),
        st.lists(items, max_size=3).map(tuple),
    ),
)


def turned(value):
    """The same value, with its dictionaries and sets made in the other order."""
    if isinstance(value, dict):
        return {name: turned(item) for name, item in reversed(value.items())}
    if isinstance(value, frozenset):
        return frozenset(reversed(list(value)))
    return type(value)(map(turned, value)) if isinstance(value, list | tuple) else value


@given(value=values)
def test_order_does_not_matter_where_there_is_none_and_json_keeps_it_all(value):
    told = described(value)
    again = json.loads(json.dumps(told))
    assert differences(again, described(turned(value))) == []
    assert json.dumps(told, sort_keys=True) == json.dumps(described(turned(value)), sort_keys=True)


@given(one=st.frozensets(keys, max_size=5), other=st.frozensets(keys, max_size=5))
def test_two_sets_are_told_apart_exactly_where_they_differ(one, other):
    assert (described(one) == described(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a", "b"}, {"a", "c"}),
        (np.arange(3), np.arange(3) + 1),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.int64(1), np.int64(2)),
        (np.float32(0.5), np.float32(0.25)),
        (jnp.ones(3), jnp.zeros(3)),
        (functools.partial(judge, weight=0.5), functools.partial(judge, weight=0.6)),
        (functools.partial(judge, "a"), functools.partial(judge, "b")),
        (Color.RED, Color.BLUE),
        (date(2026, 1, 1), date(2026, 1, 2)),
        (Path("a"), Path("b")),
        (re.compile("a"), re.compile("b")),
        (b"a", b"b"),
        ({1: "a", 2: "b"}, {1: "b", 2: "a"}),
        (SimpleNamespace(a=1), SimpleNamespace(a=2)),
        (collections.deque([1]), collections.deque([2])),
        (judge, in_a_process),
        (Options(frozenset("a")), Options(frozenset("b"))),
    ],
)
def test_two_different_ones_are_told_apart(one, other):
    assert described(one) == described(one)
    assert described(one) != described(other)
    assert differences({"env_kwargs": described({"x": one})}, {"env_kwargs": described({"x": other})})


def test_a_default_of_any_type_is_known_as_one():
    assert described(Options()).defaults == {"names", "table", "fresh"}
    assert described(Options(table=np.arange(3))).defaults == {"names", "fresh"}
    assert differences({}, described(Options(fresh=[]))) == []
    assert differences({}, described(Options(fresh=[1]))) == ["fresh: None there, [1] here"]


def test_what_holds_itself_is_told_to_an_end():
    holding: list[Any] = [1]
    holding.append({"again": holding})
    assert described(holding) == [1, {"again": "…"}]


def test_not_a_number_is_the_same_as_not_a_number():
    assert differences(json.loads(json.dumps(described(float("nan")))), described(float("nan"))) == []


def test_objects_are_told_by_name_or_with_what_is_in_them_where_that_is_asked_for():
    one, other = Thing(), Thing()
    one.size, other.size = {3, 1}, {2}  # pyright: ignore[reportAttributeAccessIssue]
    assert described(one) == described(other) == "test_options_described.Thing"
    assert described(one, inside=True) == {"type": "test_options_described.Thing", "size": [1, 3]}
    assert described(one, inside=True) != described(other, inside=True)
