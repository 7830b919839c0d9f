"""Demonstrations: what is learned of them is what a policy would have to sample after the prompt that it would see."""

import itertools
import json
from functools import cache
from typing import Any

import pytest
from call_families import CALLING, calling_tokenizer
from chat_families import FAMILIES, OPENING, family_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.agents import ToolAgent
from agentlab.chat import ChatFormat, Demonstrator, opened_thought, parser_named, parser_of_model, read_conversation
from agentlab.errors import ConfigError
from agentlab.inference.scripted import ByteTokenizer
from agentlab.rollout.transcript import Transcript
from agentlab.tools import Calculator
from agentlab.types import Completion, TokenRow, ToolCall

TEXTUAL = FAMILIES | OPENING
"""Families whose templates, as they are in these tests, take no calls."""
USER = {"role": "user", "content": "6 * 7?"}
FUNCTION = {"name": "calculator", "description": "Computes.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "calculator", "arguments": '{"x": "6 * 7"}'}}
RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "content": "42"}


@cache
def tokenizer_of(family: str) -> Any:
    return calling_tokenizer(family.removeprefix("calling ")) if "calling " in family else family_tokenizer(family)


@cache
def demonstrator_of(family: str, syntax: str = "auto") -> Demonstrator:
    return Demonstrator(ChatFormat(tokenizer_of(family)), syntax)


def spans_of(row: TokenRow) -> list[tuple[int, float, list[int]]]:
    """(mask, weight, tokens) of the stretches of a row that have the same mask and weight."""
    weights = row.weights or tuple(map(float, row.loss_mask))
    joined = zip(row.loss_mask, weights, row.tokens, strict=True)
    return [(*key, [token for *_, token in part]) for key, part in itertools.groupby(joined, lambda one: one[:2])]


def learned(family: str, row: Any, syntax: str = "auto") -> list[str]:
    """The texts that are learned of a conversation, in their order."""
    rows = demonstrator_of(family, syntax).rows(read_conversation(row, 7), 7)
    return [tokenizer_of(family).decode(tokens) for row in rows for mask, _, tokens in spans_of(row) if mask]


def prompt_of(family: str, row: Any, syntax: str = "auto") -> str:
    """The text before the first turn that is learned."""
    found = demonstrator_of(family, syntax).rows(read_conversation(row, 7), 7)[0]
    return tokenizer_of(family).decode(list(found.tokens[: found.prompt_length]))


def answer(**keys: Any) -> list[Any]:
    return [USER, {"role": "assistant", "content": "42", **keys}]


# -- thoughts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "end"),
    [
        ("qwen3.5", "<|im_end|>"),
        ("deepseek-r1", "<|eos|>"),
        ("nemotron", "<|im_end|>"),
        ("calling qwen3.5", "<|im_end|>"),
        ("calling nemotron", "<|im_end|>"),
        ("calling deepseek", "<|eos|>"),
    ],
)
@pytest.mark.parametrize("inline", [True, False])
def test_a_thought_that_the_prompt_opens_is_not_opened_again_and_closed_also_where_it_is_empty(family, end, inline):
    thinking = {"content": "<think>Six sevens.</think>42"} if inline else {"reasoning_content": "Six sevens."}
    assert prompt_of(family, answer()).endswith("<think>\n")
    assert learned(family, answer(**thinking)) == [f"Six sevens.\n</think>\n\n42{end}"]
    assert learned(family, answer()) == [f"\n</think>\n\n42{end}"]
    assert learned(family, answer(content="<think>\n\n</think>\n\n42")) == [f"\n</think>\n\n42{end}"]


@pytest.mark.parametrize(
    "family", ["smollm2", "qwen2.5", "qwen3", "llama3", "gemma2", "calling qwen3", "calling llama3.1"]
)
def test_a_thought_that_the_prompt_does_not_open_is_learned_with_its_tags_and_none_is_put_in(family):
    (thoughtful,) = learned(family, answer(thinking="Six sevens."))
    assert thoughtful.startswith("<think>\nSix sevens.\n</think>\n\n42")
    assert learned(family, answer())[0].startswith("42")


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "calling qwen3", "calling qwen3.5"])
def test_where_the_prompt_closes_the_thought_the_answer_alone_is_learned_and_a_thought_refused(family):
    demonstrator = Demonstrator(ChatFormat(tokenizer_of(family), template_options={"enable_thinking": False}))
    (row,) = demonstrator.rows(read_conversation(answer(), 7))
    assert tokenizer_of(family).decode([t for m, _, ts in spans_of(row) if m for t in ts]) == "42<|im_end|>"
    with pytest.raises(
        ConfigError, match="Conversation 7, message 1: it has a thought, but the generation prompt ends"
    ):
        demonstrator.rows(read_conversation(answer(reasoning="Hm."), 7), 7)


