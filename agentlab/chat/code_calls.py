"""Calls in Python code: bound to the parameters of their tools, never run as code."""

import re
from collections.abc import Sequence

from agentlab.chat.json_calls import MAX_CALLS, broken_call
from agentlab.chat.literals import Argument, Malformed, PythonReader
from agentlab.chat.typed import parameters_of, properties_of
from agentlab.types import ToolCall, ToolSpec

STATEMENT = re.compile(
    r"(?:[A-Za-z_]\w{0,63}\s{0,8}(?::[^=\n]{0,64})?=(?!=)[ \t]{0,16})?"
    r"(print\(\s{0,16})?(?:await[ ])?([A-Za-z_][\w.-]{0,63})\("
)
PASSIVE = re.compile(
    r"(?:import [\w., ]{1,128}|from [\w.]{1,64} import [\w., ]{1,128}|print\([A-Za-z_]\w{0,63}\))"
    r"[ \t]{0,16}(?=[\n;]|```|$)"
)
"""Lines that do nothing here: imports, and printing what a call before gave."""
AFTER_STATEMENT = re.compile(r"[ \t]*+(?:#[^\n]*+)?(?=[\n;,\]]|```|\Z)")


def python_call(reader: PythonReader, name: str) -> tuple[list[Argument], str | None]:
    """The arguments behind an opening parenthesis, and what is wrong with them."""
    try:
        return reader.arguments(")"), None
    except Malformed as error:
        return [], f"{error} (in the call of {name})"


def bound(name: str, arguments: Sequence[Argument], tools: Sequence[ToolSpec]) -> ToolCall:
    """The call with its positional arguments under the names that its tool gives them, in their order.

    A dictionary alone is all arguments by name, where its keys are the tool's. Where the tool is not
    known, one positional argument is called "input" and several are an error.
    """
    given = {argument.name: argument.value for argument in arguments if argument.name is not None}
    positional = [argument.value for argument in arguments if argument.name is None]
    if not positional:
        return ToolCall(name, given)
    schema = parameters_of(name, tools)
    names = list(properties_of(schema))
    if len(arguments) == 1 and isinstance(positional[0], dict) and (not names or set(positional[0]) <= set(names)):
        return ToolCall(name, positional[0])
    if schema is None and len(arguments) == 1:
        return ToolCall(name, {"input": positional[0]})
    wanted = ", ".join((schema or {}).get("required") or names)
    if schema is not None and not names:
        return ToolCall(name, {}, f"{name} takes no arguments by position, got {positional[0]!r:.40}")
    if len(positional) > len(names) or set(given) & set(names[: len(positional)]):
        return ToolCall(name, {}, f"arguments must be written name=value, for {wanted}, each once")
    bound_to = {**dict(zip(names, positional, strict=False)), **given}
    if missing := [key for key in (schema or {}).get("required") or () if key not in bound_to]:
        error = f"arguments must be written name=value, for {wanted}; there is none for {', '.join(missing)}"
        return ToolCall(name, {}, error)
    return ToolCall(name, bound_to)


def code_calls(reader: PythonReader, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    """The calls of a block of code, up to its closing fence or the end of the text.

    Each stands on a line of its own, perhaps assigned or inside print(...), or in a list, [a(), b()].
    Code that is anything else cannot be run: then the block is one error and none of its calls counts.
    After a call whose arguments are no literals nothing more of the block is read.
    """
    calls: list[ToolCall] = []
    num_open = 0
    names = {tool.name for tool in tools}
    while len(calls) <= MAX_CALLS:
        while reader.take(";") or reader.take(","):
            pass
        if reader.position >= len(reader.text) or reader.text.startswith("```", reader.position):
            break
        if passive := PASSIVE.match(reader.text, reader.position):
            reader.position = passive.end()
        elif reader.take("["):
            num_open += 1
        elif num_open and reader.take("]"):
            num_open -= 1
        elif (statement := STATEMENT.match(reader.text, reader.position)) is None:
            return [_foreign(reader)]
        else:
            begin, reader.position = reader.position, statement.end()
            name = statement.group(2)
            arguments, error = python_call(reader, name)
            if error is not None:
                return [*calls, ToolCall(name, {}, error)]
            printed = statement.group(1) is None or reader.take(")")
            if not printed or not AFTER_STATEMENT.match(reader.text, reader.position):
                reader.position = begin
                return [_foreign(reader)]
            if name != "print" or name in names:
                calls.append(bound(name, arguments, tools))
    return calls or [broken_call("a block of code must contain a call, name(argument=value)")]


def _foreign(reader: PythonReader) -> ToolCall:
    line = reader.text[reader.position : reader.position + 80].partition("\n")[0]
    return broken_call(
        "code must contain a call, name(argument=value) with literal values, on each line and nothing else, "
        f"got {line!r}; nothing of it was run"
    )
