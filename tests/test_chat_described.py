"""What the model is told of tools: every nested field, and an example call that the tool takes."""

import itertools
import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentlab.agents import ToolAgent
from agentlab.chat.described import signatures
from agentlab.chat.examples import example_call
from agentlab.chat.syntaxes import PARSERS
from agentlab.errors import ConfigError, ToolError
from agentlab.schemas import parts_of
from agentlab.tools import Tool, check_arguments
from agentlab.types import ToolSpec

CASES = json.loads((Path(__file__).parent / "fixtures/schemas.json").read_text(encoding="utf-8"))


WORDS_OF_TWO_PATTERNS = "string (matching a, and any (matching b))"


def arguments(schema, **more):
    """What a signature says between its brackets."""
    return signatures([ToolSpec("f", "", {**schema, **more})]).partition("(")[2].rpartition(")")[0]


def of(schema, **more):
    """What a signature says of one required argument."""
    return arguments({"properties": {"x": schema}, "required": ["x"]}, **more).removeprefix("x: ")


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_every_syntax_tells_the_fields_and_an_example_that_is_read_back_and_valid(name, case):
    spec = ToolSpec("tool", "Does it.", case["schema"])
    described = PARSERS[name].describe([spec])
    assert all(re.search(rf"\b{word}\b", described) for word in case["told"])
    example = example_call(spec)
    check_arguments("tool", case["schema"], example.arguments)
    shown = re.split(r"like this:\n|for example |a line like\n", described)[-1]
    assert PARSERS[name].parse(shown, [spec]).calls == (example,)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_an_agent_tells_the_fields_in_its_system_prompt(case):
    class Given(Tool):
        """Does it."""

        def __call__(self, **arguments):
            return ""

        def spec(self, name):
            return ToolSpec(name, "Does it.", case["schema"])

    prompt = ToolAgent(tool_map={"tool": Given()}).messages[0]["content"]
    assert all(re.search(rf"\b{word}\b", prompt) for word in case["told"])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": {"type": ["string", "null"]}}, "array of (string | null)"),
        ({"type": "object"}, "object"),
        ({}, "any"),
        (True, "any"),
        (False, "never"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "{any key: integer}"),
        ({"type": "object", "patternProperties": {"^a": {"type": "null"}}}, "{keys matching ^a: null}"),
        ({"prefixItems": [{"type": "number"}, {"const": "x"}], "minItems": 2}, '[number, "x"]'),
        ({"prefixItems": [{"type": "number"}], "items": {"type": "string"}}, "[number, ...string]"),
        ({"enum": ["a", 1, None]}, '"a" | 1 | null'),
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 9}, "integer (at least 1, below 9)"),
        ({"type": "string", "format": "date"}, "string (date)"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "array of string (all different)"),
        ({"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 3}]}, "integer (at least 3)"),
        ({"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b"}]}, WORDS_OF_TWO_PATTERNS),
        ({"type": "string", "not": {"const": ""}}, 'string (not "")'),
        ({"type": "array", "contains": {"const": 1}}, "array (with 1 in it)"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "object (keys are any (matching ^a))"),
        ({"oneOf": [{"const": "a", "description": "First."}, {"const": "b"}]}, '"a" | "b"'),
        (
            {"properties": {"k": {"type": "string"}}, "anyOf": [{"required": ["k"]}, {"required": ["l"]}]},
            "{k: string (optional), either (k) or (l)}",
        ),
        (
            {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["v"]}, "else": {"required": ["w"]}},
            "{if (k: 1 (optional)) then (v) else (w)}",
        ),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "{with a (b)}"),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "dependentSchemas": {"a": {"required": ["b"]}}},
            "{a: null (optional), with a (b)}",
        ),
    ],
)  # fmt: skip
def test_every_kind_of_schema_has_its_words(schema, words):
    assert of(schema) == words


def test_defaults_are_told_and_long_ones_cut():
    schema = {"properties": {"a": {"default": 3}, "b": {"default": None}, "c": {"default": "x" * 500}, "d": {}}}
    shown = arguments(schema, required=["b"])
    assert shown.startswith("a: any = 3, b: any = null (required), c: any = ")
    assert shown.endswith("…, d: any (optional)") and len(shown) < 200


def test_descriptions_of_nested_fields_stand_under_their_paths():
    edit = {"type": "object", "description": "One\n  edit.", "properties": {"old": {"description": "What is there."}}}
    shown = signatures([ToolSpec("f", "Edit.", {"properties": {"edits": {"type": "array", "items": edit}}})])
    assert shown.splitlines() == [
        "- f(edits: array of {old: any (optional)} (optional)): Edit.",
        "  edits[]: One edit.",
        "  edits[].old: What is there.",
    ]


NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}, "required": ["v"]}
LEAF = {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/Leaf"}, {"required": ["extra"]}]}}


def test_a_definition_is_told_once_and_named_where_it_comes_again():
    schema = {"properties": {"a": {"$ref": "#/$defs/Node"}, "b": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": NODE}}
    node = "Node {v: integer, next: Node (optional)}"
    assert arguments(schema, required=["a", "b"]) == f"a: {node}, b: Node"
    assert of({"$ref": "#"}) == "(as all arguments)"
    assert of({"$ref": "#/$defs/Leaf"}, **{"$defs": {"Leaf": LEAF}}).startswith("Leaf array of Leaf and {extra}")


def test_definitions_that_double_at_every_level_are_told_in_a_line():
    defs = {
        f"D{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/D{n + 1}"} for k in ("a", "b")}}
        for n in range(40)
    }
    shown = of({"$ref": "#/$defs/D0"}, **{"$defs": {**defs, "D40": {"type": "null"}}})
    assert len(shown) < 3000 and "D39 {a: null" in shown


def test_what_is_too_large_to_be_told_is_refused():
    wide = {"properties": {f"a{n}": {"type": "null"} for n in range(5000)}}
    with pytest.raises(ConfigError, match="Tool 'f': its arguments have more than 4096 parts"):
        signatures([ToolSpec("f", "", wide)])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": r"^[A-Z]{3}-\d{4}$"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "minLength": 9, "maxLength": 12},
        {"type": "string", "maxLength": 1},
        {"type": "integer", "minimum": 7},
        {"type": "integer", "exclusiveMaximum": 0, "multipleOf": 5},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.1},
        {"type": "number", "minimum": 0.2, "maximum": 0.3},
        {"type": "number", "maximum": -3.25},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "maxItems": 0, "items": {"type": "integer"}},
        {"type": "array", "contains": {"const": 7}},
        {"prefixItems": [{"type": "number"}, {"type": "boolean"}], "items": False, "minItems": 2},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
        {"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 1, "additionalProperties": False},
        {"type": "object", "properties": {"a": {"default": 3, "type": "string"}}, "required": ["a"]},
        {"type": "string", "examples": [3, "x"]},
        {"type": "string", "not": {"const": "..."}, "enum": ["...", "x"]},
        {"anyOf": [{"$ref": "#/$defs/Endless"}, {"type": "null"}]},
        {"$ref": "#/$defs/Tree"},
        {"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["v"]}, "type": "object"},
        {"type": "object", "dependentRequired": {"a": ["b"]}, "required": ["a"]},
    ],
)  # fmt: skip
def test_an_example_is_valid_whatever_the_schema_asks_for(schema):
    defs = {
        "Endless": {"type": "object", "properties": {"me": {"$ref": "#/$defs/Endless"}}, "required": ["me"]},
        "Tree": {"properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}, "required": ["of"]},
    }
    spec = ToolSpec("f", "", {"properties": {"x": schema}, "required": ["x"], "$defs": defs})
    check_arguments("f", spec.parameters, example_call(spec).arguments)


names = st.integers(0, 10**9).map(lambda number: f"field_{number}")
scalars = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "minimum": 3},
        {"type": "number", "maximum": -1},
        {"type": "boolean"},
        {"enum": ["a", "b"]},
        {"const": 7},
        {"type": ["integer", "null"]},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": "^[a-f]{2}[0-9]$"},
        {"type": "string", "minLength": 2, "maxLength": 5, "default": "abc"},
    ]
)
references = st.sampled_from(["A", "B", "C"]).map(lambda name: {"$ref": f"#/$defs/{name}"})


def objects(inner):
    """Objects whose required fields are never references, so that a value of them exists."""
    optional = inner | references | references.map(lambda part: {"allOf": [part], "description": "One."})
    return st.builds(
        lambda needed, further, more: {
            "type": "object",
            "properties": {**needed, **further},
            "required": list(needed.keys() - further.keys()),
            **more,
        },
        st.dictionaries(names, inner, max_size=2),
        st.dictionaries(names, optional, max_size=2),
        st.sampled_from([{}, {"additionalProperties": False}, {"description": "An object."}]),
    )


def both(first, second):
    """What is both, as a class and what it adds to its base."""
    return {"allOf": [{**first, "additionalProperties": True}, {"properties": second["properties"]}]}


def tagged(parts):
    """Objects that tell by a constant which of them they are."""
    return [
        {"type": "object", "properties": {"kind": {"const": number}, **part["properties"]}, "required": ["kind"]}
        for number, part in enumerate(parts)
    ]


