"""Python functions as tools: what pydantic makes of their annotations, and arguments of the annotated types."""

import dataclasses
import datetime
import decimal
import enum
import functools
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import Doc, TypedDict

from agentlab.chat.examples import example_call
from agentlab.environments import ToolEnvironment
from agentlab.errors import ConfigError, ToolError
from agentlab.tools import Cache, Record, Replay, Slow, Timeout, Tool, as_tool, as_tools
from agentlab.types import Action, Task, ToolCall, ToolSpec


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    deep: bool
    until: datetime.date


class Person(BaseModel):
    name: str = Field(description="In full.")
    friends: "list[Person]" = []


def even(value: int) -> int:
    if value % 2:
        raise ValueError("it must be even")
    return value


def paint(
    color: Color,
    at: Point,
    day: datetime.date,
    times: Annotated[int, Field(ge=1, le=5, description="How often.")] = 2,
    label: Annotated[str, "What is written on it."] = "",
    size: Annotated[Literal["s", "m"], Doc("How large.")] = "s",
    options: Options | None = None,
    people: Sequence[Person] = (),
    tags: frozenset[str] = frozenset(),
    pair: tuple[int, str] | None = None,
    pairs: Annotated[int, AfterValidator(even)] = 2,
) -> Any:
    """Paint it."""
    return color, at, day, times, label, size, options, people, tags, pair, pairs


NEEDED = {"color": "red", "at": {"x": 1}, "day": "2024-02-29"}


def taken(function, /, **arguments):
    tool = as_tool(function)
    return tool.checked_arguments(tool.spec("f"), arguments)


def test_arguments_become_what_the_annotations_say():
    made = taken(
        paint, **NEEDED, options={"until": "2024-01-01"}, people=[{"name": "A", "friends": [{"name": "B"}]}],
        tags=["b", "a"], pair=[1, "x"],
    )  # fmt: skip
    assert made == {
        "color": Color.RED,
        "at": Point(1.0),
        "day": datetime.date(2024, 2, 29),
        "options": {"until": datetime.date(2024, 1, 1)},
        "people": [Person(name="A", friends=[Person(name="B")])],
        "tags": frozenset({"a", "b"}),
        "pair": (1, "x"),
    }


def test_a_schema_has_what_annotations_say_and_the_defaults():
    properties = as_tool(paint).spec("paint").parameters["properties"]
    assert properties["color"] == {"type": "string", "enum": ["red", "blue"]}
    assert properties["day"] == {"type": "string", "format": "date"}
    assert properties["times"] == {
        "type": "integer", "minimum": 1, "maximum": 5, "description": "How often.", "default": 2,
    }  # fmt: skip
    assert properties["label"]["description"] == "What is written on it."
    assert properties["size"] == {"type": "string", "enum": ["s", "m"], "description": "How large.", "default": "s"}
    assert "title" not in str(properties)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"color": "green"}, "color must be one of 'red', 'blue', got text: 'green'."),
        ({"color": None}, "color must be"),
        ({"at": {}}, "at needs 'x'."),
        ({"at": {"x": "1"}}, "at.x must be a number, got text: '1'."),
        ({"at": {"x": 1, "z": 2}}, "at has no 'z'."),
        ({"day": "2023-02-29"}, "day must be a valid date"),
        ({"times": 9}, "times must be at most 5, got a whole number: 9."),
        ({"times": 2.5}, "times must be a whole number, got a number: 2.5."),
        ({"times": True}, "times must be a whole number, got true or false: True."),
        ({"options": {"deep": 1}}, "options.deep must be true or false, got a whole number: 1."),
        ({"people": [{"name": "A", "friends": [{}]}]}, "people[0].friends[0] needs 'name'."),
        ({"pair": [1]}, "pair must have at least 2 items"),
        ({"pairs": 3}, "pairs is not accepted: it must be even, got a whole number: 3."),
        ({"label": "\ud800", "times": "3"}, "times must be a whole number, got text: '3'."),
        ({"label": "\ud800", "day": "2023-02-29"}, "day must be a valid date"),
        ({"label": object()}, "must be JSON"),
        ({"tagz": []}, "paint has no argument 'tagz'. Did you mean 'tags'?"),
    ],
)
def test_a_refusal_names_where_it_is_and_what_is_wanted(arguments, says):
    tool = as_tool(paint)
    with pytest.raises(ToolError) as refused:
        tool.checked_arguments(tool.spec("paint"), {**NEEDED, **arguments})
    assert says in str(refused.value) and str(refused.value).startswith("paint")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200


def test_text_that_holds_half_a_character_is_handed_over_as_it_is():
    made = taken(paint, **NEEDED, label="a\ud800", tags=["\udfff"], times=3.0)
    assert made["label"] == "a\ud800" and made["tags"] == {"\udfff"} and made["times"] == 3
    assert made["color"] is Color.RED and made["at"] == Point(1.0)


