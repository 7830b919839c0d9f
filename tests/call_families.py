"""Chat templates that take tools, calls of them and thoughts, each as one of the published ones does.

Written for these tests after the behaviour of the published templates: what they want arguments, ids and
empty contents to be, where they put tools, and what they leave out.
"""

from functools import cache
from typing import Any

from chat_families import CHATML, LLAMA, QWEN_MARKUP, RESULT_OF_QWEN, TOOLS_OF_QWEN, bytewise_tokenizer

THINK = ("<think>", "</think>")

CALLS_OF_QWEN = """
    {%- for c in m.tool_calls or [] %}{% set f = c.function or c %}
      {{- '\n' if not loop.first or said else '' }}
      {{- '<tool_call>\n{"name": "' + f.name + '", "arguments": ' }}
      {{- f.arguments if f.arguments is string else f.arguments | tojson }}
      {{- '}\n</tool_call>' }}
    {%- endfor %}
"""

QWEN25_CALLS = f"""{TOOLS_OF_QWEN}
{{%- elif messages[0].role != 'system' %}}{{{{ '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}}}{{% endif %}}
{{%- for m in messages %}}
  {{%- if m.role in ('user', 'system') %}}{{{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}}}
  {{%- elif m.role == 'assistant' %}}
    {{{{- '<|im_start|>assistant' }}}}{{% if m.content %}}{{{{- '\n' + m.content }}}}{{% endif %}}
    {{%- for c in m.tool_calls or [] %}}
      {{{{- '\n<tool_call>\n{{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson }}}}
      {{{{- '}}\n</tool_call>' }}}}
    {{%- endfor %}}
    {{{{- '<|im_end|>\n' }}}}
  {RESULT_OF_QWEN}
  {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}
"""


def _qwen3(written_where: str, prompt: str) -> str:
    return f"""{TOOLS_OF_QWEN}{{% endif %}}
{{%- set last = namespace(query=-1) %}}
{{%- for m in messages %}}{{% if m.role == 'user' %}}{{% set last.query = loop.index0 %}}{{% endif %}}{{% endfor %}}
{{%- for m in messages %}}
  {{%- if m.role in ('user', 'system') %}}{{{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}}}
  {{%- elif m.role == 'assistant' %}}
    {{%- set thought = '' %}}{{% set said = m.content %}}
    {{%- if m.reasoning_content is string %}}{{% set thought = m.reasoning_content %}}
    {{%- elif '</think>' in said %}}
      {{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}}
      {{%- set said = said.split('</think>')[-1].lstrip('\n') %}}
    {{%- endif %}}
    {{{{- '<|im_start|>assistant\n' }}}}
    {{%- if loop.index0 > last.query and ({written_where}) %}}
      {{{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}}}
    {{%- endif %}}
    {{{{- said }}}}{CALLS_OF_QWEN}{{{{- '<|im_end|>\n' }}}}
  {RESULT_OF_QWEN}
  {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{prompt}{{%- endif %}}
"""


QWEN3_CALLS = _qwen3(
    "loop.last or thought",
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)
QWEN35_CALLS = _qwen3(
    "true",
    "{{- '<think>\n' }}{%- if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}",
)

NEMOTRON_CALLS = """
{%- if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t.function | tojson }}{% endfor %}
  {{- '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
  {{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}
  {%- if m.role == 'assistant' %}{{ m.content.split('</think>')[-1].lstrip('\n') }}
    {%- if m.tool_calls %}{{ '<TOOLCALL>[' }}
      {%- for c in m.tool_calls %}{{ ', ' if not loop.first else '' }}
        {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson + '}' }}
      {%- endfor %}{{ ']</TOOLCALL>' }}
    {%- endif %}
  {%- else %}{{ m.content }}{% endif %}
  {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}
"""

DEEPSEEK = (
    "<|bos|>",
    "<|eos|>",
    "<|User|>",
    "<|Assistant|>",
    "<|call|>",
    "<|sep|>",
    "<|/call|>",
    "<|out|>",
    "<|/out|>",
)
DEEPSEEK_CALLS = """
{{- '<|bos|>' }}{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}
{%- for m in messages %}
  {%- if m.role == 'user' %}{{ '<|User|>' + m.content }}
  {%- elif m.role == 'tool' %}{{ '<|out|>' + m.content + '<|/out|>' }}
  {%- elif m.tool_calls %}
    {{- '<|Assistant|>' + m.content.split('</think>')[-1] }}
    {%- for c in m.tool_calls %}
      {{- '<|call|>' + c.type + '<|sep|>' + c.function.name + '\n```json\n' + c.function.arguments + '\n```<|/call|>' }}
    {%- endfor %}
    {{- '<|eos|>' }}
  {%- elif m.role == 'assistant' %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|eos|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}
"""

