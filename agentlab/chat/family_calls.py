"""Tool calls as the families of Qwen3-Coder, Llama 3 and Gemma write them."""

import json
import re
from collections.abc import Sequence
from typing import Any, final

from agentlab.chat.code_calls import bound, code_calls, python_call
from agentlab.chat.described import signatures
from agentlab.chat.examples import example_call
from agentlab.chat.function_gemma import OPENING, function_gemma_calls
from agentlab.chat.json_calls import MAX_CALLS, JSONReader, broken_call, call_from_value, untagged_calls
from agentlab.chat.literals import PythonReader, literal
from agentlab.chat.parsers import ToolCallParser
from agentlab.chat.typed import parameters_of, properties_of, typed
from agentlab.types import ToolCall, ToolSpec

PYTHON_TAG = "<|python_tag|>"
TOOL_CODE = "```tool_code"
MAX_ARGUMENTS = 64
"""Parameters of one call in tags."""
FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")
METHOD_CALL = re.compile(r"([A-Za-z_][\w-]{0,63}(?:\.[\w-]{1,63}){0,4})\.call\(")
LISTED = re.compile(r"\[\s{0,16}([A-Za-z_][\w.-]{0,63})\(.*\)\s{0,16}\]", re.DOTALL)
"""A turn that is nothing but a list of calls in Python."""
BETWEEN_CALLS = re.compile(r"(?:[\s;]++|<\|python_tag\|>)*+")
FUNCTION = re.compile(
    r"<(?:tool_call>(?:\s*+<function=(?P<tagged>[^>\n]{0,128}+)>?)?|function=(?P<bare>[^>\n]{0,128}+)>?)"
)
PARAMETER = re.compile(r"\s*+<parameter=([^>\n]{1,128})>\n?")
FUNCTION_END = re.compile(r"\s*+</function>(\s*+</tool_call>)?")
VALUE_END = re.compile(
    r"\n?</parameter>\s*+(?=<parameter=|</function>\s*+(?:</tool_call>|<tool_call>|<function=|\Z)|\Z)"
)
LOOSE_VALUE_END = re.compile(r"\n?</parameter>\s*+(?=<parameter=|</function>|\Z)")
UNCLOSED = re.compile(r"^[ \t]{0,16}+<(?:parameter|function)=[\w.-]{1,64}>[ \t]{0,16}+$", re.MULTILINE)


@final
class Qwen3Coder(ToolCallParser):
    """XML-like tags with a value each, as Qwen3-Coder writes them; types come from the tools' schemas.

    A value ends at the </parameter> after which the call goes on or ends; others are part of it.
    """

    name = "qwen3_coder"
    marks = (("<function=", "</function>"),)

    def render(self, call: ToolCall) -> str:
        values = "".join(
            f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for name, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        rest: list[str] = []
        calls: list[ToolCall] = []
        begin = 0
        while len(calls) <= MAX_CALLS and (found := FUNCTION.search(text, begin)):
            rest.append(text[begin : found.start()])
            if found.group() == "<tool_call>":
                calls.append(broken_call("a tool call must contain <function=name>"))
                begin = found.end() + len("</tool_call>") * text.startswith("</tool_call>", _skip(text, found.end()))
                continue
            call, begin = self._read(text, found, tools)
            calls.append(call)
        if len(calls) <= MAX_CALLS:
            rest.append(text[begin:])
        return "".join(rest), calls

    def _read(self, text: str, found: re.Match[str], tools: Sequence[ToolSpec]) -> tuple[ToolCall, int]:
        """The call behind its <function=…>, and where the text goes on after it."""
        tagged, position = found.group("tagged"), found.end()
        name = found.group("bare") if tagged is None else tagged
        if not found.group().endswith(">") or not FUNCTION_NAME.fullmatch(name):
            return broken_call("a tool call must begin with <function=name>"), position
        schema = parameters_of(name, tools) or {}
        arguments: dict[str, Any] = {}
        error: str | None = None
        value_end = LOOSE_VALUE_END if tagged is None else VALUE_END
        for _ in range(MAX_ARGUMENTS + 1):
            opened = PARAMETER.match(text, position)
            if opened is None:
                break
            closed = value_end.search(text, opened.end())
            if closed is None:
                return ToolCall(name, {}, "a parameter must be <parameter=name>value</parameter>"), len(text)
            key, value, position = opened.group(1), text[opened.end() : closed.start()], closed.end()
            if key in arguments:
                error = error or f"the parameter {key!r} is given twice"
            if UNCLOSED.search(value):
                error = error or f"the parameter {key!r} must be closed by </parameter> before the next tag begins"
            arguments[key] = typed(value, properties_of(schema).get(key, {"type": "string"}), schema)
        else:
            return ToolCall(name, {}, f"a call may have {MAX_ARGUMENTS} parameters, this has more"), len(text)
        ended = FUNCTION_END.match(text, position)
        if ended is None:
            error = error or "a call must be closed by </function>, with nothing but <parameter=name> tags before it"
        end = len(text) if ended is None else ended.end()
        return ToolCall(name, {} if error else arguments, error), end

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these tools:\n{signatures(tools)}\n"
            f"To call one, reply like this:\n{self.render(example_call(tools[0]))}"
        )


