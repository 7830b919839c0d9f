"""Arguments of tools held against JSON schemas, and schemas that are none refused."""

import contextlib
import json
import math
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.chat.syntaxes import PARSERS
from agentlab.errors import ConfigError, ToolError
from agentlab.schemas import CONDITIONS, LISTS, MAPS, MAX_DEPTH, SINGLES
from agentlab.tools import Tool, as_tool, as_tools, check_arguments
from agentlab.tools.schema import check_schema
from agentlab.types import ToolSpec

CASES = json.loads((Path(__file__).parent / "fixtures/schemas.json").read_text(encoding="utf-8"))
WORDS_OF_SCHEMAS = sorted(
    {
        *MAPS,
        *LISTS,
        *SINGLES,
        *CONDITIONS,
        "type",
        "const",
        "enum",
        "required",
        "$ref",
        "default",
        "examples",
        "pattern",
    }
    | {"minimum", "maximum", "minItems", "dependentRequired", "description", "$schema", "x"}
)
SHAPES = {
    "type": "object",
    "properties": {"shape": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}, {"type": "null"}]}},
    "$defs": {
        "Circle": {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0}},
            "required": ["kind", "radius"],
            "additionalProperties": False,
        },
        "Square": {
            "type": "object",
            "properties": {"kind": {"const": "square"}, "side": {"type": "number"}, "in": {"$ref": "#/$defs/Circle"}},
            "required": ["kind", "side"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_valid_arguments_are_taken_and_invalid_ones_refused_by_name(case):
    for arguments in case["valid"]:
        check_arguments("tool", case["schema"], arguments)
    for arguments in case["invalid"]:
        with pytest.raises(ToolError) as refused:
            check_arguments("tool", case["schema"], arguments)
        assert any(name in str(refused.value) for name in arguments)
        assert "must be" in str(refused.value) or "needs" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shape": 3}, "shape must be an object or null, got a whole number: 3."),
        ({"shape": {"kind": "square", "side": "x"}}, "shape.side must be a number, got text: 'x'."),
        ({"shape": {"kind": "circle", "radius": 0}}, "shape.radius must be above 0, got a whole number: 0."),
        ({"shape": {"kind": "circle"}}, "shape needs 'radius'."),
        ({"shape": {"kind": "circle", "radius": 1, "raduis": 2}}, "shape has no 'raduis'. Did you mean 'radius'?"),
        ({"shape": {"kind": "square", "side": 1, "in": {"kind": "circle", "radius": None}}}, "shape.in.radius must be"),
        ({"shpe": None}, "has no argument 'shpe'. Did you mean 'shape'?"),
        ({"shape": float("inf")}, "the arguments must be JSON"),
        ({"shape": object()}, "the arguments must be JSON"),
        ({"shape": "\ud800"}, "shape must be an object or null, got text"),
    ],
)
def test_a_refusal_names_where_it_is_and_what_is_wanted(arguments, says):
    with pytest.raises(ToolError) as refused:
        check_arguments("draw", SHAPES, arguments)
    assert str(refused.value).startswith("draw") and says in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        ({"minItems": 2}, [1], "x must have at least 2 items, got a list: [1]"),
        ({"uniqueItems": True}, [1, 1], "x must have no item twice"),
        ({"pattern": "^a"}, "b", "x must match ^a, got text: 'b'"),
        ({"const": "a"}, "b", "x must be 'a', got text: 'b'"),
        ({"multipleOf": 2}, 3, "x must be a multiple of 2"),
        ({"type": ["null", "string"]}, 3, "x must be text or null"),
        ({"not": {"type": "null"}}, None, "x must not be what it is, got null"),
        ({"prefixItems": [True], "items": False}, [1, 2], "x[1] may not be given"),
        ({"propertyNames": {"pattern": "^a"}}, {"b": 1}, "x has a key that is not allowed"),
        ({"contains": {"type": "string"}}, [1], "x is not allowed (None of [1]"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1, "x must fit one alternative, but fits several"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]}, {}, "x must have a, or b and c"),
        ({"items": {"properties": {"a": {"enum": [1, None]}}}}, [{"a": 2}], "x[0].a must be one of 1, None"),
    ],
)
def test_every_kind_of_refusal_has_its_words(schema, value, says):
    with pytest.raises(ToolError) as refused:
        check_arguments("f", {"properties": {"x": schema}}, {"x": value})
    assert says in str(refused.value)


@pytest.mark.parametrize("rest", [True, {}, {"type": "integer"}])
def test_arguments_that_a_schema_does_not_name_are_taken_only_where_it_says_so(rest):
    check_arguments("f", {"properties": {}, "additionalProperties": rest}, {"x": 1})
    check_arguments("f", {"patternProperties": {"^x": {"type": "integer"}}}, {"x": 1})
    with pytest.raises(ToolError, match="It takes no arguments"):
        check_arguments("f", {"properties": {}}, {"x": 1})


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_the_draft_that_a_schema_names_is_the_one_it_is_read_by(draft):
    schema = {"$schema": draft, "properties": {"pair": {"items": [{"type": "integer"}], "additionalItems": False}}}
    if "draft-07" in draft:
        for named in (schema, {"properties": schema["properties"]}):
            with pytest.raises(ToolError, match="pair is not allowed"):
                check_arguments("f", named, {"pair": [1, 2]})
    else:
        with pytest.raises(ConfigError, match=r"invalid at properties\.pair\.items"):
            check_arguments("f", schema, {"pair": [1, 2]})