LLAMA31_CALLS = """
{{- '<|begin_of_text|>' }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + system | trim + '<|eot_id|>' }}
{%- if tools %}
  {{- '<|start_header_id|>user<|end_header_id|>\n\nFunctions:\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}
  {{- messages[0].content | trim + '<|eot_id|>' }}{% set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
  {%- if m.tool_calls %}
    {%- if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}
    {%- set f = m.tool_calls[0].function %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + f.name + '", "parameters": ' }}
    {{- f.arguments | tojson + '}<|eot_id|>' }}
  {%- elif m.role == 'tool' %}
    {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content | tojson + '<|eot_id|>' }}
  {%- else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""

MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOLS]", "[/TOOLS]", "[RESULT]", "[/RESULT]")
MISTRAL_CALLS = """
{{- '<s>' }}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- if m.role == 'system' %}{{ raise_exception('Only user, assistant and tool roles') }}
  {%- elif m.role == 'user' %}
    {%- if tools and loop.index0 == last.user %}{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}
    {{- '[INST]' + m.content + '[/INST]' }}
  {%- elif m.tool_calls %}
    {{- '[TOOL_CALLS][' }}
    {%- for c in m.tool_calls %}
      {%- if c.id | length != 9 %}{{ raise_exception('ids must have 9 letters') }}{% endif %}
      {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson }}
      {{- ', "id": "' + c.id + '"}' }}
      {{- ', ' if not loop.last else '' }}
    {%- endfor %}
    {{- ']</s>' }}
  {%- elif m.role == 'assistant' %}{{ ' ' + m.content | trim + '</s>' }}
  {%- elif m.role == 'tool' %}
    {{- '[RESULT]{"content": ' + m.content | tojson + ', "call_id": "' + m.tool_call_id + '"}[/RESULT]' }}
  {%- endif %}
{%- endfor %}
"""

HARMONY = ("<|start|>", "<|end|>", "<|return|>", "<|message|>", "<|channel|>", "<|call|>", "<|endoftext|>")
HARMONY_CALLS = """
{%- if tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {%- if m.thinking and loop.last %}
      {{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
    {%- endif %}
    {%- if m.tool_calls %}
      {{- '<|start|>assistant to=' + m.tool_calls[0].function.name + '<|channel|>commentary json<|message|>' }}
      {{- m.tool_calls[0].function.arguments | tojson + '<|call|>' }}
    {%- else %}
      {{- '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
    {%- endif %}
  {%- elif m.role == 'tool' %}{{ '<|start|>' + m.name + '<|message|>' + m.content | tojson + '<|end|>' }}
  {%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""

PHI = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
PHI_ENDS_TWICE = """
{%- for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}
{{- '<|assistant|>\n' if add_generation_prompt else '<|endoftext|>' }}
"""

GLM = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
GLM_ENDS_BY_WHO_IS_NEXT = """
{%- for t in tools or [] %}{{ '<|system|>\n' + t | tojson }}{% endfor %}
{%- for m in messages %}
  {%- if m.role == 'tool' %}{{ '<|observation|>\n' + m.content }}
  {%- else %}{{ '<|' + m.role + '|>\n' + m.content }}
    {%- for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.name + c.function.arguments | tojson }}
      {{- '</tool_call>' }}
    {%- endfor %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""

GEMMA4 = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|call>", "<call|>", "<|channel>", "<channel|>")
GEMMA4_THINKS_TO_CALL = """
{%- for t in tools or [] %}{{ '<|turn>system\n' + t | tojson + '<turn|>\n' }}{% endfor %}
{%- for m in messages %}
  {{- '<|turn>' + ('model' if m.role == 'assistant' else 'user' if m.role == 'tool' else m.role) + '\n' }}
  {%- if m.tool_calls and m.reasoning_content and KNOWS_THOUGHTS %}
    {{- '<|channel>thought\n' + m.reasoning_content + '\n<channel|>' }}
  {%- endif %}
  {%- for c in m.tool_calls or [] %}{{ '<|call>call:' + c.function.name }}{% for k, v in c.function.arguments.items() %}
    {{- '{' + k + ':' + v + '}' }}{% endfor %}{{ '<call|>' }}
  {%- endfor %}
  {{- m.content + '<turn|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}
"""

CALLING: dict[str, tuple[str, tuple[str, ...], str, tuple[str, ...]]] = {
    "qwen2.5": (QWEN25_CALLS, CHATML, "<|im_end|>", QWEN_MARKUP),
    "qwen3": (QWEN3_CALLS, CHATML, "<|im_end|>", (*QWEN_MARKUP, *THINK)),
    "qwen3.5": (QWEN35_CALLS, CHATML, "<|im_end|>", (*QWEN_MARKUP, *THINK)),
    "nemotron": (NEMOTRON_CALLS, (*CHATML, *THINK), "<|im_end|>", ()),
    "deepseek": (DEEPSEEK_CALLS, DEEPSEEK, "<|eos|>", THINK),
    "llama3.1": (LLAMA31_CALLS, LLAMA, "<|eot_id|>", ()),
    "mistral": (MISTRAL_CALLS, MISTRAL, "</s>", ()),
    "harmony": (HARMONY_CALLS, HARMONY, "<|return|>", ()),
}
"""By family: the template, its special tokens, the one that ends a turn, and other tokens it writes."""

PECULIAR: dict[str, tuple[str, tuple[str, ...], str, tuple[str, ...]]] = {
    "phi": (PHI_ENDS_TWICE, PHI, "<|endoftext|>", ()),
    "glm": (GLM_ENDS_BY_WHO_IS_NEXT, GLM, "<|endoftext|>", ()),
    "gemma4": (GEMMA4_THINKS_TO_CALL.replace("KNOWS_THOUGHTS", "true"), GEMMA4, "<eos>", ()),
    "gemma4 without thoughts": (GEMMA4_THINKS_TO_CALL.replace("KNOWS_THOUGHTS", "false"), GEMMA4, "<eos>", ()),
}
"""The same of families whose turns end, or begin, otherwise than those of all others."""


@cache
def calling_tokenizer(family: str) -> Any:
    """As `family_tokenizer`, of a family whose template takes calls."""
    return bytewise_tokenizer(*(CALLING | PECULIAR)[family])
