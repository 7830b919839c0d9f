"""Tools: described by their own docstrings and annotations, and checked against them."""

import time
from typing import Literal

import pytest

from agentlab.errors import ConfigError, ToolError
from agentlab.tools import Calculator, Lookup, Slow, Tool, as_text, as_tool, as_tools, check_arguments
from agentlab.types import Task


class Weather(Tool):
    """Tomorrow's temperature of a city, in degrees Celsius."""

    def __init__(self, table: dict[str, float]):
        self.table = table

    def __call__(self, city: str) -> str:
        return f"{self.table[city]:.0f}"


def book(
    hotel: str,
    nights: int = 1,
    price: float | None = None,
    beds: list[int] | None = None,
    board: Literal["none", "half", "full"] = "none",
    extra: dict | None = None,
) -> str:
    """Book a hotel.

    It cannot be undone.

    Args:
        hotel: Its name,
            in full.
        nights: How many nights.

    Returns:
        A number.
    """
    return hotel


def test_a_tools_description_and_schema_come_from_the_class_itself():
    spec = Weather({}).spec("weather")
    assert spec.description == "Tomorrow's temperature of a city, in degrees Celsius."
    assert spec.parameters == {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert spec.as_function()["function"]["name"] == "weather"


def test_a_function_is_a_tool_with_the_schema_of_its_signature():
    spec = as_tool(book).spec("book")
    assert spec.description == "Book a hotel.\n\nIt cannot be undone."
    assert spec.parameters["required"] == ["hotel"]
    assert spec.parameters["properties"] == {
        "hotel": {"type": "string", "description": "Its name, in full."},
        "nights": {"type": "integer", "description": "How many nights.", "default": 1},
        "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "beds": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}], "default": None},
        "board": {"type": "string", "enum": ["none", "half", "full"], "default": "none"},
        "extra": {"anyOf": [{"type": "object"}, {"type": "null"}], "default": None},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"hotel": "Ritz"},
        {"hotel": "Ritz", "nights": 2, "price": 3, "beds": [1, 2], "board": "half", "extra": {"a": 1}},
        {"hotel": "Ritz", "price": None},
    ],
)
def test_arguments_that_fit_are_taken(arguments):
    check_arguments("book", as_tool(book).spec("book").parameters, arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "book needs the argument hotel."),
        ({"hotl": "Ritz"}, "book has no argument 'hotl'. Did you mean 'hotel'?"),
        ({"hotel": 5}, "hotel must be text, got a whole number: 5"),
        ({"hotel": None}, "hotel must be text, got null"),
        ({"hotel": "Ritz", "nights": "2"}, "nights must be a whole number, got text: '2'"),
        ({"hotel": "Ritz", "nights": True}, "nights must be a whole number, got true or false: True"),
        ({"hotel": "Ritz", "nights": 1.5}, "nights must be a whole number, got a number: 1.5"),
        ({"hotel": "Ritz", "beds": ["a"]}, "beds[0] must be a whole number, got text: 'a'"),
        ({"hotel": "Ritz", "board": "all"}, "board must be one of 'none', 'half', 'full', got text: 'all'"),
        ({"hotel": "Ritz", "extra": 1}, "extra must be an object or null, got a whole number: 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words_for_the_model(arguments, says):
    with pytest.raises(ToolError) as refused:
        check_arguments("book", as_tool(book).spec("book").parameters, arguments)
    assert says in str(refused.value)


def test_instances_classes_and_functions_make_a_tool_map():
    tools = as_tools({"calculator": Calculator, "weather": Weather({"Oslo": 3.6}), "book": book})
    assert [tool.spec(name).name for name, tool in tools.items()] == ["calculator", "weather", "book"]
    assert tools["weather"](city="Oslo") == "4"
    assert tools["book"](hotel="Ritz") == "Ritz"


def test_a_class_gives_a_tool_of_its_own_each_time_and_an_instance_is_shared():
    shared = Weather({})
    first, second = (as_tools({"c": Calculator, "w": shared}) for _ in range(2))
    assert first["c"] is not second["c"]
    assert first["w"] is second["w"] is shared


def without_annotation(city):
    return city


def positional(*cities: str) -> str:
    return cities[0]


def of_bytes(data: bytes) -> str:
    return str(data)


@pytest.mark.parametrize(
    ("tool_map", "says"),
    [
        ({"weather": Weather}, r"Weather\(\.\.\.\)"),
        ({"x": without_annotation}, "needs an annotation"),
        ({"x": positional}, "cannot be given by name"),
        ({"x": of_bytes}, "annotation <class 'bytes'>"),
        ({"x": "calculator"}, "got str: 'calculator'"),
        ({"x": object}, "must have a __call__"),
        ({"a b": Calculator}, "got 'a b'"),
        ([Calculator], "got list"),
    ],
)
def test_what_is_no_tool_is_refused_at_once(tool_map, says):
    with pytest.raises(ConfigError, match=says):
        as_tools(tool_map)


def test_what_a_tool_returns_becomes_text():
    assert [as_text(value) for value in ("é", 3, {"a": [1]}, None, {1})] == [
        "é",
        "3",
        '{"a": [1]}',
        "(no output)",
        "{1}",
    ]


def test_lookup_finds_an_item_whatever_its_case_and_names_the_nearest_otherwise():
    lookup = Lookup({"Pen": 14, "jar": "blue"})
    assert (lookup(item=" pen "), lookup(item="jar")) == ("14", "blue")
    with pytest.raises(ToolError, match="There is no 'pan'"):
        lookup(item="pan")


def test_lookup_without_a_table_takes_that_of_the_task():
    assert Lookup().bind(Task("t", "?", {"table": {"pen": 3}}))(item="pen") == "3"
    with pytest.raises(ConfigError, match="needs a table"):
        Lookup().bind(Task("t", "?"))


def test_a_slow_tool_takes_real_time_and_is_otherwise_the_tool():
    slow = Slow(Lookup, 0.02)
    start = time.perf_counter()
    assert slow.bind(Task("t", "?", {"table": {"pen": 3}}))(item="pen") == "3"
    assert time.perf_counter() - start >= 0.02
    assert slow.spec("lookup") == Lookup().spec("lookup")


@pytest.mark.parametrize(("seconds", "jitter"), [(-1, 0), (float("nan"), 0), (1, 2), (float("inf"), 0)])
def test_a_delay_that_cannot_be_is_refused(seconds, jitter):
    with pytest.raises(ConfigError, match="0 <= jitter <= seconds"):
        Slow(Calculator, seconds, jitter=jitter)