nested = st.recursive(
    scalars,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda part: {"type": "array", "items": part}, inner | references),
        st.builds(lambda part: {"type": "array", "items": part, "minItems": 2}, inner),
        st.builds(lambda a, b: {"type": "array", "prefixItems": [a, b], "minItems": 2}, inner, inner),
        st.builds(lambda part: {"anyOf": [part, {"type": "null"}]}, inner | references),
        st.builds(lambda parts: {"oneOf": tagged(parts)}, st.lists(objects(inner), min_size=1, max_size=3)),
        st.builds(both, objects(inner), objects(inner)),
        st.builds(lambda part: {"type": "object", "additionalProperties": part}, inner | references),
    ),
    max_leaves=8,
)  # fmt: skip


def renamed(schema, numbers):
    """The schema with names of fields that no two of its objects share."""
    if isinstance(schema, list):
        return [renamed(part, numbers) for part in schema]
    if not isinstance(schema, dict):
        return schema
    new = {name: name if name == "kind" else f"field_{next(numbers)}" for name in schema.get("properties", {})}
    made = {key: renamed(part, numbers) for key, part in schema.items() if key not in ("properties", "required")}
    if "properties" in schema:
        made["properties"] = {new[name]: renamed(part, numbers) for name, part in schema["properties"].items()}
        made["required"] = [new[name] for name in schema.get("required", ())]
    return made


@st.composite
def tool_schemas(draw):
    schema = draw(objects(nested))
    choice = draw(st.sampled_from(["none", "oneOf", "anyOf", "allOf", "$ref"]))
    if choice in ("oneOf", "anyOf"):
        schema = {**schema, choice: tagged(draw(st.lists(objects(nested), min_size=1, max_size=2)))}
        schema.pop("additionalProperties", None)
    schema["$defs"] = {name: draw(objects(nested)) for name in ("A", "B", "C")}
    if choice == "allOf":
        schema |= {"allOf": [{"$ref": "#/$defs/A"}]}
    if choice == "$ref":
        schema = {"$ref": "#/$defs/A", "$defs": schema["$defs"]}
    if choice in ("allOf", "$ref"):
        schema.pop("additionalProperties", None)
        schema["$defs"]["A"].pop("additionalProperties", None)
    return renamed(schema, itertools.count())


def fields_of(schema):
    """The names of all fields that a value of the schema may have."""
    reached, waiting = set(), [{key: part for key, part in schema.items() if key != "$defs"}]
    fields = set()
    while waiting:
        for part in parts_of(waiting.pop()):
            fields |= set(part.get("properties", {}))
            name = part.get("$ref", "").removeprefix("#/$defs/")
            if name and name not in reached:
                reached.add(name)
                waiting.append(schema["$defs"][name])
    return fields


@given(schema=tool_schemas())
def test_any_schema_is_told_with_every_field_and_its_example_is_valid(schema):
    properties = [part["properties"] for part in parts_of(schema) if "properties" in part]
    assume(len(properties) < 60)
    spec = ToolSpec("f", "Does.", schema)
    shown = signatures([spec])
    words = set(re.findall(r"\w+", shown))
    assert fields_of(schema) <= words
    assert len(shown) < 200 * (20 + sum(1 for _ in parts_of(schema)))
    check_arguments("f", schema, example_call(spec).arguments)
    again = ToolSpec("f", "Does.", spec.parameters)
    assert again.parameters == spec.parameters


def places_in(value, path=()):
    """The paths of all values in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(inner, (*path, key))


@given(schema=tool_schemas(), data=st.data())
def test_a_call_in_which_one_value_is_another_is_taken_or_refused_in_words_that_name_the_place(schema, data):
    spec = ToolSpec("f", "Does.", schema)
    call = json.loads(json.dumps(example_call(spec).arguments))
    *path, last = data.draw(st.sampled_from([one for one in places_in(call) if one] or [("new",)]))
    target = call
    for word in path:
        target = target[word]
    target[last] = data.draw(
        st.sampled_from([None, True, -1, 10**30, 2.5, "", "é", [], [[]], {}, {"kind": 9}, {"z": {}}])
    )
    refused = ""
    try:
        check_arguments("f", schema, call)
    except ToolError as error:
        refused = str(error)
    valid = jsonschema_rs.validator_for(spec.parameters).is_valid(call)
    named = set(spec.parameters["properties"]) >= call.keys()
    assert (refused == "") == (valid and (named or "additionalProperties" in spec.parameters))
    assert not refused or (refused.startswith("f") and len(refused) < 400)
    assert not refused or (path or [last])[0] in refused or "new" in call
