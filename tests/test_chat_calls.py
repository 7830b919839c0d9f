"""Calls as models really write them: read exactly, or an error that the model sees; never something else."""

import contextlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentlab.bench import written
from agentlab.chat import opened_thought
from agentlab.chat.literals import Malformed, literal, python_value, unescape
from agentlab.chat.syntaxes import PARSERS
from agentlab.chat.typed import typed
from agentlab.types import ToolCall, ToolSpec

FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "tool_calls.json").read_text())
TOOLS = tuple(ToolSpec(tool["name"], "", tool["parameters"]) for tool in FIXTURE["tools"])
CASES = FIXTURE["cases"]
OSLO = ToolCall("get_weather", {"city": "Oslo"})

nasty_text = st.lists(st.sampled_from(written.FRAGMENTS) | st.text(max_size=4), max_size=6).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | nasty_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(nasty_text, inner, max_size=3),
    max_leaves=6,
)


def can_run(call):
    """Whether the tool that is named would take the call; it gets to hear why not, else."""
    required = [tool.parameters["required"] for tool in written.TOOLS if tool.name == call.name]
    return call.error is None and bool(required) and set(required[0]) <= set(call.arguments)


def calls_of(name, text):
    return PARSERS[name].parse(text, TOOLS).calls


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['parser']}: {case['why']}")
def test_the_stored_cases_are_read_as_they_are_meant(case):
    parsed = PARSERS[case["parser"]].parse(opened_thought(case["prompt_end"]) + case["text"], TOOLS)
    assert list(parsed.calls) == [ToolCall(call["name"], call["arguments"]) for call in case["right"]["calls"]]
    assert parsed.text == case["right"].get("text", parsed.text)
    assert parsed.reasoning == case["right"].get("reasoning", "")


# -- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", written.TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 3))
def test_calls_written_in_a_published_format_are_read_back_exactly(form, seed, count):
    rng = random.Random(seed)
    calls = tuple(written.random_call(rng) for _ in range(count))
    assume(all(written.can_say(form, call) for call in calls))
    text = written.written(form, calls)
    assert PARSERS[written.TEMPLATES[form][0]].parse(text, written.TOOLS).calls == calls


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=100, deadline=None)
@given(path=nasty_text, content=nasty_text)
def test_a_rendered_call_is_read_back_whatever_its_texts_hold(name, path, content):
    call = ToolCall("write", {"path": path, "content": content})
    assume(written.can_say(name, call))
    assert calls_of(name, PARSERS[name].render(call)) == (call,)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=100, deadline=None)
@given(command=nasty_text, before=st.text("abc .,\n", max_size=12), after=st.text("abc .,\n", max_size=12))
def test_prose_around_a_call_changes_nothing_in_it(name, command, before, after):
    call = ToolCall("bash", {"command": command})
    assume(written.can_say(name, call))
    prose = f"{before}\n" if before else ""
    parsed = PARSERS[name].parse(f"{prose}{PARSERS[name].render(call)}\n{after}", TOOLS)
    assert parsed.calls == (call,)