def count(n: int, ns: list[int] | None = None, x: float = 0.0, anything: Any = None, either: int | str = 0) -> None:
    """Count."""


def test_a_float_without_a_fraction_is_an_integer_only_where_one_is_wanted():
    made = taken(count, n=3.0, ns=[1.0, 2], x=2.0, anything=[4.0], either=5.0)
    assert made == {"n": 3, "ns": [1, 2], "x": 2.0, "anything": [4.0], "either": 5}
    types = {name: type(value) for name, value in made.items() if not isinstance(value, list)}
    assert types == {"n": int, "x": float, "either": int}
    assert [type(item) for item in made["ns"] + made["anything"]] == [int, int, float]
    with pytest.raises(ToolError, match=r"ns\[1\] must be a whole number, got a number: 2.5"):
        taken(count, n=1, ns=[1.0, 2.5])


def test_values_that_are_of_the_annotated_types_already_are_taken_too():
    made = taken(paint, color=Color.BLUE, at=Point(2), day=datetime.date(2024, 1, 1), tags={"a"})
    assert made == {"color": Color.BLUE, "at": Point(2), "day": datetime.date(2024, 1, 1), "tags": frozenset({"a"})}


def test_an_environment_hands_a_tool_the_annotated_types():
    def describe(color: Color, at: Point) -> str:
        """Describe."""
        return f"{color.name} {at.x}"

    env = ToolEnvironment(Task("t", "?"), {"describe": describe}, lambda task, answer: 1.0)
    env.reset()
    result = env.step(Action((ToolCall("describe", {"color": "red", "at": {"x": 1}}),)))
    assert result.observation[0].text == "RED 1.0"


class Meet(Tool):
    """Meet somebody.

    Args:
        day: When.
    """

    def __call__(self, day: datetime.date, where: Point = Point(0.0)) -> str:
        """Meet.

        Args:
            where (Point): At which place.
        """
        return f"{day.isoformat()} {where.x}"


def test_a_tool_class_may_describe_its_arguments_in_either_docstring():
    spec = Meet().spec("meet")
    assert spec.description == "Meet somebody."
    assert spec.parameters["properties"]["day"]["description"] == "When."
    assert spec.parameters["properties"]["where"]["description"] == "At which place."
    assert spec.parameters["properties"]["where"]["default"] == {"x": 0.0, "y": 0.0}


@pytest.mark.parametrize("around", [Cache, lambda tool: Timeout(tool, 9.0), lambda tool: Slow(tool, 0.0)])
def test_what_is_around_a_tool_hands_it_the_annotated_types(around):
    tool = around(Meet())
    arguments = tool.checked_arguments(tool.spec("meet"), {"day": "2024-01-31", "where": {"x": 3}})
    assert tool(**arguments) == "2024-01-31 3.0"


def test_a_recording_of_typed_arguments_plays_again(tmp_path):
    def tagged(tags: set[str], at: Point, color: Color, on: dict[datetime.date, int]) -> str:
        """Tag."""
        return f"{sorted(tags)} {at.x} {color.value} {on}"

    given = {"tags": ["b", "a", "c"], "at": {"x": 1}, "color": "red", "on": {"2024-01-31": 1}}
    recorder = Record(tagged, tmp_path / "calls.jsonl").bind(Task("t", "?"))
    answer = recorder(**recorder.checked_arguments(recorder.spec("f"), given))
    line = (tmp_path / "calls.jsonl").read_text()
    assert '"tags": ["a", "b", "c"]' in line and '"on": {"2024-01-31": 1}' in line and '"color": "red"' in line
    player = Replay(tagged, tmp_path / "calls.jsonl").bind(Task("t", "?"))
    assert player(**player.checked_arguments(player.spec("f"), given)) == answer


class Renamed(Meet):
    """Meet, told otherwise."""

    def spec(self, name: str) -> ToolSpec:
        schema = {"properties": {"day": {"type": "string", "pattern": "^2024"}}, "required": ["day"]}
        return ToolSpec(name, "Meet in 2024.", schema)


def test_a_tool_with_a_schema_of_its_own_is_held_to_it_and_still_gets_the_annotated_types():
    tool = Renamed()
    made = tool.checked_arguments(tool.spec("meet"), {"day": "2024-01-31"})
    assert made == {"day": datetime.date(2024, 1, 31)}
    with pytest.raises(ToolError, match=r"day must match \^2024"):
        tool.checked_arguments(tool.spec("meet"), {"day": "2023-01-31"})


def further(first: int, **rest: int) -> int:
    """Add."""
    return first + sum(rest.values())


