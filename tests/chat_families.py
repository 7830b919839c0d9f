"""Chat templates that behave as those of the model families do, over byte-level tokenizers of `transformers`.

They are written for these tests after the published templates' behaviour: which roles they know, what
they trim, put in, quote, refuse and leave out.
"""

from functools import cache
from typing import Any

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")

SMOLLM2 = """
{%- for m in messages %}
  {%- if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}
  {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

TOOLS_OF_QWEN = """
{%- if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}
  {{- '\nCall one within <tool_call></tool_call>.<|im_end|>\n' }}
"""
RESULT_OF_QWEN = """
  {%- elif m.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
    {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
"""

QWEN25 = f"""{TOOLS_OF_QWEN}
{{%- elif messages[0].role != 'system' %}}{{{{ '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}}}{{% endif %}}
{{%- for m in messages %}}
  {{%- if m.role in ('user', 'system', 'assistant') %}}
    {{{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}}}
  {RESULT_OF_QWEN}
  {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}
"""

QWEN3 = f"""{TOOLS_OF_QWEN}{{% endif %}}
{{%- set last = namespace(query=-1) %}}
{{%- for m in messages %}}{{% if m.role == 'user' %}}{{% set last.query = loop.index0 %}}{{% endif %}}{{% endfor %}}
{{%- for m in messages %}}
  {{%- if m.role in ('user', 'system') %}}
    {{{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}}}
  {{%- elif m.role == 'assistant' %}}
    {{%- set thought = '' %}}{{% set said = m.content %}}
    {{%- if '</think>' in said %}}
      {{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}}
      {{%- set said = said.split('</think>')[-1].lstrip('\n') %}}
    {{%- endif %}}
    {{{{- '<|im_start|>assistant\n' }}}}
    {{%- if loop.index0 > last.query and (loop.last or thought) %}}
      {{{{- '<think>\n' + thought + '\n</think>\n\n' }}}}
    {{%- endif %}}
    {{{{- said + '<|im_end|>\n' }}}}
  {RESULT_OF_QWEN}
  {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}
  {{%- if enable_thinking is defined and not enable_thinking %}}{{{{ '<think>\n\n</think>\n\n' }}}}{{% endif %}}
{{%- endif %}}
"""

LLAMA3 = """
{{- '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n' }}
{%- if messages[0].role == 'system' %}
  {{- messages[0].content | trim }}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{{- '<|eot_id|>' }}
{%- for m in rest %}
  {%- if m.role in ('tool', 'ipython') %}
    {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
    {%- if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}
  {%- else %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim }}
  {%- endif %}
  {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""

GEMMA2 = """
{{- '<bos>' }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}
  {{- m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}
"""

GEMMA3 = """
{{- '<bos>' }}
{%- if messages[0].role == 'system' %}
  {%- set first = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}
{%- else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}
  {%- if m.content is string %}{{ m.content | trim }}{% else %}{{ raise_exception('Invalid content') }}{% endif %}
  {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}
"""

PROMPT_OF_QWEN = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n"
QWEN35 = (
    QWEN3.replace(" and (loop.last or thought)", "")
    .replace(PROMPT_OF_QWEN, PROMPT_OF_QWEN + "<think>\n")
    .replace("'<think>\n\n</think>\n\n'", "'\n</think>\n\n'")
)
"""The template of Qwen 3 with the thought opened by the prompt, and kept while tools are called."""

DEEPSEEK_R1 = """
{{- '<|bos|>' }}
{%- for m in messages %}
  {%- if m.role == 'system' %}{{ m.content }}
  {%- elif m.role == 'assistant' %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|eos|>' }}
  {%- else %}{{ '<|User|>' + m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}
"""

NEMOTRON = """
{%- set ns = namespace(thinks=true) %}
{%- for m in messages %}{% if '/no_think' in m.content %}{% set ns.thinks = false %}{% endif %}{% endfor %}
{%- for m in messages %}
  {{- '<|im_start|>' + m.role + '\n' + m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' + ('<think>\n' if ns.thinks else '<think></think>') }}
{%- endif %}
"""

FAMILIES: dict[str, tuple[str, tuple[str, ...], str, tuple[str, ...]]] = {
    "smollm2": (SMOLLM2, CHATML, "<|im_end|>", ()),
    "qwen2.5": (QWEN25, CHATML, "<|im_end|>", QWEN_MARKUP),
    "qwen3": (QWEN3, CHATML, "<|im_end|>", (*QWEN_MARKUP, "<think>", "</think>")),
    "llama3": (LLAMA3, LLAMA, "<|eot_id|>", ()),
    "gemma2": (GEMMA2, GEMMA, "<end_of_turn>", ()),
    "gemma3": (GEMMA3, GEMMA, "<end_of_turn>", ()),
}
"""By family: the template, its special tokens, the one that ends a turn, and other tokens it writes."""


OPENING: dict[str, tuple[str, tuple[str, ...], str, tuple[str, ...]]] = {
    "qwen3.5": (QWEN35, CHATML, "<|im_end|>", (*QWEN_MARKUP, "<think>", "</think>")),
    "deepseek-r1": (
        DEEPSEEK_R1,
        ("<|bos|>", "<|eos|>", "<|User|>", "<|Assistant|>"),
        "<|eos|>",
        ("<think>", "</think>"),
    ),
    "nemotron": (NEMOTRON, CHATML, "<|im_end|>", ()),
}
"""The same of families whose generation prompt opens a thought; the tags of the last are no tokens of their own."""


@cache
def family_tokenizer(family: str) -> Any:
    """A tokenizer of one token per byte, special tokens as the family's, and markup that is not special."""
    return bytewise_tokenizer(*(FAMILIES | OPENING)[family])


def bytewise_tokenizer(template: str, specials: tuple[str, ...], end: str, markup: tuple[str, ...]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytewise = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    bytewise.add_tokens([AddedToken(text, special=False, normalized=False) for text in markup])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        eos_token=end,
        pad_token=specials[0],
        additional_special_tokens=list(specials),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template.strip()
    return tokenizer
