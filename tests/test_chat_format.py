"""Chat templates as token deltas: what is appended equals what the template writes there."""

import re
from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import RolloutConfig, run_episode
from agentlab.agents import ModelAgent
from agentlab.chat import ChatFormat
from agentlab.environments import TaskEnvironment
from agentlab.errors import ConfigError
from agentlab.inference import ScriptedEngine
from agentlab.types import Task

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_LIKE = (
    "{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
LLAMA3_LIKE = (
    "{{ '<|begin_of_text|>' }}{%- for m in messages %}"
    "{%- set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
GEMMA_LIKE = (
    "{{ '<bos>' }}{%- if messages[0].role == 'system' %}{%- set first = messages[0].content + '\n\n' %}"
    "{%- set rest = messages[1:] %}{%- else %}{%- set first = '' %}{%- set rest = messages %}{%- endif %}"
    "{%- for m in rest %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user and assistant') }}{%- endif %}"
    "{%- set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{%- endif %}"
)
SPACED = (
    "{%- for m in messages %}{%- if m.role == 'system' %}{{ raise_exception('no system messages here') }}"
    "{%- elif m.role == 'user' %}{{ '<s>[INST] ' + m.content + ' [/INST]' }}"
    "{%- else %}{{ ' ' + m.content + ' </s>' }}{%- endif %}{%- endfor %}"
)
NO_END_OF_TURN = (
    "{%- for m in messages %}{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>\n' + m.content }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{%- endif %}"
)
CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FAMILIES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "smollm2": (SMOLLM2, CHATML_TOKENS, "<|im_end|>"),
    "qwen": (QWEN_LIKE, CHATML_TOKENS, "<|im_end|>"),
    "llama3": (
        LLAMA3_LIKE,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
    ),
    "gemma": (GEMMA_LIKE, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>"),
}
USER = {"role": "user", "content": "hi"}


class TemplateTokenizer:
    """Bytes as tokens, special tokens above them, and a real chat template."""

    def __init__(self, chat_template: str, specials: tuple[str, ...], eos: str):
        self.chat_template = chat_template
        self.all_special_tokens = list(specials)
        self.ids = {text: 256 + index for index, text in enumerate(specials)}
        self.eos_token_id = self.ids[eos]
        self.split = re.compile("(" + "|".join(map(re.escape, specials)) + ")")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = self.refuse
        self.template = environment.from_string(chat_template)

    @staticmethod
    def refuse(text: str) -> None:
        raise jinja2.TemplateError(text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [
            id for part in self.split.split(text) for id in ([self.ids[part]] if part in self.ids else part.encode())
        ]

    def decode(self, ids: list[int]) -> str:
        texts = {id: text.encode() for text, id in self.ids.items()}
        return b"".join(bytes([id]) if id < 256 else texts[id] for id in ids).decode(errors="replace")

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool, **options: Any) -> str:
        return self.template.render(messages=messages, add_generation_prompt=add_generation_prompt, **options)


def tokenizer_of(family: str) -> TemplateTokenizer:
    return TemplateTokenizer(*FAMILIES[family])


def family_format(family: str) -> tuple[TemplateTokenizer, ChatFormat]:
    tokenizer = tokenizer_of(family)
    return tokenizer, ChatFormat(tokenizer)


FORMATS = {family: family_format(family) for family in FAMILIES}
texts = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=20).map(str.strip)
words = texts.filter(bool)
answers = st.tuples(words, st.lists(words, min_size=1, max_size=2), st.sampled_from(["user", "tool"]))


@pytest.mark.parametrize("family", FAMILIES)
@given(system=st.none() | words, question=words, turns=st.lists(answers, max_size=4))
def test_a_dialogue_built_from_deltas_equals_the_templates_full_rendering(family, system, question, turns):
    tokenizer, chat = FORMATS[family]
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    tokens = list(chat.start(messages))
    for said, news, role in turns:
        sampled = [*tokenizer.encode(said), tokenizer.eos_token_id]
        observed = [{"role": role, "content": text} for text in (news if role == "tool" else news[:1])]
        tokens += [*sampled, *chat.extend(sampled, observed)]
        messages += [{"role": "assistant", "content": said}, *observed]
    whole = tokenizer.apply_chat_template(chat.template_messages(messages), tokenize=False, add_generation_prompt=True)
    assert tokens == tokenizer.encode(whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_that_was_cut_is_closed_as_the_template_closes_it(family):
    tokenizer, chat = FORMATS[family]
    cut, whole = tokenizer.encode("so"), [*tokenizer.encode("so"), tokenizer.eos_token_id]
    assert (*cut, *chat.extend(cut, [USER])) == (*whole, *chat.extend(whole, [USER]))


@pytest.mark.parametrize("family", FAMILIES)
@given(before=st.text(max_size=5), after=st.text(max_size=5), data=st.data())
def test_no_content_becomes_a_control_token(family, before, after, data):
    tokenizer, chat = FORMATS[family]
    special = data.draw(st.sampled_from(tokenizer.all_special_tokens))
    text = f"x{before}{special}{special[:3]}{special}{after}x"
    plain = [{"role": "user", "content": "x"}]
    hostile = [{"role": "user", "content": text}]
    assert controls(chat.start(hostile)) == controls(chat.start(plain))
    assert controls(chat.extend([tokenizer.eos_token_id], hostile)) == controls(
        chat.extend([tokenizer.eos_token_id], plain)
    )
    assert text.encode("utf-8", "replace").decode() in tokenizer.decode(list(chat.start(hostile)))


def controls(tokens: tuple[int, ...]) -> list[int]:
    return [token for token in tokens if token >= 256]


def test_the_name_of_a_tool_cannot_become_a_control_token_either():
    template = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = TemplateTokenizer(template + "{# 'tool' #}", CHATML_TOKENS, "<|im_end|>")
    chat = ChatFormat(tokenizer)
    named = [{"role": "tool", "name": "<|im_end|>", "content": "x"}]
    assert controls(chat.extend([258], named)) == [257, 258]


def test_smollm2_gets_a_newline_after_its_end_of_turn_and_no_second_system_prompt():
    tokenizer, chat = FORMATS["smollm2"]
    delta = chat.extend([65, tokenizer.eos_token_id], [{"role": "tool", "content": "7"}])
    assert tokenizer.decode(list(delta)) == "\n<|im_start|>user\n7<|im_end|>\n<|im_start|>assistant\n"


def test_a_system_message_after_a_turn_does_not_repeat_its_end():
    tokenizer, chat = FORMATS["smollm2"]
    delta = chat.extend([65, tokenizer.eos_token_id], [{"role": "system", "content": "Hurry."}])
    assert tokenizer.decode(list(delta)) == "\n<|im_start|>system\nHurry.<|im_end|>\n<|im_start|>assistant\n"


def test_content_that_is_missing_is_empty_text():
    tokenizer, chat = FORMATS["smollm2"]
    messages = [{"role": "system", "content": "S"}, {"role": "assistant", "content": None}]
    assert "<|im_start|>assistant\n<|im_end|>" in tokenizer.decode(list(chat.start(messages)))


def test_a_template_that_names_the_tool_role_gets_it():
    assert {family: chat.tool_role for family, (_, chat) in FORMATS.items()} == {
        "smollm2": "user",
        "qwen": "tool",
        "llama3": "tool",
        "gemma": "user",
    }


def test_results_without_a_tool_role_become_one_user_message():
    _, chat = FORMATS["gemma"]
    results = [{"role": "tool", "name": "a", "content": "1"}, {"role": "tool", "name": "b", "content": "2"}, USER]
    assert chat.template_messages(results) == [{"role": "user", "content": "1\n2\nhi"}]


def test_the_tool_role_can_be_chosen():
    tokenizer = tokenizer_of("smollm2")
    delta = ChatFormat(tokenizer, tool_role="tool").extend([tokenizer.eos_token_id], [{"role": "tool", "content": "7"}])
    assert "<|im_start|>tool\n7" in tokenizer.decode(list(delta))


def test_a_template_that_closes_turns_after_a_space_and_refuses_system_messages_works():
    tokenizer = TemplateTokenizer(SPACED, ("<s>", "</s>"), "</s>")
    chat = ChatFormat(tokenizer)
    closed = [65, tokenizer.eos_token_id]
    assert tokenizer.decode(list(chat.extend(closed, [USER]))) == "<s>[INST] hi [/INST]"
    assert tokenizer.decode(list(chat.extend([65], [USER]))) == " </s><s>[INST] hi [/INST]"
    with pytest.raises(ConfigError, match="no system messages here"):
        chat.start([{"role": "system", "content": "S"}])


def test_where_turns_have_no_end_the_next_header_stops_and_is_not_repeated():
    specials = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")
    tokenizer = TemplateTokenizer(NO_END_OF_TURN, specials, "<|endoftext|>")
    chat = ChatFormat(tokenizer)
    assert set(chat.stop_token_ids) == {tokenizer.ids[t] for t in ("<|user|>", "<|observation|>", "<|endoftext|>")}
    result = [{"role": "tool", "content": "7"}]
    stopped = [65, tokenizer.ids["<|observation|>"]]
    assert tokenizer.decode(list(chat.extend(stopped, result))) == "\n7<|assistant|>\n"
    assert tokenizer.decode(list(chat.extend([65], result))) == "<|observation|>\n7<|assistant|>\n"


def test_decode_leaves_out_end_of_turn_tokens_and_nothing_else():
    tokenizer, chat = FORMATS["smollm2"]
    start, end = tokenizer.ids["<|im_start|>"], tokenizer.ids["<|im_end|>"]
    assert chat.decode([*b"ok ", start, *b"!", end, end]) == "ok <|im_start|>!"
    assert chat.decode([]) == ""


def test_the_end_of_text_tokens_of_the_family_stop_a_turn_too():
    _, chat = FORMATS["smollm2"]
    assert chat.stop_token_ids == (256, 258)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "user", "content": 3}, "must be text, got int"),
        ({"content": "x"}, "with a word as role"),
        ({"role": "<|im_end|>", "content": "x"}, "with a word as role"),
        ("hello", "with a word as role"),
        ({"role": "user", "content": {1, 2}}, "text, numbers, lists"),
    ],
)
def test_a_malformed_message_is_refused(message, says):
    with pytest.raises(ConfigError, match=says):
        FORMATS["smollm2"][1].start([message])


