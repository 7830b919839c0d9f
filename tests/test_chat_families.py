"""Conformance by model family: dialogues with tools, built token by token, equal the template's full rendering."""

from functools import cache
from typing import Any

import pytest
from chat_families import FAMILIES, family_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.agents import Taught, ToolAgent, speaking_with
from agentlab.chat import ChatFormat, parser_named, parser_of_model
from agentlab.environments import BaseTaskEnv, ToolEnvironment
from agentlab.inference import ScriptedEngine
from agentlab.rewards import same_number
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, run_episode
from agentlab.rollout.transcript import Transcript
from agentlab.tools import Calculator
from agentlab.types import Completion, EnvStepResult, ToolCall

SYNTAX = {"smollm2": "hermes", "qwen2.5": "hermes", "qwen3": "hermes"} | {
    "llama3": "llama3",
    "gemma2": "gemma",
    "gemma3": "gemma",
}
words = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=12).map(str.strip)
words = words.filter(bool)
turns = st.tuples(words, st.booleans(), st.lists(words, min_size=1, max_size=2), st.sampled_from(["tool", "user"]))


@cache
def chat_of(family: str) -> ChatFormat:
    return ChatFormat(family_tokenizer(family))


class Dialogue:
    """A dialogue built as an episode builds it: sampled ids, and the ids that are appended after them."""

    def __init__(self, chat: ChatFormat, tokenizer: Any, system: str | None, question: str):
        self.chat, self.tokenizer = chat, tokenizer
        self.messages = [{"role": "system", "content": system}] if system else []
        self.messages.append({"role": "user", "content": question})
        self.transcript = Transcript(chat)

    def turn(self, said: str, role: str, news: list[str]) -> None:
        self.transcript.prompt(self.messages)
        sampled = (*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id)
        zeros = (0,) * len(sampled)
        self.transcript.sampled(Completion("r", sampled, (-1.0,) * len(sampled), zeros, "stop"))
        self.messages.append({"role": "assistant", "content": said})
        self.messages += [{"role": role, "content": text} for text in (news if role == "tool" else news[:1])]

    def built(self) -> tuple[int, ...]:
        return self.transcript.prompt(self.messages)

    def rendered(self, **options: Any) -> tuple[int, ...]:
        messages = self.chat.template_messages(self.messages)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(system=st.none() | words, question=words, played=st.lists(turns, max_size=4))
def test_a_dialogue_with_tools_built_from_deltas_equals_the_full_rendering(family, system, question, played):
    tokenizer = family_tokenizer(family)
    parser = parser_named(SYNTAX[family])
    dialogue = Dialogue(chat_of(family), tokenizer, system, question)
    for said, calls, news, role in played:
        call = parser.render(ToolCall("calculator", {"expression": said}))
        dialogue.turn(call if calls else said, role, news)
    assert dialogue.built() == dialogue.rendered()
    assert len(dialogue.transcript.rows()) == (1 if played else 0)


@settings(max_examples=25)
@given(question=words, played=st.lists(st.tuples(words, words, st.lists(words, min_size=1, max_size=2)), max_size=3))
def test_qwen3_keeps_its_reasoning_while_it_calls_tools(question, played):
    dialogue = Dialogue(chat_of("qwen3"), family_tokenizer("qwen3"), "S", question)
    for thought, said, results in played:
        dialogue.turn(f"<think>\n{thought}\n</think>\n\n{said}", "tool", results)
    assert dialogue.built() == dialogue.rendered()
    assert len(dialogue.transcript.rows()) == (1 if played else 0)


def test_where_qwen3_drops_old_reasoning_the_row_forks_into_the_full_rendering():
    dialogue = Dialogue(chat_of("qwen3"), family_tokenizer("qwen3"), "S", "Q")
    dialogue.turn("<think>\nA plan.\n</think>\n\nCall.", "tool", ["7"])
    before = dialogue.built()
    dialogue.turn("<think>\nSo it is 7.\n</think>\n\n7.", "user", ["And then?"])
    assert dialogue.built() == dialogue.rendered()
    first = dialogue.transcript.rows()[0]
    assert first.tokens[: len(before)] == before
    text = dialogue.tokenizer.decode(list(dialogue.built()))
    assert "A plan" not in text and "<think>" not in text and "7.<|im_end|>" in text


def test_a_template_whose_generation_prompt_vanishes_from_history_forks_too():
    tokenizer = family_tokenizer("qwen3")
    chat = ChatFormat(tokenizer, template_options={"enable_thinking": False})
    dialogue = Dialogue(chat, tokenizer, "S", "Q")
    assert tokenizer.decode(list(dialogue.built())).endswith("<think>\n\n</think>\n\n")
    dialogue.turn("Call.", "tool", ["7"])
    assert dialogue.built() == dialogue.rendered(enable_thinking=False)
    assert "what an assistant said when a tool message follows" in chat.rewrites


def test_what_a_template_rewrites_is_known_from_the_start():
    said = {family: chat_of(family).rewrites for family in FAMILIES}
    reasoning = "the chat template changes or leaves out the reasoning of earlier turns when a user message follows"
    assert said == dict.fromkeys(FAMILIES, "") | {"qwen3": reasoning}


class Talk(BaseTaskEnv):
    """Asks on, three times."""

    def _initial_observation(self) -> Any:
        return "Q"

    def _step_impl(self, action: Any) -> EnvStepResult:
        return EnvStepResult("And then?", 1.0, self.turn == 2)