@pytest.mark.parametrize("form", written.TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_a_call_that_was_cut_is_the_call_or_an_error_and_never_another_call(form, seed, share):
    call = written.random_call(random.Random(seed))
    assume(written.can_say(form, call))
    text = written.written(form, [call])
    cut = text[: int(len(text) * share)]
    read = PARSERS[written.TEMPLATES[form][0]].parse(cut, written.TOOLS).calls
    assert [other for other in read if can_run(other)] in ([], [call])


@settings(max_examples=300, deadline=None)
@given(value=json_values)
def test_a_literal_is_read_as_python_reads_it(value):
    assert python_value(repr(value)) == value
    assert python_value(literal(value)) == value


@given(text=st.text())
def test_a_literal_is_read_or_refused_whatever_the_text(text):
    with contextlib.suppress(Malformed):
        assert json.dumps(python_value(text))


def test_the_bench_reads_every_text_back():
    assert written.misread(660, seed=1) == []


# -- Python -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("search('cats', 3)", {"query": "cats", "k": 3}),
        ("search('cats', k=-3)", {"query": "cats", "k": -3}),
        ("x = search('cats')\nprint(x)", {"query": "cats"}),
        ("result: dict = search('cats')", {"query": "cats"}),
        ("print(search(query='cats', k=0x10))", {"query": "cats", "k": 16}),
        ("import json\n# first\nsearch('a' 'b', k=1_000)  # why", {"query": "ab", "k": 1000}),
        ('search("""a\n"b", k=2""")', {"query": 'a\n"b", k=2'}),
        ("search('''```\nx\n```''')", {"query": "```\nx\n```"}),
        (r"search(r'\d+\n', 1)", {"query": r"\d+\n", "k": 1}),
        (r"search('it\'s \u00e9 \x41 \ud83d\ude00 \d')", {"query": r"it's é A 😀 \d"}),
        ("search(\n    'cats',\n    k=3,\n)", {"query": "cats", "k": 3}),
        ("search({'query': 'cats'})", {"query": "cats"}),
    ],
)
def test_python_literals_are_read_as_python_reads_them(code, arguments):
    assert calls_of("gemma", f"```tool_code\n{code}\n```") == (ToolCall("search", arguments),)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("search(query=words)", "must be a literal"),
        ("search('a' + 'b')", "literal alone"),
        ("search(f'{x}')", "without the prefix"),
        ("search(query=get_weather('Oslo'))", "must be a literal"),
        ("search('a', 1, 2)", "written name=value"),
        ("search('a', query='b')", "each once"),
        ("search(k=1, 'a')", "all arguments must be named"),
        ("search(query='a', query='b')", "given twice"),
        ("write('a')", "there is none for content"),
        ("search('a') + 1", "nothing of it was run"),
        ("for x in [1]:\n    search('a')", "nothing of it was run"),
        ("if False:\n    search('a')", "nothing of it was run"),
        ("a, b = search('a'), search('b')", "nothing of it was run"),
        ("search(k=007)", "no number"),
        ("search(k=1e999)", "too large"),
        ("search('\\x4')", "cut short"),
        ("search({1: 'a'})", "keys of a dictionary must be texts"),
        ("search('a", "quotes of a text must be closed"),
        ("search('a'", "closing ')'"),
        ("search(" + "[" * 99, "nested too deeply"),
    ],
)
def test_code_that_is_no_literal_call_is_one_error(code, error):
    (call,) = calls_of("gemma", f"```tool_code\n{code}\n```" if not code.endswith("[") else f"```tool_code\n{code}")
    assert call.error is not None and error in call.error


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("search('cats', 3)", ToolCall("search", {"query": "cats", "k": 3})),
        ("bash(ls -la | wc)", ToolCall("bash", {"command": "ls -la | wc"})),
        ("bash(it's (not) so)", ToolCall("bash", {"command": "it's (not) so"})),
        ("search(query=cats and dogs, k=3)", ToolCall("search", {"query": "cats and dogs", "k": 3})),
        ("(I use bash(ls) now)", ToolCall("bash", {"command": "ls"})),
        ("write('a', '''x\ny''')", ToolCall("write", {"path": "a", "content": "x\ny"})),
        ("log(3, True, ['a'], None)", ToolCall("log", {"day": 3, "ok": True, "tags": ["a"], "lim": None})),
        ('get_weather({"city": "Oslo"})', OSLO),
    ],
)
def test_short_calls_are_literals_or_plain_text(text, call):
    assert calls_of("short", text) == (call,)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("search(cats, 3)", "texts be quoted"),
        ("search(query=a, b, k=3)", "must be quoted"),
        ("bash(echo 'a)b')", "must be quoted"),
        ("bash(say :))", "must be quoted"),
        ("bash(make (all)", "missing"),
        ("search(query=get_weather('Oslo'))", "must be a literal"),
        ("search(query='a' + 'b')", "literal alone"),
        ("log(day=2+3)", "literal alone"),
        ("bash(FOO=1 make)", "no argument 'FOO'"),
        ("write(path='a', content=')now() )", "must be closed"),
        ("write(path='a', content='''never closed\nbash(ls)", "must be closed"),
    ],
)
def test_a_short_call_whose_meaning_cannot_be_told_is_one_error(text, error):
    (call,) = calls_of("short", text)
    assert call.error is not None and error in call.error


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('Action: get_weather\nAction Input: ```json\n{\n "city": "Oslo"\n}\n```\nObservation: x', OSLO),
        ('Action: get_weather\nAction Input:\n{\n "city": "Oslo"\n}\nObservation: x', OSLO),
        ("Action: get_weather\nAction Input: {'city': 'Oslo'}", OSLO),
        ('Action: get_weather\nAction Input: "Oslo"', OSLO),
        ("Action: bash\nAction Input: ls\ncd x\nObservation: y", ToolCall("bash", {"command": "ls\ncd x"})),
        ("Action: bash\nAction Input:\n```sh\nls\ncd x\n```\n", ToolCall("bash", {"command": "ls\ncd x"})),
        ('Action: search["a]b", 3]', ToolCall("search", {"query": "a]b", "k": 3})),
        ("Action: now\nThought: ok", ToolCall("now")),
    ],
)
def test_react_inputs_over_several_lines_and_in_fences(text, call):
    assert calls_of("react", text) == (call,)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Action: search the web", "Action Input"),
        ('Action: search\nAction Input: {"query": "a"', "cannot be read"),
        ('Action: search\nAction Input: {"query": "a"} or so', "its line must end"),
        ("Action: bash\nAction Input: ```\nls", "fence"),
    ],
)
def test_a_react_input_that_cannot_be_used_is_one_error(text, error):
    (call,) = calls_of("react", text)
    assert call.error is not None and error in call.error