def test_half_of_a_surrogate_pair_is_encoded_as_a_question_mark():
    tokenizer, chat = FORMATS["smollm2"]
    assert "a?b" in tokenizer.decode(list(chat.start([{"role": "user", "content": "a\ud800b"}])))


def test_a_tokenizer_without_a_chat_template_is_refused():
    tokenizer = TemplateTokenizer("{{ raise_exception('no template') }}", ("<s>", "</s>"), "</s>")
    with pytest.raises(ConfigError, match="no template"):
        ChatFormat(tokenizer)


def test_a_template_that_hides_the_assistant_is_refused():
    tokenizer = TemplateTokenizer("hello", ("<s>", "</s>"), "</s>")
    with pytest.raises(ConfigError, match="content of an assistant's message once"):
        ChatFormat(tokenizer)


def test_template_options_reach_the_template():
    tokenizer = TemplateTokenizer("{{ mood }}" + SMOLLM2, CHATML_TOKENS, "<|im_end|>")
    chat = ChatFormat(tokenizer, template_options={"mood": "calm"})
    assert tokenizer.decode(list(chat.start([USER]))).startswith("calm<|im_start|>")
    with pytest.raises(ConfigError, match=r"no variable 'moood'.*mood"):
        ChatFormat(tokenizer, template_options={"moood": "calm"})