def test_a_run_says_once_that_the_template_forks_its_rows():
    tokenizer = family_tokenizer("qwen3")
    engine = ScriptedEngine("<think>\nHm.\n</think>\n\nYes.", tokenizer)
    config = RolloutConfig(group_size=2, groups_per_step=1)
    orchestrator = RolloutOrchestrator(engine, agent_class=ToolAgent, env_class=Talk, config=config)
    groups = list(orchestrator.iterate([{"prompt": "Q"}, {"prompt": "R"}]))
    assert [len(t.rows) for group in groups for t in group.trajectories] == [3] * 4
    (note,) = orchestrator.notes
    assert "3 token rows" in note and "leaves out the reasoning of earlier turns" in note


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_no_control_token_and_no_markup_comes_from_users_environments_or_tools(family, role):
    tokenizer, chat = family_tokenizer(family), chat_of(family)
    _, specials, end, markup = FAMILIES[family]
    controls = {tokenizer.convert_tokens_to_ids(text) for text in (*specials, *markup)}
    after = [tokenizer.eos_token_id]
    plain = chat.extend(after, [{"role": role, "content": "xx"}])
    hostile = "x" + "".join((*specials, *markup)) + "x"
    built = chat.extend(after, [{"role": role, "content": hostile}])
    assert [t for t in built if t in controls] == [t for t in plain if t in controls]
    assert end in tokenizer.decode(list(built))


def test_markup_of_the_system_prompt_and_of_the_model_stays_markup():
    tokenizer, chat = family_tokenizer("qwen3"), chat_of("qwen3")
    mark = tokenizer.convert_tokens_to_ids("<tool_call>")
    messages = [{"role": role, "content": "<tool_call>"} for role in ("system", "user", "assistant")]
    assert chat.start(messages).count(mark) == 2


def test_a_system_prompt_reaches_a_model_whose_template_has_no_system_role():
    tokenizer, chat = family_tokenizer("gemma2"), chat_of("gemma2")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert not chat.system_role
    assert tokenizer.decode(list(chat.start(messages))) == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_chooses_the_syntax_of_its_tool_calls(family):
    tokenizer = family_tokenizer(family)
    assert parser_of_model(tokenizer) == SYNTAX[family]
    tools = {"tool_map": {"calculator": Calculator}}
    with speaking_with(Taught.of(tokenizer)):
        assert ToolAgent(**tools).parser.name == SYNTAX[family]
        assert ToolAgent(**tools, tool_parser_name="react").parser.name == "react"
    assert ToolAgent(**tools).parser.name == "hermes"


def test_a_rollout_gives_a_tool_agent_the_syntax_of_its_model():
    engine = ScriptedEngine(["```tool_code\ncalculator(expression='6 * 7')\n```", "42"], family_tokenizer("gemma3"))
    seen: list[Any] = []

    class Watched(Talk):
        def _step_impl(self, action: Any) -> EnvStepResult:
            seen.append(action.value)
            return EnvStepResult("go on", 0.0, self.turn == 1)

    kwargs = {"tool_map": {"calculator": Calculator}}
    config = RolloutConfig(group_size=1, groups_per_step=1, max_concurrency=1)
    orchestrator = RolloutOrchestrator(
        engine, agent_class=ToolAgent, agent_kwargs=kwargs, env_class=Watched, config=config
    )
    list(orchestrator.iterate([{"prompt": "Q"}]))
    assert seen == [(ToolCall("calculator", {"expression": "6 * 7"}),), "42"]


def test_text_that_continues_a_turn_gets_no_space_before_it():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = ["<s>", "</s>", "<unk>", "▁", *map(chr, range(32, 127)), "\n"]
    spaced = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(dict.fromkeys(symbols))}, merges=[]))
    spaced.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    spaced.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=spaced, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = "{{ '<s>' }}{% for m in messages %}{{ '[' + m.role + '] ' + m.content }}{% endfor %}"
    chat = ChatFormat(tokenizer)
    question, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
    whole = tokenizer.apply_chat_template([question, answer, question], tokenize=False)
    start = tuple(tokenizer.encode("<s>[user] hi[assistant] yo", add_special_tokens=False))
    delta = chat.extend(start[-2:], [question])
    assert start + delta == tuple(tokenizer.encode(whole, add_special_tokens=False))
    assert tokenizer.encode("[user] hi", add_special_tokens=False) != list(delta)


def hermes_call(arguments: str, name: str = "calculator") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("<tool_call>{calculator}</tool_call>", "cannot be read"),
        (hermes_call('{"expression": "1')[:-14], "cannot be read"),
        (hermes_call('{"expression": "1", "expression": "2"}'), "a key is given twice"),
        (hermes_call("{}", "calculater"), "Did you mean 'calculator'"),
        (hermes_call('{"expression": 1}'), "expression must be text, got a whole number"),
        (hermes_call('"{}"'), '"arguments" must be a JSON object, got str'),
        (hermes_call("null"), '"arguments" must be a JSON object, got null'),
        (hermes_call("{}"), "calculator needs the argument expression"),
        (hermes_call('{"expression": "1", "unit": "m"}'), "calculator has no argument 'unit'"),
    ],
)
def test_a_call_that_cannot_be_run_is_an_observation_that_says_why_and_the_episode_goes_on(said, read):
    tools = {"calculator": Calculator}
    trajectory = run_episode(
        ScriptedEngine([said, "2"]),
        {"prompt": "1 + 1?", "answer": 2},
        agent_class=ToolAgent,
        agent_kwargs={"tool_map": tools},
        env_class=ToolEnvironment,
        env_kwargs={"tool_map": tools, "reward_fn": same_number},
    )
    (result,) = trajectory.turns[0].observation
    assert result.failed and read in result.text
    assert result.text in [message["content"] for message in trajectory.messages]
    assert trajectory.failure is None and trajectory.reward == 1.0