@final
class Llama3(ToolCallParser):
    """JSON with "name" and "parameters", or `name.call(…)`, after <|python_tag|> or without it.

    Several are separated by semicolons or lines; prose may stand before them. A turn that is nothing
    but `[name(key=value), …]`, as Llama 3.2 was taught, is read as calls of the tools on offer.
    """

    name = "llama3"
    marks = ((PYTHON_TAG, "\0"), ('{"', "}"))

    def render(self, call: ToolCall) -> str:
        return json.dumps({"name": call.name, "parameters": dict(call.arguments)}, ensure_ascii=False)

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        if (listed := LISTED.fullmatch(text.strip())) and parameters_of(listed.group(1), tools) is not None:
            return "", code_calls(PythonReader(listed.group()), tools)
        before, tag, after = text.partition(PYTHON_TAG)
        if tag and not untagged_calls(before, tools)[1]:
            return before, _tagged(after, tools)
        rest, calls = untagged_calls(text, tools)
        before, tag, after = rest.partition(PYTHON_TAG)
        if tag and calls and after.replace(PYTHON_TAG, "").strip(" ;\n\t"):
            return before, [broken_call(f"after {PYTHON_TAG} there must be calls and nothing else")]
        return before + after, calls

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these functions:\n{signatures(tools)}\n"
            f"To call one, reply with nothing but JSON, like this:\n{self.render(example_call(tools[0]))}"
        )


@final
class Gemma(ToolCallParser):
    """Python calls in ```tool_code blocks or as `[name(key=value)]` and nothing else (Gemma 3), or
    `call:name{key:value}` in tags (FunctionGemma).

    Where a block ends is told by its code, not by a fence inside a text; after a block with an error
    nothing more of the turn is read.

    Source: ai.google.dev/gemma/docs, function calling.
    """

    name = "gemma"
    marks = ((TOOL_CODE, "\n```"), ("<start_function_call>", "<end_function_call>"))

    def render(self, call: ToolCall) -> str:
        arguments = ", ".join(f"{name}={literal(value)}" for name, value in call.arguments.items())
        return f"{TOOL_CODE}\n{call.name}({arguments})\n```"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        if LISTED.fullmatch(listed := text.strip()):
            return "", code_calls(PythonReader(listed), tools)
        fenced = text.find(TOOL_CODE)
        if 0 <= text.find(OPENING) < (fenced if fenced >= 0 else len(text)):
            return function_gemma_calls(text, tools)
        rest: list[str] = []
        calls: list[ToolCall] = []
        begin, reader = 0, PythonReader(text)
        while len(calls) <= MAX_CALLS and (start := text.find(TOOL_CODE, begin)) >= 0:
            rest.append(text[begin:start])
            reader.position = start + len(TOOL_CODE)
            calls += code_calls(reader, tools)
            if any(call.error for call in calls):
                return "".join(rest), calls
            end = text.find("```", reader.position)
            begin = len(text) if end < 0 else end + len("```")
        if len(calls) <= MAX_CALLS:
            rest.append(text[begin:])
        return "".join(rest), calls

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these functions:\n{signatures(tools)}\n"
            f"To call one, reply like this:\n{self.render(example_call(tools[0]))}"
        )


def _tagged(text: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    """The calls behind <|python_tag|>, to the end of the turn."""
    wrong = broken_call(f"after {PYTHON_TAG} there must be a JSON object or name.call(...)")
    calls: list[ToolCall] = []
    json_reader, reader = JSONReader(), PythonReader(text, _between(text, 0))
    while reader.position < len(text) and len(calls) <= MAX_CALLS:
        method = METHOD_CALL.match(text, reader.position)
        if text[reader.position] == "{":
            value, reader.position, error = json_reader.read(text, reader.position)
            calls.append(call_from_value(value) if error is None else broken_call(error))
        elif method is None:
            return [wrong]
        else:
            reader.position = method.end()
            call, error = python_call(reader, method.group(1))
            calls.append(bound(method.group(1), call, tools) if error is None else ToolCall(method.group(1), {}, error))
        if calls[-1].error is not None:
            return calls
        reader.position = _between(text, reader.position)
    return calls


def _between(text: str, position: int) -> int:
    found = BETWEEN_CALLS.match(text, position)
    assert found is not None
    return found.end()


def _skip(text: str, position: int) -> int:
    return position + len(text[position : position + 16]) - len(text[position : position + 16].lstrip())
