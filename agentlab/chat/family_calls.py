"""Tool calls as the families of Qwen3-Coder, Llama 3 and Gemma write them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

from agentlab.chat.parsers import (
    ToolCallParser,
    between,
    broken_call,
    call_from_value,
    example_call,
    read_json,
    signatures,
)
from agentlab.chat.short_calls import ShortCalls, keyword_text, read_arguments
from agentlab.types import ToolCall, ToolSpec

PYTHON_TAG = "<|python_tag|>"
FUNCTION_NAME = re.compile(r"([A-Za-z_][\w.-]{0,63})")
ESCAPE = "<escape>"


@final
class Qwen3Coder(ToolCallParser):
    """XML-like tags with a value each, as Qwen3-Coder writes them; types come from the tools' schemas."""

    name = "qwen3_coder"

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
        for part in inside.split("<parameter=")[1:]:
            key, opened, value = part.partition(">")
            value, ended, _ = value.partition("</parameter>")
            if not opened or not ended:
                return ToolCall(name, {}, "a parameter must be <parameter=name>value</parameter>")
            if key in arguments:
                return ToolCall(name, {}, f"the parameter {key!r} is given twice")
            text = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = _typed(text, schema.get("properties", {}).get(key, {"type": "string"}))
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
    """Python calls in ```tool_code blocks (Gemma 3), or `call:name{key:value}` in tags (FunctionGemma)."""

    name = "gemma"

    def render(self, call: ToolCall) -> str:
        return f"```tool_code\n{call.name}({keyword_text(call.arguments)})\n```"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        if "<start_function_call>" in text:
            rest, bodies = between(text, "<start_function_call>", "<end_function_call>")
            return rest, [_function_gemma(body.strip(), tools) for body in bodies]
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
    pieces = re.split(r"\}[ \n]?;[ \n]?(?=\{)", payload)
    return [read_json(piece + ("}" if index < len(pieces) - 1 else "")) for index, piece in enumerate(pieces)]


def _object_call(item: tuple[Any, str | None]) -> ToolCall:
    value, error = item
    return call_from_value(value) if error is None else broken_call(error)


def _code_calls(block: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    """Calls in a block of code, one a line, perhaps inside print(...)."""
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    unwrapped = [
        line[len("print(") : -1] if line.startswith("print(") and line.endswith(")") else line for line in lines
    ]
    calls = [call for line in unwrapped for call in ShortCalls().parse(line).calls]
    if not calls:
        return [broken_call("a tool_code block must contain a call, name(argument=value)")]
    return [_positional(call, tools) for call in calls]


def _positional(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call with a lone argument under the name that its tool gives it."""
    known = next((tool.parameters.get("properties", {}) for tool in tools if tool.name == call.name), {})
    if list(call.arguments) == ["input"] and "input" not in known and len(known) >= 1:
        return ToolCall(call.name, {next(iter(known)): call.arguments["input"]}, call.error)
    return call


def _function_gemma(body: str, tools: Sequence[ToolSpec]) -> ToolCall:
    head, opened, inside = body.partition("{")
    name = head.strip().removeprefix("call:").strip()
    if not opened or not FUNCTION_NAME.fullmatch(name):
        return broken_call("a function call must be call:name{key:value}")
    if not inside.rstrip().endswith("}"):
        return ToolCall(name, {}, "the closing '}' of the call is missing")
    schema: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
    arguments: dict[str, Any] = {}
    for part in _escaped_parts(inside.rstrip()[:-1]):
        key, colon, value = part.partition(":")
        if not colon:
            return ToolCall(name, {}, f"an argument must be key:value, got {part[:40]!r}")
        escaped = value.startswith(ESCAPE)
        text = value.replace(ESCAPE, "")
        kind = {"type": "string"} if escaped else schema.get("properties", {}).get(key.strip(), {})
        arguments[key.strip()] = _typed(text, kind)
    return ToolCall(name, arguments)


def _escaped_parts(text: str) -> list[str]:
    """The parts of a text between commas that are not inside <escape> marks."""
    parts = [""]
    for index, piece in enumerate(text.split(ESCAPE)):
        if index % 2:
            parts[-1] += ESCAPE + piece + ESCAPE
        else:
            first, *more = piece.split(",")
            parts[-1] += first
            parts += more
    return [part for part in parts if part.strip()]


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """A value that is written without quotes: text where text is wanted, else JSON if it is any."""
    if schema.get("type") == "string":
        return text
    value, error = read_json(text.strip())
    return text if error is not None else value