def test_a_system_prompt_that_turns_thinking_off_is_heeded():
    system = {"role": "system", "content": "/no_think"}
    assert learned("nemotron", [system, *answer()]) == ["42<|im_end|>"]


# -- calls ----------------------------------------------------------------------------------------

HERMES = '<tool_call>\n{"name": "calculator", "arguments": {"x": "6 * 7"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("calling qwen2.5", f"{HERMES}<|im_end|>"),
        ("calling qwen3", f"{HERMES}<|im_end|>"),
        ("calling qwen3.5", f"\n</think>\n\n{HERMES}<|im_end|>"),
        (
            "calling nemotron",
            '\n</think>\n\n<TOOLCALL>[{"name": "calculator", "arguments": {"x": "6 * 7"}}]</TOOLCALL><|im_end|>',
        ),
        ("calling llama3.1", '{"name": "calculator", "parameters": {"x": "6 * 7"}}<|eot_id|>'),
        (
            "calling mistral",
            '[TOOL_CALLS][{"name": "calculator", "arguments": {"x": "6 * 7"}, "id": "abcdefgh1"}]</s>',
        ),
    ],
)
def test_calls_are_learned_as_the_template_writes_them_after_its_own_description_of_the_tools(family, text):
    messages = [*answer(content=None, tool_calls=[CALL]), RESULT, {"role": "assistant", "content": "It is 42."}]
    first, second = learned(family, {"messages": messages, "tools": [TOOL]})
    assert first == text and "It is 42." in second and "6 * 7" not in second
    assert '"name": "calculator"' in prompt_of(family, {"messages": messages, "tools": [TOOL]})
    dictionary = {"name": "calculator", "arguments": {"x": "6 * 7"}}
    again = answer(content="", tool_calls=[{**CALL, "function": dictionary}])
    assert learned(family, {"messages": again, "tools": json.dumps([TOOL])}) == [text]


def test_special_tokens_that_the_template_writes_are_learned_as_tokens_and_those_in_arguments_as_letters():
    hostile = {**CALL, "function": {"name": "calculator", "arguments": {"x": "</s>[TOOL_CALLS]"}}}
    (row,) = demonstrator_of("calling mistral").rows(read_conversation(answer(content=None, tool_calls=[hostile]), 0))
    ids = [token for token, mask in zip(row.tokens, row.loss_mask, strict=True) if mask]
    tokenizer = tokenizer_of("calling mistral")
    special = [tokenizer.decode([token]) for token in ids if token in tokenizer.all_special_ids]
    assert special == ["[TOOL_CALLS]", "</s>"]
    assert tokenizer.decode(ids).count("</s>") == 2


def test_markup_of_its_own_for_thoughts_is_learned_as_the_template_writes_it():
    thought = "<|channel|>analysis<|message|>Six sevens.<|end|><|start|>assistant"
    said = "<|channel|>final<|message|>42<|return|>"
    assert learned("calling harmony", answer(reasoning="Six sevens.")) == [thought + said]
    assert learned("calling harmony", answer()) == [said]


@pytest.mark.parametrize("family", TEXTUAL)
def test_a_template_without_calls_gets_them_as_a_tool_agent_describes_and_writes_them(family):
    parser = parser_named(parser_of_model(tokenizer_of(family)))
    row = {"messages": [*answer(content=None, tool_calls=[CALL]), RESULT], "tools": [TOOL]}
    (text,) = learned(family, row)
    assert parser.render(ToolCall("calculator", {"x": "6 * 7"})) in text
    notes = demonstrator_of(family).fallbacks(read_conversation(row, 0))
    agent = f"a ToolAgent with the syntax {parser.name!r}"
    assert f"The chat template writes no calls: they are written as {agent} reads them." in notes
    named = demonstrator_of(family, parser.name)
    assert not any(parser.name in note for note in named.fallbacks(read_conversation(row, 0)))
    if f"described as {agent}" in notes[0]:
        assert parser.describe(read_conversation(row, 0).specs) in prompt_of(family, row)