# -- JSON -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "calls", "rest"),
    [
        (
            "hermes",
            '<tool_call>{"name": "now", "arguments": {}}\n{"name": "bash", "arguments": {"command": "<tool_call>"}}'
            "</tool_call> ok",
            [ToolCall("now"), ToolCall("bash", {"command": "<tool_call>"})],
            "ok",
        ),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}}\nNow.', [ToolCall("now")], "Now."),
        ("llama3", 'Now {"name": "now", "parameters": {}}; {"name": "now"}', [ToolCall("now")] * 2, "Now"),
        ("llama3", '[{"name": "now", "parameters": {}}]', [ToolCall("now")], ""),
        (
            "llama3",
            '<|python_tag|>{"name": "other", "parameters": {}}; {"name": "now"}',
            [ToolCall("other"), ToolCall("now")],
            "",
        ),
        ("llama3", '<|python_tag|>bash.call(command="a)b")', [ToolCall("bash", {"command": "a)b"})], ""),
        ("json", 'Here:\n```json\n{"name": "now", "arguments": {}}\n```', [ToolCall("now")], "Here:"),
    ],
)
def test_json_decides_where_a_call_ends(name, text, calls, rest):
    parsed = PARSERS[name].parse(text, TOOLS)
    assert (list(parsed.calls), parsed.text) == (calls, rest)


@pytest.mark.parametrize("name", ["json", "llama3"])
@pytest.mark.parametrize(
    "answer",
    [
        '{"people": [{"name": "bash", "arguments": {"command": "ls"}}]}',
        '[{"name": "Ann"}, {"name": "Bob"}]',
        '{"name": "Ann", "age": 3',
        'She is {"name": "Ann", "parameters": {}}',
        "[]",
        "{}",
        "null",
    ],
)
def test_an_answer_in_json_is_text(name, answer):
    parsed = PARSERS[name].parse(answer, TOOLS)
    assert (parsed.text, parsed.calls) == (answer, ())


