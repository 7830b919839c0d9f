"""Conversations as people have them, read into plain parts: what cannot be honoured is refused by row and key."""

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentlab.chat.json_calls import read_json
from agentlab.chat.reasoning import THINK_CLOSE, THINK_OPEN
from agentlab.errors import ConfigError, nearest
from agentlab.types import Message, ToolCall, ToolSpec

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Under which a message of the assistant has what it thought, in the data of one or another server."""
KEYS = {
    "assistant": ("role", "content", "weight", "tool_calls", *REASONING_KEYS),
    "tool": ("role", "content", "weight", "tool_call_id", "name"),
}
OTHER_KEYS = ("role", "content", "weight")
REFUSED_COLUMNS = (
    "audio", "audios", "chat_template_kwargs", "documents", "function_call", "functions", "image", "images", "system",
    "video", "videos", "weight", "weights",
)  # fmt: skip
"""What a row may have beside "messages" that would change what is learned, and is not honoured."""


@dataclass(frozen=True)
class MadeCall:
    """A call in a demonstration; its id is "" where the data has none."""

    id: str
    call: ToolCall

    def as_message(self) -> Message:
        """In OpenAI's form, arguments as a dictionary."""
        function = {"name": self.call.name, "arguments": dict(self.call.arguments)}
        return {**({"id": self.id} if self.id else {}), "type": "function", "function": function}


@dataclass(frozen=True)
class Said:
    """A message of the assistant, its parts told apart."""

    content: str
    reasoning: str = ""
    """Without tags; empty where it did not think."""
    calls: tuple[MadeCall, ...] = ()
    weight: float = 1.0
    """Of each of its tokens in the loss."""
    opened: bool = False
    """Whether the prompt had opened a thought for it, so that its text has one, be it empty."""

    def as_message(self) -> Message:
        """As the data would have it."""
        made: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.calls:
            made["tool_calls"] = [one.as_message() for one in self.calls]
        return made if self.weight == 1.0 else {**made, "weight": self.weight}


@dataclass(frozen=True)
class Conversation:
    """A row of the data."""

    messages: tuple[Message | Said, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """As chat templates take them: {"type": "function", "function": {"name", "description", "parameters"}}."""

    def with_opened(self, place: int) -> "Conversation":
        """The same, where the prompt of the assistant's message at this place is known to open a thought."""
        said = self.said(place)
        return replace(self, messages=(*self.messages[:place], replace(said, opened=True), *self.messages[place + 1 :]))

    def said(self, place: int) -> Said:
        """The assistant's message at this place."""
        message = self.messages[place]
        assert isinstance(message, Said), f"message {place} is {message!r}"
        return message

    def role_after(self, place: int) -> str | None:
        """Of the message after this place; None where none follows."""
        if place + 1 == len(self.messages):
            return None
        following = self.messages[place + 1]
        return "assistant" if isinstance(following, Said) else following["role"]

    @property
    def said_at(self) -> list[int]:
        """Places of the assistant's messages."""
        return [place for place, message in enumerate(self.messages) if isinstance(message, Said)]

    @property
    def specs(self) -> list[ToolSpec]:
        """Its tools, as parsers take them."""
        functions = [tool["function"] for tool in self.tools]
        return [ToolSpec(f["name"], f.get("description") or "", f.get("parameters") or {}) for f in functions]


def read_conversation(row: Any, index: int) -> Conversation:
    """A list of messages, or a dictionary with such a list under "messages" and perhaps "tools".

    A message has a "role" and a "content": text, or a list of text parts. The assistant's may also have

    - "tool_calls", in OpenAI's form, arguments as JSON text or as a dictionary;
    - "reasoning_content", "reasoning" or "thinking": what it thought before it spoke;
    - "weight", 0 or more: what each token of it counts in the loss (1 where there is none).

    A message with the role "tool" may say by "tool_call_id" or "name" which call it answers; without
    them results answer the calls in their order. Keys that hold nothing (None, empty) count as absent.

    Args:
        row: Of the data.
        index: Its number, for messages of errors.

    Raises:
        ConfigError: it is malformed, has what would not be honoured, or nothing in it is to be learned.
    """
    messages = row.get("messages") if isinstance(row, Mapping) else row
    if not isinstance(messages, list | tuple) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise ConfigError(
            f'Conversation {index} must be a list of messages {{"role": …, "content": …}}, or a dictionary with '
            f'such a list under "messages", got {row!r:.80}.'
        )
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:] or roles[0] == "assistant":
        raise ConfigError(
            f"Conversation {index} must have an assistant's turn after a message of somebody else, got the roles "
            f"{', '.join(map(str, roles)) or 'of nobody'}: what an assistant says is learned as the answer to it."
        )
    tools = _tools(row, f"Conversation {index}") if isinstance(row, Mapping) else ()
    read = [_message(message, f"Conversation {index}, message {place}") for place, message in enumerate(messages)]
    if not any(message.weight for message in read if isinstance(message, Said)):
        raise ConfigError(f"Conversation {index}: every turn of the assistant has the weight 0. Leave it out.")
    return Conversation(tuple(_answered(read, f"Conversation {index}")), tools)