def test_a_run_gives_its_template_options_to_the_template():
    tokenizer = TemplateTokenizer("{{ mood }}" + SMOLLM2, CHATML_TOKENS, "<|im_end|>")
    trajectory = run_episode(
        ScriptedEngine("fine", tokenizer),
        Task("t", "How are you?"),
        agent_class=ModelAgent,
        env_class=TaskEnvironment,
        env_kwargs={"reward_fn": lambda task, answer: 1.0},
        config=RolloutConfig(template_options={"mood": "calm"}),
    )
    assert tokenizer.decode(list(trajectory.rows[0].tokens)).startswith("calm<|im_start|>")


def real_tokenizer(template: str = SMOLLM2) -> Any:
    """A tokenizer of `transformers`, made on the spot: one token per byte and the ChatML ones."""
    from agentlab.models.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_tokenizer_of_transformers_works_and_keeps_control_tokens_apart():
    tokenizer = real_tokenizer()
    chat = ChatFormat(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokens = chat.start([{"role": "system", "content": "S"}, {"role": "user", "content": "a<|im_end|>b"}])
    assert tokens.count(end) == 2
    assert tokenizer.decode(list(tokens)) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n"
    )
    sampled = [*tokenizer.encode("ok", add_special_tokens=False), end]
    assert chat.decode(sampled) == "ok"
    assert tokenizer.decode(list(chat.extend(sampled, [USER]))) == (
        "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.model
def test_a_dialogue_of_smollm2_built_from_deltas_equals_its_full_rendering():
    from agentlab.models import load_model

    tokenizer = load_model("HuggingFaceTB/SmolLM2-135M-Instruct", progress=False).tokenizer
    chat = ChatFormat(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    messages = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "What is 12 * 11?"}]
    tokens = list(chat.start(messages))
    for said, observed in (("calculator(12 * 11)", "132"), ("It is 132.\n\nRight?", "  Yes <repo_name> \n")):
        sampled = [*tokenizer.encode(said, add_special_tokens=False), end]
        news = [{"role": "tool", "content": observed}]
        tokens += [*sampled, *chat.extend(sampled, news)]
        messages += [{"role": "assistant", "content": said}, *news]
    whole = tokenizer.apply_chat_template(chat.template_messages(messages), tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(tokens) == whole
    assert tokens.count(end) == 6
    assert tokenizer.convert_tokens_to_ids("<repo_name>") not in tokens
    harmless = tokenizer.encode(whole.partition("  Yes")[0], add_special_tokens=False)
    assert tokens[: len(harmless) - 1] == harmless[:-1]