@pytest.mark.parametrize("name", ["json", "llama3"])
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "get_weather", "city": "Oslo"}', "stand in an object"),
        ('{"name": "now", "arguments": {}, "parameters": {}}', "not both"),
        ('{"name": "bash", "arguments": {"command": "x', "cannot be read"),
        ('I call {"name": "bash", "arguments": {"command": "x', "cannot be read"),
    ],
)
def test_a_json_call_that_cannot_be_used_is_one_error(name, text, error):
    (call,) = calls_of(name, text)
    assert call.error is not None and error in call.error


def test_text_between_the_tags_beside_json_is_one_error():
    (call,) = calls_of("hermes", '<tool_call>{"name": "now", "arguments": {}} and so on</tool_call>')
    assert "nothing but JSON" in str(call.error)


# -- values in tags -----------------------------------------------------------------------------------


def coder(*values):
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function=write>\n{inside}</function>\n</tool_call>"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "\n",
        " x ",
        "a</parameter>b",
        "</parameter>",
        "</function>",
        "</tool_call>",
        "<function=x",
        "a</function>\nb",
    ],
)
def test_tags_inside_a_value_never_cut_it(value):
    call = ToolCall("write", {"path": value, "content": value})
    assert calls_of("qwen3_coder", coder(("path", value), ("content", value))) == (call,)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "<tool_call><function=write>\n<parameter=path>\nx\n<parameter=content>\n3\n</parameter>\n</function>",
            "closed",
        ),
        ('<tool_call><function=bash>{"command": "ls"}</function></tool_call>', "closed by </function>"),
        (coder(("path", "a"), ("path", "b")), "given twice"),
    ],
)
def test_a_call_in_tags_that_cannot_be_used_is_one_error(text, error):
    (call,) = calls_of("qwen3_coder", text)
    assert call.error is not None and error in call.error and not call.arguments


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["integer", "null"]}, None),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ("3", {"type": ["string", "null"]}, "3"),
        ("3", {"oneOf": [{"type": "string"}, {"type": "number"}]}, 3),
        ("3", {"enum": ["3", "4"]}, "3"),
        ("3", {"const": 3}, 3),
        ("3", {"$ref": "#/$defs/word"}, "3"),
        ("3", {"allOf": [{"$ref": "#/$defs/word"}, {"maxLength": 9}]}, "3"),
        ("3", {"$ref": "#/$defs/self"}, 3),
        ("['a']", {}, ["a"]),
        ("['a']", {"type": "string"}, "['a']"),
        ("plain", True, "plain"),
        ("", {"type": "string"}, ""),
    ],
)
def test_a_value_without_quotes_is_read_by_its_schema(text, schema, value):
    root = {"$defs": {"word": {"type": "string"}, "self": {"$ref": "#/$defs/self"}}}
    read = typed(text, schema, root)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("parameters", [{}, {"properties": None, "required": None}, {"properties": {"a": True}}])
def test_a_tool_with_an_odd_schema_is_no_reason_to_raise(name, parameters):
    tools = (ToolSpec("f", "", parameters),)
    call = ToolCall("f", {"a": "x y"})
    assert PARSERS[name].parse(PARSERS[name].render(call), tools).calls[0].name == "f"


def test_an_escape_that_python_does_not_know_stays():
    assert unescape(r"\d\.\ \"") == r"\d\.\ " + '"'


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("content", ["<think>a</think>b", "a</think>b", "}</think>b", "x\n</think>y <think>"])
@pytest.mark.parametrize("thought", ["", "<think>\nI write.\n</think>\n\n"])
def test_reasoning_tags_inside_an_argument_are_its_text(name, content, thought):
    call = ToolCall("write", {"path": "a", "content": content})
    parsed = PARSERS[name].parse(f"{thought}{PARSERS[name].render(call)}", TOOLS)
    assert (parsed.text, parsed.calls, parsed.reasoning) == ("", (call,), "I write." if thought else "")


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("form", ["<think>{}", "<think>{}</think>", "I could {}</think>"])
def test_a_call_named_in_a_thought_is_no_call(name, form):
    parsed = PARSERS[name].parse(form.format("\n" + PARSERS[name].render(OSLO) + "\nperhaps"), TOOLS)
    assert (parsed.text, parsed.calls) == ("", ())