class SelfDescribed(Tool):
    """A tool with a schema of its own."""

    def __init__(self, schema):
        self.schema = schema

    def __call__(self, **arguments):
        return str(arguments)

    def spec(self, name):
        return ToolSpec(name, "Does.", self.schema)


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"properties": {"x": schema}}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"a": {"type": "strin"}}}, "the schema is invalid at properties.a.type"),
        ({"required": "a"}, "the schema is invalid at required"),
        ({"properties": {"a": {"pattern": "("}}}, "the schema is invalid at properties.a.pattern"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}}, "the reference '#/$defs/A' leads nowhere"),
        ({"properties": {"a": {"$ref": "https://example.com/a"}}}, "leads out of the schema"),
        ({"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, "leads back to itself"),
        ({"$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}}}, "leads back to itself"),
        ({"properties": {"a": {"$dynamicRef": "#a"}}}, "dynamic references are not followed"),
        ({"type": "array"}, 'the schema says type "array"'),
        ({"$schema": "https://example.com/my-own"}, "Unknown meta-schema"),
        ({"properties": {"a": {"enum": [{1}]}}}, "JSON cannot carry"),
        (nested(MAX_DEPTH + 1), "may be nested 64 deep"),
        ([], "must be a mapping"),
    ],
)
def test_a_schema_that_is_none_is_refused_before_anything_runs(schema, says):
    with pytest.raises(ConfigError) as refused:
        as_tools({"mine": SelfDescribed(schema)})
    assert str(refused.value).startswith("Tool 'mine': ") and says in str(refused.value)


def test_a_spec_always_names_every_argument_and_can_be_made_of_itself_again():
    schema = {
        "$ref": "#/$defs/All",
        "oneOf": [{"properties": {"b": {"$ref": "#/$defs/Word"}}, "required": ["b"]}, {"$ref": "#/$defs/Other"}],
        "$defs": {
            "All": {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            "Word": {"type": "string", "enum": ["x"]},
            "Other": {"properties": {"c": {"type": "number"}}, "anyOf": [{"$ref": "#"}]},
        },
    }
    spec = ToolSpec("f", "", schema)
    assert spec.parameters["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "string", "enum": ["x"]},
        "c": {"type": "number"},
    }
    assert spec.parameters["required"] == ["a"]
    assert ToolSpec("f", "", spec.parameters) == spec
    maybe = {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/Word"}, {"type": "null"}]}}, "$defs": schema["$defs"]}
    assert ToolSpec("f", "", maybe).parameters["properties"]["a"]["anyOf"][0] == {"type": "string", "enum": ["x"]}
    assert ToolSpec("f", "", {}).parameters == {"type": "object", "properties": {}, "required": []}


class Address(typing.TypedDict):
    street: str
    number: typing.NotRequired[int]


def send(to: Address, others: list[Address] | None = None, weight: float = math.inf, note: str = None) -> str:  # noqa: RUF013
    """Sends."""
    return json.dumps([to, others, note])


def test_typed_dictionaries_of_the_standard_library_and_defaults_of_none_are_taken():
    tool = as_tool(send)
    spec = tool.spec("send")
    check_schema(spec)
    assert "Infinity" not in json.dumps(spec.parameters) and spec.parameters["required"] == ["to"]
    given = {"to": {"street": "A"}, "others": [{"street": "B", "number": 3}], "note": None}
    assert tool.checked_arguments(spec, given) == given
    for wrong in ({"to": {"number": 3}}, {"to": {"street": "A"}, "others": [{"street": 4}]}):
        with pytest.raises(ToolError, match="street"):
            tool.checked_arguments(spec, wrong)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["string", "object", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS_OF_SCHEMAS), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=200)
@given(schema=st.dictionaries(st.sampled_from(WORDS_OF_SCHEMAS), junk, max_size=4))
def test_a_schema_of_junk_is_refused_by_name_or_can_be_told_and_held_against_calls(schema):
    try:
        spec = ToolSpec("mine", "", schema)
        check_schema(spec)
    except ConfigError as refused:
        words = str(refused)
    else:
        words = "Tool 'mine': "
        for parser in PARSERS.values():
            parser.describe([spec])
        with contextlib.suppress(ToolError):
            check_arguments("mine", spec.parameters, {"x": 1})
    assert words.startswith("Tool 'mine': ")


def test_validators_are_imported_only_when_a_tool_is_made():
    program = (
        "import sys, agentlab, agentlab.tools, agentlab.agents, agentlab.environments\n"
        "print({'pydantic', 'jsonschema_rs', 'jsonschema', 'docstring_parser', 'rstr'} & set(sys.modules))\n"
        "agentlab.tools.as_tools({'c': agentlab.tools.Calculator})\n"
        "print({'pydantic', 'jsonschema', 'rstr'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["set()", "{'pydantic'}"]
