"""Tool-call syntaxes: what is written is read back, and no input raises."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.chat import ToolCallParser, parser_named
from agentlab.chat.syntaxes import PARSERS
from agentlab.errors import ConfigError
from agentlab.types import ToolCall, ToolSpec


def spec(name: str, **types: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return ToolSpec(name, f"Does {name}.", {"type": "object", "properties": properties, "required": list(types)})


CALCULATOR = spec("calculator", expression="string")
BUY = spec("buy", item="string", count="integer", gift="boolean")
TOOLS = (CALCULATOR, BUY)
FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", ">", "<think>"),
    *("</think>", '{"name": ', '"calculator"', '"arguments": ', "{", "}", "[", "]", "(", ")", ",", ":", ";", '"', "'"),
    *(
        "Action:",
        "Action Input:",
        "calculator",
        "buy",
        "calculator(",
        "<|python_tag|>",
        ".call(",
        "```tool_code",
        "```",
    ),
    *("<start_function_call>", "<end_function_call>", "<escape>", "call:", "print(", "=", "\\", "\n", " ", "null"),
    *("NaN", "1e999", "9" * 50, "\ud800", "\0", "é", "item", "true"),
)

json_values = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12)
any_calls = st.builds(
    ToolCall, st.just("buy"), st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), json_values, max_size=4)
)


@pytest.mark.parametrize("name", PARSERS)
def test_ten_thousand_hostile_texts_raise_nothing(name):
    rng = random.Random(name)
    for _ in range(10_000):
        text = "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 12)))
        parsed = PARSERS[name].parse(text, TOOLS if rng.random() < 0.5 else ())
        assert all(isinstance(call, ToolCall) for call in parsed.calls)


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_arbitrary_text_raises_nothing(name, text):
    assert isinstance(PARSERS[name].parse(text, TOOLS).text, str)


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("fragment", [*FRAGMENTS, '{"a":', "calculator(\n", "Action: a[\n", "Action:  ", "a=" * 3])
def test_a_fragment_repeated_many_times_takes_linear_time(name, fragment):
    text = (fragment * (100_000 // len(fragment) + 1))[:100_000]
    start = time.process_time()
    PARSERS[name].parse(text, TOOLS)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("name", ["hermes", "json", "llama3"])
@given(call=any_calls)
def test_a_rendered_json_call_is_read_back_as_it_was(name, call):
    assert PARSERS[name].parse(PARSERS[name].render(call), TOOLS).calls == (call,)


@pytest.mark.parametrize("name", PARSERS)
@given(item=st.from_regex(r"[a-z][a-z 0-9+*]{0,10}[a-z]", fullmatch=True), count=st.integers(), gift=st.booleans())
def test_every_syntax_reads_back_a_call_with_typed_arguments(name, item, count, gift):
    call = ToolCall("buy", {"item": item, "count": count, "gift": gift})
    parsed = PARSERS[name].parse(PARSERS[name].render(call), TOOLS)
    assert parsed.calls == (call,)
    assert parsed.text == ""


@pytest.mark.parametrize("name", PARSERS)
@given(expression=st.from_regex(r"[0-9(][0-9+*/ ()-]{0,20}", fullmatch=True).map(str.strip).filter(bool))
def test_every_syntax_reads_back_a_call_with_one_text(name, expression):
    balanced = ToolCall("calculator", {"expression": expression})
    assert PARSERS[name].parse(PARSERS[name].render(balanced), TOOLS).calls == (balanced,)


@pytest.mark.parametrize("name", PARSERS)
def test_the_description_shows_each_tool_and_a_call_that_the_syntax_reads(name):
    described = PARSERS[name].describe(TOOLS)
    assert "calculator(expression: string)" in described
    assert "Does buy." in described
    shown = [call.name for call in PARSERS[name].parse(described.partition("To ")[2], TOOLS).calls]
    assert name in ("json", "llama3") or "calculator" in shown


@pytest.mark.parametrize("name", PARSERS)
def test_without_tools_there_is_nothing_to_describe(name):
    assert PARSERS[name].describe(()) == ""


@pytest.mark.parametrize("name", PARSERS)
def test_an_ordinary_answer_is_no_call(name):
    parsed = PARSERS[name].parse("The answer (I think) is 132.", TOOLS)
    assert (parsed.text, parsed.calls) == ("The answer (I think) is 132.", ())


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("hermes", 'Let me see. <tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>', "1"),
        ("hermes", '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}', "1"),
        ("json", '```json\n{"name": "calculator", "arguments": {"expression": "1"}}\n```', "1"),
        ("json", '{"name": "calculator", "parameters": {"expression": "1"}}', "1"),
        ("react", "Thought: I must.\nAction: calculator[(1 + 2) * 3]", "(1 + 2) * 3"),
        ("react", "Action: calculator\nAction Input: 1 + 2\nObservation: 3", "1 + 2"),
        ("react", 'Action: calculator\nAction Input: {"expression": "1"}', "1"),
        ("short", "I use calculator((1 + 2) * 3) now.", "(1 + 2) * 3"),
        ("short", 'calculator(expression="1, 2")', "1, 2"),
        ("short", "calculator('7')", "7"),
        ("short", "calculator(7)", "7"),
        ("qwen3_coder", "<function=calculator>\n<parameter=expression>\n1\n</parameter>\n</function>", "1"),
        ("llama3", '<|python_tag|>{"name": "calculator", "parameters": {"expression": "1"}}', "1"),
        ("llama3", '<|python_tag|>calculator.call(expression="1")', "1"),
        ("gemma", '```tool_code\nprint(calculator(expression="1"))\n```', "1"),
        ("gemma", "```tool_code\ncalculator('1 + 2')\n```", "1 + 2"),
        (
            "gemma",
            "<start_function_call>call:calculator{expression:<escape>1, 2<escape>}<end_function_call>",
            "1, 2",
        ),
    ],
)
def test_what_models_write_is_read(name, text, call):
    assert PARSERS[name].parse(text, TOOLS).calls == (ToolCall("calculator", {"expression": call}),)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("hermes", "<tool_call></tool_call>", "empty"),
        ("hermes", '<tool_call>{"name": "calcul', "cannot be read"),
        ("hermes", "<tool_call>[1]</tool_call>", "must be a JSON object, got list"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', 'text under "name"'),
        ("hermes", '<tool_call>{"name": "calculator", "arguments": null}</tool_call>', "got null"),
        ("hermes", '<tool_call>{"name": "calculator", "arguments": "1"}</tool_call>', "got str"),
        ("hermes", '<tool_call>{"name": "a", "name": "b"}</tool_call>', "given twice"),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN is no JSON value"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
        ("json", '{"name": "calculator", ', "cannot be read"),
        ("react", "Action: calculator[1 + 2", "closing ']' of the call is missing"),
        ("short", "calculator(1 + 2", "closing ')' of the call is missing"),
        ("short", "buy(3)", "written name=value, for item, count, gift"),
        ("short", "buy(item=1, item=2)", "given twice"),
        ("qwen3_coder", "<tool_call>\n</tool_call>", "<function=name>"),
        ("qwen3_coder", "<function=buy>\n<parameter=item>\npen", "<parameter=name>value</parameter>"),
        ("llama3", "<|python_tag|>1 + 2", "JSON object or name.call"),
        ("gemma", "```tool_code\n1 + 2\n```", "must contain a call"),
        ("gemma", "<start_function_call>call:buy{item:<escape>x", "closing '}'"),
    ],
)
def test_a_call_that_cannot_be_used_says_why(name, text, error):
    (call,) = PARSERS[name].parse(text, TOOLS).calls
    assert call.error is not None
    assert error in call.error


def test_parallel_calls_keep_their_order_and_the_text_around_them():
    one, two = (ToolCall("calculator", {"expression": text}) for text in ("1", "2"))
    hermes = PARSERS["hermes"]
    parsed = hermes.parse(f"First {hermes.render(one)}{hermes.render(two)} done")
    assert (parsed.text, parsed.calls) == ("First  done", (one, two))
    llama = PARSERS["llama3"]
    assert llama.parse(f"{llama.render(one)}; {llama.render(two)}").calls == (one, two)


def test_reasoning_is_kept_apart_and_calls_in_it_do_not_count():
    call = '<tool_call>{"name": "calculator", "arguments": {}}</tool_call>'
    parsed = PARSERS["hermes"].parse(f"<think>Maybe {call}</think>No.")
    assert (parsed.text, parsed.calls, parsed.reasoning) == ("No.", (), f"Maybe {call}")
    assert PARSERS["hermes"].parse(f"<think>Maybe {call}").calls == ()
    assert PARSERS["hermes"].parse(f"thoughts</think>{call}").calls == (ToolCall("calculator"),)


def test_an_unknown_syntax_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'hermes'"):
        parser_named("hermas")


def test_a_parser_of_ones_own_is_taken_as_it_is():
    class Shout(ToolCallParser):
        name = "shout"

        def render(self, call):
            return f"{call.name}!"

        def _find(self, text, tools):
            return "", [ToolCall(text[:-1])] if text.endswith("!") else []

        def _describe(self, tools):
            return "Shout."

    assert parser_named(Shout()).parse("calculator!").calls == (ToolCall("calculator"),)


def test_reasoning_comes_in_parts_and_tags_inside_a_call_are_its_arguments():
    hermes = PARSERS["hermes"]
    call = ToolCall("calculator", {"expression": "<think>1</think>"})
    written = hermes.render(call)
    parsed = hermes.parse(f"<think>a</think> I see. <think>b</think>{written}")
    assert (parsed.text, parsed.calls, parsed.reasoning) == ("I see.", (call,), "a\nb")
    assert hermes.parse(written).calls == (call,)
    coder = PARSERS["qwen3_coder"]
    assert coder.parse(f"plan</think>{coder.render(call)}", TOOLS).calls == (call,)
    assert coder.parse(f"plan</think>{coder.render(call)}", TOOLS).reasoning == "plan"


@pytest.mark.parametrize("name", ["hermes", "short", "react", "qwen3_coder", "llama3", "gemma", "json"])
def test_a_turn_makes_at_most_sixty_four_calls_and_the_model_reads_so(name):
    parser = PARSERS[name]
    call = ToolCall("calculator", {"expression": "1 + 1"})
    many = [parser.render(call)] * 70
    text = f"[{', '.join(many)}]" if name == "json" else (";" if name == "llama3" else "\n").join(many)
    calls = parser.parse(text, TOOLS).calls
    assert calls[:64] == (call,) * 64
    assert len(calls) == 65 and "64 calls" in calls[64].error


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("{item:<escape>pen, red<escape>,count:2,gift:true}", {"item": "pen, red", "count": 2, "gift": True}),
        ("{item:<escape>2<escape>,count:<escape>2<escape>}", {"item": "2", "count": 2}),
        ("{item:pen,count:two}", {"item": "pen", "count": "two"}),
        ("{}", {}),
        (
            "{other:[1,<escape>a]<escape>,{x:<escape>}<escape>,y:null}],deep:{z:[]}}",
            {"other": [1, "a]", {"x": "}", "y": None}], "deep": {"z": []}},
        ),
    ],
)
def test_function_gemma_writes_nested_values(body, arguments):
    text = f"<start_function_call>call:buy{body}<end_function_call>"
    assert PARSERS["gemma"].parse(text, TOOLS).calls == (ToolCall("buy", arguments),)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("{item:1,item:2}", "given twice"),
        ("{item}", "key:value"),
        ("{item:[1", "closing ']'"),
        ("{item:<escape>pen", "second <escape>"),
        ("{item:" + "[" * 99, "nested too deeply"),
        ("{item:[" + "1," * 2000, "too many values"),
    ],
)
def test_function_gemma_says_what_is_wrong_with_a_call(body, error):
    (call,) = PARSERS["gemma"].parse(f"<start_function_call>call:buy{body}<end_function_call>", TOOLS).calls
    assert call.name == "buy" and error in call.error


@pytest.mark.parametrize(
    "text",
    [
        "```tool_code\nbuy(item='pen', count=2)\nprint(calculator(expression='1'))\n```",
        "```tool_code\nbuy(\n  item='pen',\n  count=2,\n)\ncalculator('1')\n```",
        "[buy(item='pen', count=2), calculator(expression='1')]",
        "```tool_code\n[buy(item='pen', count=2), calculator(expression='1')]\n```",
    ],
)
def test_gemma_3_calls_in_code_and_in_lists(text):
    calls = (ToolCall("buy", {"item": "pen", "count": 2}), ToolCall("calculator", {"expression": "1"}))
    assert PARSERS["gemma"].parse(text, TOOLS).calls == calls


def test_python_lists_and_words_are_read_as_values():
    tools = (spec("f", names="array", flag="boolean"),)
    call = ToolCall("f", {"names": ["a", None], "flag": True})
    assert PARSERS["short"].parse("f(names=['a', None], flag=True)", tools).calls == (call,)


def test_a_name_inside_a_longer_word_is_no_call():
    assert PARSERS["short"].parse("my_calculator(1) and x.calculator(2)", TOOLS).calls == ()


def test_optional_text_that_looks_like_a_number_stays_text():
    optional = {"type": "object", "properties": {"code": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    tools = (ToolSpec("f", "", optional),)
    for value, read in (("007", "007"), ("12", "12"), ("null", None)):
        text = f"<function=f>\n<parameter=code>\n{value}\n</parameter>\n</function>"
        assert PARSERS["qwen3_coder"].parse(text, tools).calls == (ToolCall("f", {"code": read}),)


def test_no_hostile_text_is_read_slower_than_the_bench_allows():
    from agentlab.bench.parsing import slowest

    for name, parser in PARSERS.items():
        speed, what = slowest(parser, size=20_000)
        assert speed > 1, f"{name} reads {what} at {speed:.1f} MB/s"