def test_further_arguments_are_of_the_type_that_is_written_for_them():
    assert taken(further, first=1, other=2.0) == {"first": 1, "other": 2}
    with pytest.raises(ToolError, match="other must be a whole number, got text: 'x'"):
        taken(further, first=1, other="x")


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (functools.partial(further, 1), []),
        (functools.partial(further, first=1), ["first"]),
        (decorated(further), ["first"]),
        (functools.lru_cache(further), ["first"]),
        (Meet().__call__, ["day", "where"]),
    ],
)
def test_functions_that_are_made_of_functions_keep_their_annotations(function, names):
    assert list(as_tool(function).spec("f").parameters["properties"]) == names


def test_parameters_may_have_any_name():
    def odd(json: str, copy: int, model_config: bool, schema: str = "", _hidden: int = 0, self_: int = 1) -> None:
        """Odd."""

    spec = as_tool(odd).spec("odd")
    assert list(spec.parameters["properties"]) == ["json", "copy", "model_config", "schema", "_hidden", "self_"]
    assert taken(odd, json="a", copy=1, model_config=True, _hidden=2)["_hidden"] == 2


class Plain:
    """Neither data nor a model."""


def of_unknown(value: "Nowhere") -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
def of_plain(value: Plain) -> None: ...
def of_function(value: Callable[[int], int]) -> None: ...
def of_bytes_inside(value: list[bytes]) -> None: ...
def with_field_default(value: int = Field(3)) -> None: ...
def unannotated(value) -> None: ...
def of_plain_others(**value: Plain) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (of_unknown, "annotations cannot be read"),
        (of_plain, "'value' has the annotation <class"),
        (of_function, "'value' has the annotation"),
        (of_bytes_inside, r"'value' has the annotation list\[bytes\] \(JSON has no bytes\)"),
        (with_field_default, r"'value' has pydantic's FieldInfo as its default.*Annotated\[\.\.\., Field"),
        (unannotated, "'value' needs an annotation"),
        (of_plain_others, "'value' has the annotation <class"),
        (max, "its parameters cannot be read"),
    ],
)
def test_annotations_that_no_model_could_fill_are_refused_at_once(function, says):
    with pytest.raises(ConfigError, match=f"Tool 'mine': .*{says}"):
        as_tools({"mine": function})


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**70), 2**70),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    bool: st.booleans(),
    Color: st.sampled_from(Color),
    Level: st.sampled_from(Level),
    datetime.date: st.dates(),
    datetime.datetime: st.datetimes(timezones=st.just(datetime.UTC)).map(lambda t: t.replace(microsecond=0)),
    uuid.UUID: st.uuids(),
    decimal.Decimal: st.decimals(-1000, 1000, places=2),
    Point: st.builds(Point, st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)),
    Literal["a", 3]: st.sampled_from(["a", 3]),
}


@st.composite
def types(draw, depth=2):
    """(an annotation, values of it)"""
    scalar = draw(st.sampled_from(list(SCALARS)))
    kind = draw(st.sampled_from(["scalar", "list", "tuple", "dict", "optional"])) if depth else "scalar"
    if kind == "scalar":
        return scalar, SCALARS[scalar]
    inner, values = draw(types(depth=depth - 1))
    made: Mapping[str, tuple[Any, st.SearchStrategy[Any]]] = {
        "list": (list[inner], st.lists(values, max_size=3)),
        "tuple": (tuple[inner, scalar], st.tuples(values, SCALARS[scalar])),
        "dict": (dict[str, inner], st.dictionaries(SCALARS[str], values, max_size=3)),
        "optional": (typing.Optional[inner], st.none() | values),  # noqa: UP045
    }
    return made[kind]


@given(st.data())
def test_any_annotations_take_their_own_values_as_json_and_the_example_that_the_model_is_shown(data):
    import pydantic

    drawn = data.draw(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), types(), min_size=1, max_size=4))
    drawn = {name: part for name, part in drawn.items() if name.isidentifier()}
    keywords = {name for name in drawn if name in ("if", "in", "is", "or", "as", "and", "not", "for", "def", "del")}
    names = [name for name in drawn if name not in keywords]

    def function(**given: Any) -> None:
        """Do it."""

    import inspect

    parameters = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, annotation=drawn[n][0]) for n in names]
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {name: drawn[name][0] for name in names}
    values = {name: data.draw(drawn[name][1]) for name in names}
    as_json = {name: pydantic.TypeAdapter(drawn[name][0]).dump_python(values[name], mode="json") for name in names}
    tool = as_tool(function)
    spec = tool.spec("f")
    made = tool.checked_arguments(spec, as_json)
    assert made == values
    assert {name: type(value) for name, value in made.items()} == {name: type(value) for name, value in values.items()}
    tool.checked_arguments(spec, example_call(spec).arguments)
