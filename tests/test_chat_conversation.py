"""Conversations as people have them: what is read of a row, and what is refused by row and key."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.chat import Said, read_conversation
from agentlab.errors import ConfigError
from agentlab.types import ToolCall

USER = {"role": "user", "content": "6 * 7?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "6 * 7"}'}}
TOOL = {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {"type": "object"}}}


def said(**keys):
    """The assistant's message of a conversation of two, as it is read."""
    read = read_conversation([USER, {"role": "assistant", "content": "42", **keys}], 0).messages[1]
    assert isinstance(read, Said)
    return read


@pytest.mark.parametrize("arguments", ['{"expression": "6 * 7"}', {"expression": "6 * 7"}])
@pytest.mark.parametrize("wrapped", [True, False])
def test_calls_are_read_with_arguments_as_json_or_as_a_dictionary_wrapped_or_not(arguments, wrapped):
    call = {"name": "calculator", "arguments": arguments}
    read = said(content=None, tool_calls=[{"type": "function", "function": call} if wrapped else call])
    assert [one.call for one in read.calls] == [ToolCall("calculator", {"expression": "6 * 7"})]
    assert read.content == ""


@pytest.mark.parametrize("arguments", [None, "", "  ", "{}", {}])
def test_a_call_without_arguments_has_none(arguments):
    assert said(tool_calls=[{"name": "now", "arguments": arguments}]).calls[0].call == ToolCall("now", {})


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_a_thought_is_read_under_each_of_its_keys(key):
    assert said(**{key: "\nSix sevens.\n"}) == Said("42", "Six sevens.")


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ("<think>\nHm.\n</think>\n\n42", Said("42", "Hm.")),
        ("Hm.</think>42", Said("42", "Hm.")),
        ("<think></think>42", Said("42")),
        ("Write <think> and </think>.", Said("Write <think> and </think>.")),
    ],
)
def test_a_thought_in_the_content_is_told_apart(content, read):
    assert said(content=content) == read


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_text_parts_are_joined_whoever_wrote_them(role):
    parts = [{"type": "text", "text": "a", "image_url": None}, {"text": "b"}, "c"]
    first, last = {"role": role, "content": parts}, {"role": "assistant", "content": "x"}
    read = read_conversation([USER, first, last], 0).messages[1]
    assert (read.content if isinstance(read, Said) else read["content"]) == "abc"


@given(weight=st.floats(0, 1e6) | st.integers(0, 5) | st.booleans())
def test_a_turn_has_the_weight_that_is_given(weight):
    turns = [USER, {"role": "assistant", "content": "a", "weight": weight}, {"role": "assistant", "content": "b"}]
    first, second = read_conversation(turns, 0).messages[1:]
    assert isinstance(first, Said) and isinstance(second, Said)
    assert (first.weight, second.weight) == (float(weight), 1.0)
    assert said(weight=np.float32(0.5)).weight == 0.5 and said(weight=None).weight == 1.0


def test_results_get_name_and_id_of_the_call_that_they_answer():
    second = {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL, second]}
    by_id = [{"role": "tool", "tool_call_id": id, "content": id} for id in ("c2", "c1")]
    read = read_conversation([USER, calls, *by_id], 0).messages[2:]
    assert read == (
        {"role": "tool", "name": "now", "tool_call_id": "c2", "content": "c2"},
        {"role": "tool", "name": "calculator", "tool_call_id": "c1", "content": "c1"},
    )
    in_order = [{"role": "tool", "content": "42"}, {"role": "tool", "content": "noon"}]
    read = read_conversation([USER, calls, *in_order], 0).messages[2:]
    assert [message["name"] for message in read if isinstance(message, dict)] == ["calculator", "now"]


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [TOOL["function"]]])
def test_tools_of_a_row_are_read_as_a_list_as_json_and_without_their_wrapping(tools):
    read = read_conversation({"messages": [USER, {"role": "assistant", "content": "x"}], "tools": tools}, 0)
    assert read.tools == (TOOL,) and read.specs[0].name == "calculator"


def test_keys_that_hold_nothing_and_columns_about_the_row_do_not_matter():
    empty = {"tool_calls": None, "refusal": None, "annotations": [], "name": "", "audio": None, "weight": None}
    message = {"role": "assistant", "content": "x", **empty}
    row = {"messages": [USER, message], "id": 7, "source": "web", "prompt": "6 * 7?", "tools": None, "images": []}
    assert read_conversation(row, 0) == read_conversation([USER, {"role": "assistant", "content": "x"}], 0)


