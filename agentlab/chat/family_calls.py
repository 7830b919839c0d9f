"""Tool calls as the families of Qwen3-Coder, Llama 3 and Gemma write them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

from agentlab.chat.function_gemma import read_function_gemma, typed
from agentlab.chat.parsers import (
    MAX_ARGUMENTS,
    MAX_CALLS,
    ToolCallParser,
    between,
    broken_call,
    call_from_value,
    example_call,
    read_json,
    signatures,
)
from agentlab.chat.short_calls import closing_bracket, keyword_text, read_arguments
from agentlab.types import ToolCall, ToolSpec

PYTHON_TAG = "<|python_tag|>"
FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")
CODE_CALL = re.compile(r"[\s,\[]{0,64}+(?:print\()?([A-Za-z_][\w.-]{0,63})\(")
MAX_CODE_LINES = 256
"""Lines of one block of code in which calls are looked for."""


@final
class Qwen3Coder(ToolCallParser):
    """XML-like tags with a value each, as Qwen3-Coder writes them; types come from the tools' schemas."""

    name = "qwen3_coder"
    marks = (("<function=", "</function>"),)

    def render(self, call: ToolCall) -> str:
        values = "".join(
            f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for name, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        rest, bodies = between(text, "<function=", "</function>")
        rest = rest.replace("<tool_call>", "").replace("</tool_call>", "")
        if not bodies and "<tool_call>" in text:
            return rest, [broken_call("a tool call must contain <function=name>")]
        return rest, [self._read(body, tools) for body in bodies]

    def _read(self, body: str, tools: Sequence[ToolSpec]) -> ToolCall:
        name, closed, inside = body.partition(">")
        if not closed or not FUNCTION_NAME.fullmatch(name):
            return broken_call("a tool call must begin with <function=name>")
        schema: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
        arguments: dict[str, Any] = {}
        parts = inside.split("<parameter=", MAX_ARGUMENTS + 1)[1:]
        if len(parts) > MAX_ARGUMENTS:
            return ToolCall(name, {}, f"a call may have {MAX_ARGUMENTS} parameters, this has more")
        for part in parts:
            key, opened, value = part.partition(">")
            value, ended, _ = value.partition("</parameter>")
            if not opened or not ended:
                return ToolCall(name, {}, "a parameter must be <parameter=name>value</parameter>")
            if key in arguments:
                return ToolCall(name, {}, f"the parameter {key!r} is given twice")
            text = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = typed(text, schema.get("properties", {}).get(key, {"type": "string"}))
        return ToolCall(name, arguments)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these tools:\n{signatures(tools)}\n"
            f"To call one, reply like this:\n{self.render(example_call(tools[0]))}"
        )


@final
class Llama3(ToolCallParser):
    """The turn is JSON with "name" and "parameters", or code, after <|python_tag|> or without it."""

    name = "llama3"
    marks = ((PYTHON_TAG, "\0"), ('{"', "}"))

    def render(self, call: ToolCall) -> str:
        return json.dumps({"name": call.name, "parameters": dict(call.arguments)}, ensure_ascii=False)

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        before, tag, after = text.partition(PYTHON_TAG)
        payload = (after if tag else text).strip()
        if payload.startswith("{") and (tag or '"name"' in payload):
            return (before if tag else ""), [_object_call(item) for item in _objects(payload)]
        if not tag:
            return text, []
        name, dot, arguments = payload.partition(".call(")
        if dot and FUNCTION_NAME.fullmatch(name) and arguments.endswith(")"):
            return before, [read_arguments(name, arguments[:-1].strip(), tools)]
        return before, [broken_call(f"after {PYTHON_TAG} there must be a JSON object or name.call(...)")]

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these functions:\n{signatures(tools)}\n"
            f"To call one, reply with nothing but JSON, like this:\n{self.render(example_call(tools[0]))}"
        )


@final
class Gemma(ToolCallParser):
    """Python calls in ```tool_code blocks or as `[name(key=value)]` and nothing else (Gemma 3), or
    `call:name{key:value}` in tags (FunctionGemma).

    Source: ai.google.dev/gemma/docs, function calling.
    """

    name = "gemma"
    marks = (("```tool_code", "\n```"), ("<start_function_call>", "<end_function_call>"))

    def render(self, call: ToolCall) -> str:
        return f"```tool_code\n{call.name}({keyword_text(call.arguments)})\n```"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        if "<start_function_call>" in text:
            rest, bodies = between(text, "<start_function_call>", "<end_function_call>")
            return rest, [read_function_gemma(body.strip(), tools) for body in bodies]
        listed = text.strip()
        if listed.startswith("[") and listed.endswith(")]") and CODE_CALL.match(listed):
            return "", _code_calls(listed, tools)
        rest, blocks = between(text, "```tool_code", "```")
        calls = [call for block in blocks for call in _code_calls(block, tools)]
        return rest, calls

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        return (
            f"You can call these functions:\n{signatures(tools)}\n"
            f"To call one, reply like this:\n{self.render(example_call(tools[0]))}"
        )


def _objects(payload: str) -> list[tuple[Any, str | None]]:
    """JSON objects that follow each other, separated by semicolons: (value, what is wrong)."""
    whole, error = read_json(payload)
    if error is None:
        return [(whole, None)]
    pieces = re.split(r"\}[ \n]?;[ \n]?(?=\{)", payload, maxsplit=MAX_CALLS)
    return [read_json(piece + ("}" if index < len(pieces) - 1 else "")) for index, piece in enumerate(pieces)]


def _object_call(item: tuple[Any, str | None]) -> ToolCall:
    value, error = item
    return call_from_value(value) if error is None else broken_call(error)


def _code_calls(block: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    """Calls in a block of code: on lines of their own, inside print(...), or in a list, [a(), b()]."""
    code = block.strip()
    calls: list[ToolCall] = []
    begin = 0
    for _ in range(MAX_CODE_LINES):
        found = CODE_CALL.match(code, begin)
        if found is not None and len(calls) <= MAX_CALLS:
            end = closing_bracket(code, found.end() - 1, len(code))
            calls.append(_code_call(found.group(1), None if end is None else code[found.end() : end], tools))
            begin = len(code) if end is None else end + 1
            continue
        line_end = code.find("\n", begin)
        if line_end < 0:
            break
        begin = line_end + 1
    return calls or [broken_call("a tool_code block must contain a call, name(argument=value)")]


def _code_call(name: str, arguments: str | None, tools: Sequence[ToolSpec]) -> ToolCall:
    if arguments is None:
        return ToolCall(name, {}, "the closing ')' of the call is missing")
    return _positional(read_arguments(name, arguments.strip().removesuffix(","), ()), tools)


def _positional(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call with a lone argument under the name that its tool gives it."""
    known = next((tool.parameters.get("properties", {}) for tool in tools if tool.name == call.name), {})
    if list(call.arguments) == ["input"] and "input" not in known and len(known) >= 1:
        return ToolCall(call.name, {next(iter(known)): call.arguments["input"]}, call.error)
    return call
