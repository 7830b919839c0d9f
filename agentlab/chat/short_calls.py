"""Tool calls as short text, `calculator(12 * 11)`: few tokens, for small models."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from agentlab.chat.code_calls import bound
from agentlab.chat.described import signatures
from agentlab.chat.examples import example_call
from agentlab.chat.json_calls import MAX_CALLS, JSONReader, read_json
from agentlab.chat.literals import CLOSING, KEYWORD, Argument, Malformed, PythonReader, python_value
from agentlab.chat.parsers import ToolCallParser
from agentlab.chat.typed import kinds, parameters_of, properties_of
from agentlab.types import ToolCall, ToolSpec

MAX_BRACKETS = 256
"""Brackets, quotes and commas of bare text that are paired; with more, it must be quoted."""
MAX_ARGUMENTS = 64
"""Arguments of one call that are bare text."""
SIGNIFICANT = re.compile(r'["()\[\]{}]')
QUOTES_TOO = re.compile(r"[\"'()\[\]{}]")
SEPARATING = re.compile(r'["()\[\]{},]')
STRING = re.compile(r'"(?:[^"\\\n]++|\\.)*+"')
EITHER_STRING = re.compile(r"\"(?:[^\"\\\n]++|\\.)*+\"|'(?:[^'\\\n]++|\\.)*+'")
NAME = r"[A-Za-z_][\w.-]{0,63}"
LINE_CALL = re.compile(rf"^[ \t]*({NAME})[(]", re.MULTILINE)
ACTION = re.compile(rf"^[ \t]{{0,16}}Action:[ \t]*({NAME})[ \t]*([(\[]?)", re.MULTILINE)
ACTION_INPUT = re.compile(r"\s{0,8}Action Input:[ \t]{0,8}\n?")
INPUT_END = re.compile(r"^[ \t]{0,16}(?:Observation|Action|Thought|Final Answer):", re.MULTILINE)
FENCE = re.compile(r"\s{0,8}```\w{0,16}[ \t]{0,8}\n?")
FENCE_END = re.compile(r"\n?[ \t]{0,16}```")


@final
class ShortCalls(ToolCallParser):
    """`name(arguments)`: anywhere in the text for a tool on offer, else at the beginning of a line.

    Arguments are Python literals, by position or as `name=value`. A tool with one parameter also
    takes the text between the parentheses as it is, and a text may go without its quotes, where it
    is plain where it ends.
    """

    name = "short"

    def render(self, call: ToolCall) -> str:
        return f"{call.name}({render_arguments(call.arguments)})"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        names = sorted((re.escape(tool.name) for tool in tools), key=len, reverse=True)
        if not names:
            return _scan(text, LINE_CALL, tools)
        # A look-behind in the pattern would keep `re` from searching for the names' first letters.
        return _scan(text, re.compile(rf"({'|'.join(names)})[(]"), tools, stands=_begins_word)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        example = _example(tools[0], "{}({})")
        return f"You can use these tools:\n{signatures(tools)}\nTo use one, reply for example {example}"


@final
class ReAct(ToolCallParser):
    """`Action: name[arguments]` on a line of its own, or `Action: name` with `Action Input: arguments`.

    An input may be JSON over several lines, in a code fence or not; other input reaches to the next
    line that begins with Observation, Action, Thought or Final Answer.

    Source: Yao et al. 2022 (arXiv:2210.03629), figure 1, for the bracket form.
    """

    name = "react"
    marks = (("Action:", "\n"),)

    def render(self, call: ToolCall) -> str:
        return f"Action: {call.name}[{render_arguments(call.arguments)}]"

    def _find(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
        return _scan(text, ACTION, tools)

    def _describe(self, tools: Sequence[ToolSpec]) -> str:
        example = _example(tools[0], "Action: {}[{}]")
        return f"You can use these tools:\n{signatures(tools)}\nTo use one, write a line like\n{example}"


def _example(tool: ToolSpec, form: str) -> str:
    """A call as text, with names wherever a lone value would not tell which argument it is."""
    arguments = example_call(tool).arguments
    wanted = tool.parameters["required"] or tool.parameters["properties"]
    return form.format(tool.name, render_arguments(arguments) if len(wanted) == 1 else keyword_text(arguments))


def _scan(
    text: str, pattern: re.Pattern[str], tools: Sequence[ToolSpec], *, stands: Callable[[str, int], bool] | None = None
) -> tuple[str, list[ToolCall]]:
    """All calls whose beginning the pattern finds, and the text around them.

    Args:
        stands: Whether a call may begin at this place of the text.
    """
    rest: list[str] = []
    calls: list[ToolCall] = []
    begin = 0
    scanner = _Scanner(text, tools)
    while len(calls) <= MAX_CALLS and (found := pattern.search(text, begin)):
        rest.append(text[begin : found.start()])
        if stands is not None and not stands(text, found.start()):
            rest.append(found.group())
            begin = found.end()
            continue
        call, begin = scanner.call(found.group(1), found.start(), found.end())
        calls.append(call)
    return "".join([*rest, text[begin:]]), calls


def _begins_word(text: str, place: int) -> bool:
    before = text[place - 1 : place]
    return not (before.isalnum() or before in ("_", ".", "-")) or place == 0


class _Scanner:
    """Reads the arguments of calls in one turn."""

    def __init__(self, text: str, tools: Sequence[ToolSpec]) -> None:
        self._text, self._tools = text, tools
        self._python, self._json = PythonReader(text), JSONReader()

    def call(self, name: str, begin: int, end: int) -> tuple[ToolCall, int]:
        """The call whose name begins and whose head ends here, and where the text goes on after it."""
        opening = self._text[end - 1]
        try:
            if opening in CLOSING:
                return self._in_brackets(name, begin, end, CLOSING[opening])
            return self._after_head(name, end)
        except Malformed as error:
            return ToolCall(name, {}, str(error)), len(self._text)

    def _in_brackets(self, name: str, begin: int, opened: int, closing: str) -> tuple[ToolCall, int]:
        self._python.position = opened
        try:
            arguments = self._python.arguments(closing)
        except Malformed as error:
            if error.unclosed:
                raise
            return self._bare(name, begin, opened, closing, error)
        end = self._python.position
        written = self._text[opened : end - 1].strip()
        return as_call(name, arguments, written, self._tools), end

    def _bare(self, name: str, begin: int, opened: int, closing: str, strict: Malformed) -> tuple[ToolCall, int]:
        """A call whose arguments are not all literals, so that some must be bare text, on one line."""
        line_end = end_of_line(self._text, opened)
        end = closing_bracket(self._text, opened - 1, line_end, SIGNIFICANT, STRING)
        quoted_end = closing_bracket(self._text, opened - 1, line_end, QUOTES_TOO, EITHER_STRING)
        if end is None:
            raise Malformed(f"the closing {closing!r} of the call is missing, or its texts must be quoted")
        before = self._text[self._text.rfind("\n", 0, begin) + 1 : begin]
        following = self._text.startswith(closing, end + 1) and before.count("(") <= before.count(")")
        if end != quoted_end or following:
            error = f"where the call ends cannot be told: its texts must be quoted ({strict})"
            return ToolCall(name, {}, error), line_end
        raw = self._text[opened:end].strip()
        try:
            return bare_call(name, raw, self._tools), end + 1
        except Malformed as error:
            return ToolCall(name, {}, str(error)), line_end

    def _after_head(self, name: str, position: int) -> tuple[ToolCall, int]:
        """A call that is only named on its line; its arguments may follow as Action Input."""
        line_end = end_of_line(self._text, position)
        found = ACTION_INPUT.match(self._text, position)
        if found is None and self._text[position:line_end].strip():
            return ToolCall(name, {}, "after Action: there must be name[arguments], or Action Input: below"), line_end
        if found is None:
            return ToolCall(name), line_end
        fenced = FENCE.match(self._text, found.end())
        begin = fenced.end() if fenced else found.end()
        if re.compile(r"\s*+\{").match(self._text, begin):
            return self._json_input(name, begin, fenced is not None)
        ending = (FENCE_END if fenced else INPUT_END).search(self._text, begin)
        if (fenced and ending is None) or self._text[begin:].strip() in ("`", "``"):
            return ToolCall(name, {}, "the code fence of the input must be closed"), len(self._text)
        stop = ending.start() if ending else len(self._text)
        raw = self._text[begin:stop] if fenced else self._text[begin:stop].strip()
        end = ending.end() if fenced and ending else stop
        try:
            return input_call(name, raw, self._tools), end
        except Malformed as error:
            return ToolCall(name, {}, str(error)), end

    def _json_input(self, name: str, begin: int, fenced: bool) -> tuple[ToolCall, int]:
        start = self._text.index("{", begin)
        value, end, error = self._json.read(self._text, start)
        if error is not None:
            self._python.position = start
            try:
                value = self._python.value()
            except Malformed:
                raise Malformed(error) from None
            end = self._python.position
        closed = FENCE_END.match(self._text, end) if fenced else None
        end = closed.end() if closed else end
        line_end = end_of_line(self._text, end)
        if self._text[end:line_end].strip():
            raise Malformed(f"after the JSON of an input its line must end, got {self._text[end:line_end][:40]!r}")
        return bound(name, [Argument(None, value, "")], self._tools), end


def as_call(name: str, arguments: Sequence[Argument], written: str, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call with these literals; where a text is wanted, one that is no text counts as it was written."""
    schema = parameters_of(name, tools)
    properties = properties_of(schema)
    root = schema or {}
    positional = [argument for argument in arguments if argument.name is None]
    if len(properties) == 1 and len(positional) == len(arguments) > 0:
        (only, wanted), texts = next(iter(properties.items())), [isinstance(a.value, str | dict) for a in arguments]
        if kinds(wanted, root) == {"string"} and not any(texts):
            return ToolCall(name, {only: written})
    order = iter(properties)
    made: list[Argument] = []
    for argument in arguments:
        key = argument.name if argument.name is not None else next(order, None)
        text_only = key is not None and kinds(properties.get(key), root) == {"string"}
        lone = len(arguments) == 1 and argument.name is None and isinstance(argument.value, dict)
        text = text_only and not lone and not isinstance(argument.value, str)
        made.append(Argument(argument.name, argument.written, argument.written) if text else argument)
    return _known(bound(name, made, tools), tools)