REFUSED_MESSAGES = [
    ({"tool_calls": [{"name": "f", "arguments": "{"}]}, r"tool_calls\[0\]: the arguments of 'f' are no JSON"),
    ({"tool_calls": [{"name": "f", "arguments": "[1]"}]}, r"tool_calls\[0\]: the arguments of 'f' must be a JSON obj"),
    ({"tool_calls": [{"name": "f", "arguments": '{"a": 1, "a": 2}'}]}, "a key is given twice"),
    ({"tool_calls": [{}]}, r"tool_calls\[0\] must be"),
    ({"tool_calls": [{"type": "custom", "function": {"name": "f"}}]}, r"tool_calls\[0\] must be"),
    ({"tool_calls": [{"function": {"name": "f", "args": {}}}]}, r"tool_calls\[0\] must be"),
    ({"tool_calls": {"name": "f"}}, "tool_calls must be a list"),
    ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "part 0 of the content must be"),
    ({"content": [{"type": "text", "text": "x", "cache_control": {}}]}, "part 0 of the content must be"),
    ({"content": [{"type": "refusal", "refusal": "no"}]}, "part 0 of the content must be"),
    ({"content": {"text": "x"}}, "content must be text or a list"),
    ({"content": None}, "content must be text, got None"),
    ({"content": "<think>Hm."}, "never ends"),
    ({"content": "<think>Hm.</think>42", "reasoning": "Hm."}, "under reasoning and in its content"),
    ({"reasoning": "a", "thinking": "b"}, "different texts under reasoning and thinking"),
    ({"reasoning_content": "<think>a"}, "without tags"),
    ({"reasoning": ["a"]}, "reasoning must be text"),
    ({"refusal": "I will not."}, "the key 'refusal'"),
    ({"function_call": {"name": "f", "arguments": "{}"}}, "the key 'function_call'"),
    ({"audio": {"id": "x"}}, "the key 'audio'"),
    ({"name": "Bob"}, "the key 'name'"),
    ({"reasoning_contents": "a"}, "the key 'reasoning_contents'.*Did you mean.*reasoning_content"),
    ({"train": False}, "the key 'train'"),
    ({"weight": -1}, "weight must be a number of 0 or more, got -1"),
    ({"weight": float("nan")}, "weight must be a number of 0 or more, got nan"),
    ({"weight": "1"}, "weight must be a number of 0 or more, got '1'"),
]


@pytest.mark.parametrize(("keys", "reason"), REFUSED_MESSAGES)
def test_what_would_not_be_honoured_is_refused_with_row_and_message(keys, reason):
    with pytest.raises(ConfigError, match=f"Conversation 7, message 1.*{reason}"):
        read_conversation([USER, {"role": "assistant", "content": "42", **keys}], 7)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "tool", "tool_call_id": "c9", "content": "42"}, "tool_call_id 'c9', but the calls .* are c1: calcul"),
        ({"role": "tool", "name": "now", "content": "42"}, "name 'now', but the calls .* are c1: calculator"),
        ({"role": "tool", "content": [{"type": "image"}]}, "part 0"),
        ({"role": "user", "content": "x", "weight": 1}, "only the assistant|only what the assistant"),
        ({"role": "user", "content": "x", "name": "Bob"}, "the key 'name'"),
        ({"role": "", "content": "x"}, "the role must be a word"),
    ],
)
def test_messages_of_others_are_refused_likewise(message, reason):
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    with pytest.raises(ConfigError, match=f"Conversation 7, message 2.*({reason})"):
        read_conversation([USER, calls, message], 7)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("hello", "must be a list of messages"),
        ({"conversations": [{"from": "human", "value": "x"}]}, "must be a list of messages"),
        ([{"content": "hello"}], "must be a list of messages"),
        ([USER], "must have an assistant's turn"),
        ([{"role": "assistant", "content": "hello"}], "must have an assistant's turn"),
        ([USER, {"role": "assistant", "content": "x", "weight": 0}], "every turn of the assistant has the weight 0"),
        ({"tools": "[", "messages": [USER, {"role": "assistant", "content": "x"}]}, '"tools" is no JSON'),
        ({"tools": [{"name": 1}], "messages": [USER, {"role": "assistant", "content": "x"}]}, r"tools\[0\] must be"),
        ({"images": ["x"], "messages": [USER, {"role": "assistant", "content": "x"}]}, "'images' beside its messages"),
        ({"system": "S", "messages": [USER, {"role": "assistant", "content": "x"}]}, "'system' beside its messages"),
    ],
)
def test_rows_are_refused_with_their_number(row, reason):
    with pytest.raises(ConfigError, match=f"Conversation 7.*{reason}"):
        read_conversation(row, 7)