def is_absent(value: Any) -> bool:
    """Whether a key that holds this holds nothing, as columns have it that only some rows fill."""
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def _message(message: Mapping[str, Any], where: str) -> Message | Said:
    role = message["role"]
    if not isinstance(role, str) or not role:
        raise ConfigError(f"{where}: the role must be a word, got {role!r:.80}.")
    known = KEYS.get(role, OTHER_KEYS)
    for key, value in message.items():
        if key not in known and not is_absent(value):
            raise ConfigError(
                f"{where} has the key {key!r}, which is not honoured in a message of the role {role!r} and might "
                f"change what is learned. Take it out.{nearest(str(key), known)}"
            )
    weight = _weight(message.get("weight"), where)
    if role == "assistant":
        return _said(message, 1.0 if weight is None else weight, where)
    if weight:
        raise ConfigError(f"{where} has the weight {weight}, but only what the assistant says is learned. Take it out.")
    named = {
        key: message[key] for key in ("tool_call_id", "name") if role == "tool" and not is_absent(message.get(key))
    }
    for key, value in named.items():
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} must be a text, got {value!r:.80}.")
    return {"role": role, **named, "content": text_of(message.get("content"), where)}


def _weight(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ConfigError(f"{where}: weight must be a number of 0 or more, got {value!r:.80}.")
    return float(value)


def text_of(content: Any, where: str) -> str:
    """The text of a content: as it is, or its text parts joined; empty where there is none.

    Raises:
        ConfigError: a part is no text.
    """
    if is_absent(content):
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ConfigError(f"{where}: content must be text or a list of text parts, got {content!r:.80}.")
    return "".join(_part(part, f"{where}, part {number}") for number, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    filled = {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
    if (
        filled.get("type", "text") != "text"
        or set(filled) - {"type", "text"}
        or not isinstance(filled.get("text"), str)
    ):
        raise ConfigError(
            f'{where} of the content must be {{"type": "text", "text": …}}: nothing else, such as images, is '
            f"honoured. Got {part!r:.80}."
        )
    return filled["text"]


def _said(message: Mapping[str, Any], weight: float, where: str) -> Said:
    calls = _calls(message.get("tool_calls"), where)
    if message.get("content") is None and not calls:
        raise ConfigError(f"{where}: an assistant's content must be text, got None, where it makes no calls.")
    content = text_of(message.get("content"), where)
    thoughts = {key: message[key] for key in REASONING_KEYS if not is_absent(message.get(key))}
    for key, thought in thoughts.items():
        if not isinstance(thought, str):
            raise ConfigError(f"{where}: {key} must be text, got {thought!r:.80}.")
        if THINK_OPEN in thought or THINK_CLOSE in thought:
            raise ConfigError(
                f"{where}: {key} must be the thought without tags, but has {THINK_OPEN} or {THINK_CLOSE} in it: "
                f"{thought!r:.80}."
            )
    if len(set(thoughts.values())) > 1:
        raise ConfigError(f"{where} has different texts under {' and '.join(thoughts)}. Leave one of them.")
    reasoning = next(iter(thoughts.values()), "").strip()
    inline, content = _inline_thought(content, where)
    if inline and reasoning:
        raise ConfigError(f"{where} has a thought under {next(iter(thoughts))} and in its content. Leave one of them.")
    return Said(content, reasoning or inline, calls, weight)


def _inline_thought(content: str, where: str) -> tuple[str, str]:
    """The thought that a content begins with, in tags or before a lone closing one, and what follows it."""
    opens = content.lstrip().startswith(THINK_OPEN)
    before, closed, after = content.lstrip().removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    if opens and not closed:
        raise ConfigError(f"{where} begins a thought with {THINK_OPEN} that it never ends with {THINK_CLOSE}.")
    if not closed or (not opens and THINK_OPEN in before):
        return "", content
    return before.strip(), after.lstrip()


def _calls(calls: Any, where: str) -> tuple[MadeCall, ...]:
    if is_absent(calls):
        return ()
    if not isinstance(calls, list | tuple):
        raise ConfigError(f"{where}: tool_calls must be a list of them, got {calls!r:.80}.")
    return tuple(_call(call, f"{where}, tool_calls[{number}]") for number, call in enumerate(calls))


def _call(call: Any, where: str) -> MadeCall:
    """{"id": …, "type": "function", "function": {"name": …, "arguments": …}}, or the inner dictionary alone."""
    outer = {key: value for key, value in call.items() if value is not None} if isinstance(call, dict) else {}
    function = outer.get("function", outer)
    known = {"function", "id", "type", "index"} if "function" in outer else {"name", "arguments", "id", "type", "index"}
    inner = {key for key, value in function.items() if value is not None} if isinstance(function, dict) else {"?"}
    name = function.get("name") if isinstance(function, dict) else None
    wrong = set(outer) - known or (inner - {"name", "arguments"} if "function" in outer else set())
    if wrong or outer.get("type", "function") != "function" or not isinstance(name, str) or not name:
        raise ConfigError(
            f'{where} must be {{"type": "function", "function": {{"name": …, "arguments": …}}}}, got {call!r:.120}.'
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments.strip():
        arguments, error = read_json(arguments.strip())
        if error is not None:
            raise ConfigError(f"{where}: the arguments of {name!r} are no JSON: {error}.")
    arguments = {} if isinstance(arguments, str) or arguments is None else arguments
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise ConfigError(f"{where}: the arguments of {name!r} must be a JSON object, got {arguments!r:.80}.")
    if not isinstance(outer.get("id", ""), str):
        raise ConfigError(f"{where}: the id must be a text, got {outer['id']!r:.80}.")
    return MadeCall(outer.get("id", ""), ToolCall(name, arguments))


def _answered(messages: Sequence[Message | Said], where: str) -> list[Message | Said]:
    """The messages, each result of a tool with the name and the id of the call that it answers."""
    made: list[Message | Said] = []
    open_calls: list[MadeCall] = []
    for place, message in enumerate(messages):
        if isinstance(message, Said):
            open_calls = list(message.calls)
        elif message["role"] == "tool":
            call = _answered_call(message, open_calls, f"{where}, message {place}")
            if call is not None:
                open_calls.remove(call)
                given = {"tool_call_id": call.id} if call.id else {}
                message = {"role": "tool", "name": call.call.name, **given, "content": message["content"]}
        made.append(message)
    return made


def _answered_call(message: Message, open_calls: Sequence[MadeCall], where: str) -> MadeCall | None:
    """Which call a result answers; None where the calls before it are none of `tool_calls`."""
    id, name = message.get("tool_call_id"), message.get("name")
    if not open_calls and id is None:
        return None
    fitting = [call for call in open_calls if id in (None, call.id) and name in (None, call.call.name)]
    if not fitting:
        told = " and ".join(f"{key} {value!r}" for key, value in (("tool_call_id", id), ("name", name)) if value)
        calls = ", ".join(f"{call.id or 'without id'}: {call.call.name}" for call in open_calls) or "none"
        raise ConfigError(f"{where} has {told}, but the calls before it that have no result yet are {calls}.")
    return fitting[0]


def _tools(row: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], ...]:
    for column in REFUSED_COLUMNS:
        if not is_absent(row.get(column)):
            raise ConfigError(
                f"{where} has {column!r} beside its messages, which is not honoured and might change what is learned. "
                "Write it into the messages, or take it out."
            )
    tools = row.get("tools")
    if isinstance(tools, str) and tools:
        tools, error = read_json(tools)
        if error is not None:
            raise ConfigError(f'{where}: the text under "tools" is no JSON: {error}.')
    if is_absent(tools):
        return ()
    if not isinstance(tools, list | tuple):
        raise ConfigError(f'{where}: "tools" must be a list of them or its JSON, got {tools!r:.80}.')
    return tuple(_tool(tool, f"{where}, tools[{number}]") for number, tool in enumerate(tools))


def _tool(tool: Any, where: str) -> Mapping[str, Any]:
    function = (
        tool.get("function", tool) if isinstance(tool, dict) and tool.get("type", "function") == "function" else {}
    )
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConfigError(
            f'{where} must be {{"type": "function", "function": {{"name": …, "description": …, "parameters": …}}}}, '
            f"got {tool!r:.120}."
        )
    return {"type": "function", "function": {key: value for key, value in function.items() if key != "type"}}