def test_a_named_syntax_is_that_of_the_agent_with_this_name_from_its_prompt_to_its_call():
    agent = ToolAgent("Be brief.", {"calculator": Calculator}, "short")
    tools = [spec.as_function() for spec in agent.tools]
    call = {"name": "calculator", "arguments": {"expression": "6 * 7"}}
    messages = [{"role": "system", "content": "Be brief."}, *answer(content=None, tool_calls=[call])]
    row = {"messages": messages, "tools": tools}
    rendered = agent.parser.render(ToolCall("calculator", {"expression": "6 * 7"}))
    assert learned("calling qwen3", row, "short") == [f"{rendered}<|im_end|>"]
    assert prompt_of("calling qwen3", row, "short") == tokenizer_of("calling qwen3").apply_chat_template(
        [*agent.messages, USER], tokenize=False, add_generation_prompt=True
    )
    with pytest.raises(ConfigError, match="hermes"):
        Demonstrator(ChatFormat(tokenizer_of("qwen3")), "hermess")


def test_notes_tell_where_agents_would_not_read_what_is_taught():
    row = read_conversation({"messages": answer(content=None, tool_calls=[CALL]), "tools": [TOOL]}, 0)
    assert demonstrator_of("calling qwen3").fallbacks(row) == ()
    (note,) = demonstrator_of("calling nemotron").fallbacks(row)
    assert "writes calls as a ToolAgent with the syntax 'hermes' does not read them" in note


class CallsInPlaceOfContent(ByteTokenizer):
    """Shows calls only where the content is None, and joins arguments as text."""

    def apply_chat_template(self, conversation: Any, *args: Any, **options: Any) -> Any:
        written = []
        for message in conversation:
            calls = message.get("tool_calls") if message["content"] is None else None
            text = "".join("@" + c["function"]["name"] + c["function"]["arguments"] for c in calls or [])
            written.append({**message, "content": text or message["content"]})
        return super().apply_chat_template(written, *args, **options)


def test_a_template_gets_arguments_and_an_empty_content_in_the_form_that_it_takes():
    demonstrator = Demonstrator(ChatFormat(CallsInPlaceOfContent()))
    (row,) = demonstrator.rows(read_conversation(answer(content="", tool_calls=[CALL]), 0))
    (said,) = [tokens for mask, _, tokens in spans_of(row) if mask]
    assert CallsInPlaceOfContent().decode(said) == '@calculator{"x": "6 * 7"}<|im_end|>'
    with pytest.raises(
        ConfigError, match="Conversation 0, message 1: the chat template leaves out some of its tool_calls"
    ):
        demonstrator.rows(read_conversation(answer(content="I compute.", tool_calls=[CALL]), 0))


@pytest.mark.parametrize(
    ("family", "message", "reason"),
    [
        (
            "calling llama3.1",
            {"content": "I compute.", "tool_calls": [CALL]},
            "leaves out .* content beside its tool_cal",
        ),
        ("calling llama3.1", {"content": None, "tool_calls": [CALL, CALL]}, "only single tool-calls at once"),
        ("calling mistral", {"content": None, "tool_calls": [{**CALL, "id": None}]}, "must have ids"),
        (
            "llama3",
            {"content": '{"name": "calculator", "parameters": {"x": "1"}}', "tool_calls": [CALL]},
            "'llama3' cannot write its content and tool_calls",
        ),
        ("calling qwen3", {"content": "Use <think> and </think>."}, "leaves out or changes its content"),
    ],
)
def test_what_a_template_or_a_syntax_would_lose_is_refused_with_the_message(family, message, reason):
    with pytest.raises(ConfigError, match=f"Conversation 7, message 1: .*{reason}"):
        learned(family, [USER, {"role": "assistant", **message}])