def input_call(name: str, raw: str, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call with an input that is no JSON object: literals if it reads as such, else bare text.

    Raises:
        Malformed: it is neither.
    """
    reader = PythonReader(f"{raw})")
    try:
        arguments = reader.arguments(")")
    except Malformed:
        return bare_call(name, raw, tools)
    if reader.position <= len(raw):
        return bare_call(name, raw, tools)
    return as_call(name, arguments, raw, tools)


def bare_call(name: str, raw: str, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call with arguments of which some are bare text: `name=text, …`, or the one parameter's value.

    Raises:
        Malformed: it cannot be told which text is meant.
    """
    if not raw:
        return ToolCall(name)
    schema = parameters_of(name, tools)
    properties, root = properties_of(schema), schema or {}
    if isinstance(root.get("properties"), Mapping) and not properties:
        raise Malformed(f"{name} takes no arguments, got {raw[:40]!r}")
    parts = list(split_commas(raw))
    if KEYWORD.match(raw):
        named: dict[str, Any] = {}
        for part in parts:
            found = KEYWORD.match(part.strip())
            if found is None:
                raise Malformed(f"arguments must be name=value; a text with a comma must be quoted, got {part[:40]!r}")
            if found.group(1) in named:
                raise Malformed(f"the argument {found.group(1)!r} is given twice")
            text = part.strip()[found.end() :].strip()
            named[found.group(1)] = bare_value(text, properties.get(found.group(1)), root, tools)
        return _known(ToolCall(name, named), tools)
    wanted = root.get("required") or list(properties)
    if len(wanted) > 1 or (len(properties) > 1 and len(parts) > 1):
        raise Malformed(f"arguments must be written name=value, for {', '.join(wanted)}, and texts be quoted")
    only = wanted[0] if wanted else "input"
    return ToolCall(name, {only: bare_value(raw, properties.get(only), root, tools)})


def bare_value(text: str, schema: Any, root: Mapping[str, Any], tools: Sequence[ToolSpec]) -> Any:
    """A value as written: a literal, or a text without quotes where a text may stand.

    Raises:
        Malformed: it is neither.
    """
    admitted = kinds(schema, root)
    try:
        value = python_value(text)
    except Malformed:
        nested = re.match(rf"({NAME})\(", text)
        if text[:1] in ("'", '"') or (nested and parameters_of(nested.group(1), tools) is not None):
            raise
        if (admitted and "string" not in admitted) or (text[:1] in ("[", "{") and admitted != {"string"}):
            raise
        return text
    return text if admitted == {"string"} and not isinstance(value, str) else value


def _known(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCall:
    """The call, or one that says which of its arguments the tool with one parameter does not have."""
    properties = properties_of(parameters_of(call.name, tools))
    unknown = [key for key in call.arguments if key not in properties]
    if len(properties) != 1 or not unknown or call.error is not None:
        return call
    return ToolCall(call.name, {}, f"{call.name} has no argument {unknown[0]!r}, but {', '.join(properties)}")


def end_of_line(text: str, begin: int) -> int:
    """Where the line ends in which this place stands."""
    end = text.find("\n", begin)
    return len(text) if end < 0 else end


def closing_bracket(
    text: str, begin: int, end: int, significant: re.Pattern[str], string: re.Pattern[str]
) -> int | None:
    """Where the bracket at `begin` is closed before `end`, other brackets and quoted text skipped.

    Quotes that do not close are taken as text, and so are closing brackets that do not pair. None
    where it is not closed, or after more than `MAX_BRACKETS`.

    Args:
        significant: Brackets and the quotes that count.
        string: A text between such quotes.
    """
    waiting: list[str] = []
    position, unclosed = begin, ""
    for _ in range(MAX_BRACKETS):
        found = significant.search(text, position, end)
        if found is None:
            return None
        character, position = found.group(), found.end()
        if character in "\"'":
            quoted = None if character in unclosed else string.match(text, found.start(), end)
            position = quoted.end() if quoted else position
            unclosed += "" if quoted else character
        elif character in CLOSING:
            waiting.append(CLOSING[character])
        elif waiting and character == waiting[-1]:
            waiting.pop()
            if not waiting:
                return found.start()
    return None


def split_commas(text: str) -> Iterator[str]:
    """The parts of a text between commas that stand in no bracket and no quotes.

    After `MAX_ARGUMENTS` parts, or `MAX_BRACKETS` brackets, quotes and commas, the rest is one part.
    """
    depth = begin = position = num_parts = 0
    unclosed = False
    for _ in range(MAX_BRACKETS):
        found = SEPARATING.search(text, position)
        if found is None or num_parts == MAX_ARGUMENTS:
            break
        character, position = found.group(), found.end()
        if character == '"':
            quoted = None if unclosed else STRING.match(text, found.start())
            position = quoted.end() if quoted else position
            unclosed = quoted is None
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth = max(0, depth - 1)
        elif depth == 0:
            yield text[begin : found.start()]
            begin = position
            num_parts += 1
    yield text[begin:]


def render_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments as short text, such that reading it gives them back."""
    if len(arguments) == 1:
        only = next(iter(arguments.values()))
        if isinstance(only, str) and _is_plain(only):
            return only
    return keyword_text(arguments)


def keyword_text(arguments: Mapping[str, Any]) -> str:
    """Arguments as `name=value, …` with JSON values."""
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())


def _is_plain(text: str) -> bool:
    """Whether a text reads as itself between brackets."""
    return (
        bool(re.fullmatch(r"[\w+\-*/.%][\w +\-*/.%]*", text))
        and text == text.strip()
        and read_json(text)[1] is not None
    )