def test_what_a_named_syntax_cannot_write_is_refused_with_the_message_and_what_it_needs_for_it():
    row = {"messages": answer(content=None, tool_calls=[CALL])}
    with pytest.raises(
        ConfigError, match="Conversation 7, message 1: the syntax 'react' cannot write its .* \"tools\""
    ):
        learned("llama3", row, "react")
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    (text,) = learned("llama3", {**row, "tools": [{**FUNCTION, "parameters": parameters}]}, "react")
    assert text == "Action: calculator[6 * 7]<|eot_id|>"


def test_roles_that_a_template_does_not_show_are_refused_and_a_developer_is_the_system_there():
    developer = {"role": "developer", "content": "Be brief."}
    assert "system\nBe brief.<|im_end|>" in prompt_of("qwen3", [developer, *answer()])
    assert "developer\nBe brief.<|im_end|>" in prompt_of("smollm2", [developer, *answer()])
    with pytest.raises(ConfigError, match="Conversation 7, message 1 has the role 'function'"):
        learned("qwen3", [USER, {"role": "function", "content": "42"}, *answer()])


# -- peculiar templates ---------------------------------------------------------------------------


def test_a_turn_ends_with_the_first_token_that_ends_sampling_where_a_template_writes_two():
    talk = [*answer(), {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
    assert learned("calling phi", talk) == ["42<|end|>", "Yes.<|end|>"]
    assert len(demonstrator_of("calling phi").rows(read_conversation(talk, 0))) == 1


def test_where_the_next_speaker_ends_a_turn_a_call_is_ended_by_its_result():
    talk = [*answer(content=None, tool_calls=[CALL]), RESULT, {"role": "assistant", "content": "It is 42."}]
    call, said = '\n\n<tool_call>calculator{"x": "6 * 7"}</tool_call><|observation|>', "\nIt is 42.<|user|>"
    assert learned("calling glm", {"messages": talk, "tools": [TOOL]}) == [call, said]
    assert learned("calling glm", {"messages": talk[:2], "tools": [TOOL]}) == [call]


def test_a_thought_that_a_template_shows_before_calls_only_is_given_to_it_there_and_never_stands_after_them():
    call = "<|call>call:calculator{x:6 * 7}<call|><turn|>"
    thoughtful = answer(content=None, reasoning="Six sevens.", tool_calls=[CALL])
    assert learned("calling gemma4", thoughtful) == [f"<|channel>thought\nSix sevens.\n<channel|>{call}"]
    assert learned("calling gemma4", answer(reasoning="Hm.")) == ["<think>\nHm.\n</think>\n\n42<turn|>"]
    with pytest.raises(
        ConfigError, match="Conversation 7, message 1: the chat template writes its thought after its too"
    ):
        learned("calling gemma4 without thoughts", thoughtful)
    (text,) = learned("calling gemma4 without thoughts", thoughtful, "hermes")
    assert text == f"<think>\nSix sevens.\n</think>\n\n{HERMES}<turn|>"


# -- laws -----------------------------------------------------------------------------------------

words = st.text("abcdefgh ÄÖ中\n\"'{}", min_size=1, max_size=12).map(str.strip).filter(bool)
weights = st.sampled_from([None, 0, 1, 0.25, 2.0])
arguments = st.dictionaries(st.text("klmn", min_size=1, max_size=3), words | st.integers(0, 99), max_size=2)


@st.composite
def conversations(draw, *, calls: bool) -> dict[str, Any]:
    """Rows with every kind of message; each text begins with a letter that tells who wrote it."""
    messages: list[Any] = [{"role": "system", "content": "S" + draw(words)}] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        parts = ["U", draw(words)]
        as_parts = [{"type": "text", "text": part} for part in parts]
        messages.append({"role": "user", "content": as_parts if draw(st.booleans()) else "".join(parts)})
        for number in range(draw(st.integers(0, 2)) if calls else 0):
            id = f"call{turn:03d}{number:02d}"
            function = {"name": "calculator", "arguments": {"z": "A", **draw(arguments)}}
            called = {"role": "assistant", "content": None, "tool_calls": [{"id": id, "function": function}]}
            called |= {"reasoning_content": "R" + draw(words)} if draw(st.booleans()) else {}
            messages += [
                {**called, "weight": draw(weights)},
                {"role": "tool", "tool_call_id": id, "content": "T" + draw(words)},
            ]
        said = {"role": "assistant", "content": "A" + draw(words), "weight": draw(weights)}
        messages.append({**said, "thinking": "R" + draw(words)} if draw(st.booleans()) else said)
    return {"messages": messages, "tools": [TOOL]} if calls else {"messages": messages}


def is_learned(row: Any) -> bool:
    return any(message.get("weight") != 0 for message in row["messages"] if message["role"] == "assistant")


@pytest.mark.parametrize("family", [*TEXTUAL, *(f"calling {name}" for name in CALLING if name != "harmony")])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_turn_is_learned_once_with_its_weight_and_reads_back_as_what_the_data_says(family, data):
    row = data.draw(conversations(calls=family not in ("gemma2", "gemma3")).filter(is_learned))
    tokenizer = tokenizer_of(family)
    read = read_conversation(row, 0)
    spans = [span for part in demonstrator_of(family).rows(read) for span in with_prompts(part)]
    said = [read.said(place) for place in read.said_at if read.said(place).weight]
    assert [weight for _, weight, _ in spans] == [one.weight for one in said]
    parser = parser_named(parser_of_model(tokenizer))
    for (prompt, _, tokens), one in zip(spans, said, strict=True):
        text = tokenizer.decode(tokens)
        assert tokens[-1] in ChatFormat(tokenizer).stop_token_ids
        opened = opened_thought(tokenizer.decode(prompt))
        response = opened + ChatFormat(tokenizer).decode(tokens)
        assert "U" not in text and "T" not in text.replace("TOOL", "") and "S" not in text.replace("TOOL_CALLS", "")
        assert bool(opened) == (not text.lstrip().startswith("<think>") and "</think>" in text)
        parsed = parser.parse(response, read.specs)
        assert parsed.reasoning == one.reasoning
        if family not in ("calling nemotron", "calling mistral"):
            assert (parsed.text, parsed.calls) == (one.content.strip(), tuple(made.call for made in one.calls))


def with_prompts(row: TokenRow) -> list[tuple[list[int], float, list[int]]]:
    """(everything before, weight, tokens) of every stretch of a row that is learned."""
    spans, before = [], []
    for mask, weight, tokens in spans_of(row):
        spans += [(list(before), weight, tokens)] if mask else []
        before += tokens
    return spans


ROLLED_OUT = [*TEXTUAL, *(f"calling {name}" for name in ("qwen2.5", "qwen3", "qwen3.5", "nemotron", "deepseek"))]


@pytest.mark.parametrize("family", ROLLED_OUT)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_rows_are_those_that_a_rollout_of_an_agent_with_the_same_syntax_would_record(family, data):
    row = data.draw(conversations(calls=True).filter(is_learned))
    for message in row["messages"]:
        message.pop("weight", None)
    tokenizer, read, parser = tokenizer_of(family), read_conversation(row, 0), parser_named("hermes")
    chat, described = ChatFormat(tokenizer), parser.describe(read.specs)
    transcript, messages = Transcript(chat), [{"role": "system", "content": described}]
    for message in read.messages:
        if isinstance(message, dict) and message["role"] == "system":
            messages[0]["content"] = f"{message['content']}\n\n{described}"
        elif isinstance(message, dict):
            messages.append({key: value for key, value in message.items() if key != "tool_call_id"})
        else:
            prompt = transcript.prompt(messages)
            opened = opened_thought(tokenizer.decode(list(prompt)))
            thought = f"{'' if opened else '<think>' + chr(10)}{message.reasoning}\n</think>\n\n"
            said = message.content + "".join(parser.render(one.call) for one in message.calls)
            text = (thought if opened or message.reasoning else "") + said
            sampled = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
            transcript.sampled(Completion("r", sampled, (0.0,) * len(sampled), (0,) * len(sampled), "stop"))
            messages.append({"role": "assistant", "content": chat.response(prompt, sampled)})
    played, shown = transcript.rows(), demonstrator_of(family, "hermes").rows(read)
    assert [(row.tokens, row.loss_mask) for row in shown] == [(row.tokens, row.loss_mask) for row in played]
