"""Conversations as token rows: what the assistant says, as a policy would have had to sample it."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from agentlab.chat.conversation import REASONING_KEYS, Conversation, Said
from agentlab.chat.format import ASSISTANT_MARK, MESSAGE_MARK, ChatFormat
from agentlab.chat.parsers import ToolCallParser
from agentlab.chat.reasoning import THINK_CLOSE, THINK_OPEN, opened_thought
from agentlab.chat.syntaxes import parser_named, parser_of_model
from agentlab.chat.template import absent_mark
from agentlab.errors import ConfigError
from agentlab.types import Message, TokenRow, ToolCall

NAME_MARK, KEY_MARK, VALUE_MARK, ID_MARK = "qzNAMEqz", "qzKEYqz", "qzVALUEqz", "qzIDqzqz9"
NO_THOUGHT = re.compile(rf"{THINK_OPEN}\s*{THINK_CLOSE}\s*")
CLOSED_THOUGHT = re.compile(rf"{THINK_OPEN}\s*{THINK_CLOSE}\s*\Z")


@dataclass(frozen=True)
class CallForm:
    """How a template wants calls."""

    as_json: bool
    """Whether arguments are given as JSON, not as a dictionary."""
    nothing: str | None
    """What stands for an empty content."""
    shows_ids: bool = False
    """Whether it writes the ids of calls."""


CALL_FORMS = tuple(CallForm(as_json, nothing) for as_json in (False, True) for nothing in ("", None))


@dataclass(frozen=True)
class Spoken:
    """A turn of the assistant as it would have been sampled."""

    tokens: tuple[int, ...]
    """With the token that ends the turn."""
    text: str
    """Of all of them."""


@final
class Demonstrator:
    """Shows conversations as a rollout would record them: prompt, the turn that is learned, what follows it.

    A turn is what the model has to say after the generation prompt. Where that prompt has opened a
    thought, the turn does not open it again, and closes it even where nothing was thought. Turns that
    the template leaves as they are go on in one row; one that is rewritten later begins a new row.

    Tools are described, and calls written, by the chat template. Where it knows none, or where a
    syntax is named, they are those of a `ToolAgent` with that syntax.

    Holds no state but what it read off the template, so any thread may use it.

    Args:
        chat: Of the model.
        tool_parser_name: "auto", or the syntax in which tools and calls are written.

    Raises:
        ConfigError: there is no such syntax.
    """

    def __init__(self, chat: ChatFormat, tool_parser_name: str | ToolCallParser = "auto"):
        self._chat, self._template = chat, chat.template
        self._named = named = tool_parser_name != "auto"
        self._parser = parser_named(tool_parser_name if named else parser_of_model(chat.tokenizer))
        self._call_form = None if named else self._find_call_form()
        self._agents_read_calls = self._call_form is not None and self._find_agents_read_calls(self._call_form)
        self._shows_tools = not named and self._find_shows_tools()
        self._reasoning_key = self._find_reasoning_key({"role": "assistant", "content": ASSISTANT_MARK})
        self._reasoning_key_of_calls = self._find_reasoning_key(_called(self._call_form)) if self._call_form else ""
        self._shows_role = functools.cache(self._find_shows_role)

    def rows(self, conversation: Conversation, index: int = 0) -> tuple[TokenRow, ...]:
        """The rows in which every turn of the assistant that has a weight is trained once.

        Args:
            conversation: From `read_conversation`.
            index: Its number, for messages of errors.

        Raises:
            ConfigError: the template refuses the conversation or leaves out a part of a turn, or the
                syntax cannot write a call.
        """
        prepared = self._prepared(conversation, index)
        added = len(prepared.messages) - len(conversation.messages)
        mark = absent_mark(prepared.messages)
        rows: list[_Row] = []
        before = 0
        for place in prepared.said_at:
            try:
                prompt = self._text(prepared, place, mark)
                plain = prompt.replace(mark, "")
                news = [message for message in prepared.messages[before:place] if not isinstance(message, Said)]
                if not rows or not rows[-1].goes_on(*self._chat.extension(rows[-1].said, news), plain):
                    rows.append(_Row(self._template.encode(prompt, mark, begins=True), plain))
                rows[-1].say(self._spoken(prepared, place, prompt, mark), prepared.said(place).weight)
                if opened_thought(prompt):
                    prepared = prepared.with_opened(place)
            except ConfigError as error:
                raise ConfigError(f"Conversation {index}, message {place - added}: {error}") from error
            before = place + 1
        return tuple(row.done() for row in rows if row.is_learned)

    def fallbacks(self, conversation: Conversation) -> tuple[str, ...]:
        """What of the conversation is not as template or agents have it, though nobody asked for that."""
        others = [message for message in conversation.messages if not isinstance(message, Said)]
        called = any(conversation.said(place).calls for place in conversation.said_at)
        taught, written = not self._named and called, self._writes_calls(conversation)
        agent = f"a ToolAgent with the syntax {self._parser.name!r}"
        notes = {
            f"The chat template shows no tools: they are described as {agent} does it.": (
                not self._named and conversation.tools and not self._shows_tools
            ),
            f"The chat template writes no calls: they are written as {agent} reads them.": taught and not written,
            f"The chat template writes calls as {agent} does not read them. SFTConfig(tool_parser_name=...) teaches a "
            "syntax that agents read.": taught and written and not self._agents_read_calls,
            "The chat template has no role for results of tools: they are shown as messages of the user.": (
                self._chat.tool_role == "user" and any(message["role"] == "tool" for message in others)
            ),
        }
        return tuple(note for note, holds in notes.items() if holds)

    # -- the conversation as the template has it --------------------------------------------------

    def _writes_calls(self, conversation: Conversation) -> bool:
        """Whether calls are left to the template; not where an agent's own description asks for another syntax."""
        return bool(self._call_form) and (self._shows_tools or not conversation.tools)

    def _prepared(self, conversation: Conversation, index: int) -> Conversation:
        """With tools, calls and roles that the template does not show written as it shows them."""
        wheres = [f"Conversation {index}, message {place}" for place in range(len(conversation.messages))]
        messages = [
            self._with_known_role(message, place, wheres[place]) for place, message in enumerate(conversation.messages)
        ]
        if not self._writes_calls(conversation):
            messages = [
                self._with_written_calls(message, conversation, where) if isinstance(message, Said) else message
                for message, where in zip(messages, wheres, strict=True)
            ]
        if not conversation.tools or self._shows_tools:
            return replace(conversation, messages=tuple(messages))
        described = self._parser.describe(conversation.specs)
        first = messages[0]
        if not isinstance(first, Said) and first["role"] == "system":
            described = "\n\n".join(filter(None, (first["content"], described)))
            messages = messages[1:]
        return Conversation(({"role": "system", "content": described}, *messages))

    def _with_written_calls(self, said: Said, conversation: Conversation, where: str) -> Said:
        """The calls after the content, as an agent of this syntax would read them."""
        if not said.calls:
            return said
        calls = tuple(one.call for one in said.calls)
        content = "\n".join(filter(None, (said.content, *map(self._parser.render, calls))))
        read = self._parser.parse(content, conversation.specs)
        if (read.text, read.calls) != (said.content.strip(), calls):
            raise ConfigError(
                f"{where}: the syntax {self._parser.name!r} cannot write its content and tool_calls: {content!r:.200} "
                f"is read as {read.text!r:.80} and {read.calls!r:.200}. Give another tool_parser_name, or the row its "
                '"tools", from which some syntaxes have names and types of arguments.'
            )
        return replace(said, content=content, calls=())

    def _with_known_role(self, message: Message | Said, place: int, where: str) -> Message | Said:
        if isinstance(message, Said) or message["role"] in ("system", "user", "tool"):
            return message
        if self._shows_role(message["role"], place == 0):
            return message
        if message["role"] == "developer":
            return {**message, "role": "system"}
        raise ConfigError(
            f"{where} has the role {message['role']!r}, which the chat template does not show. "
            "Use system, user, assistant or tool."
        )

    def _text(self, conversation: Conversation, end: int, mark: str, *, prompt: bool = True) -> str:
        """The template's text of the first messages, with marks in what must not become control tokens."""
        messages = [self._as_message(message, mark) for message in conversation.messages[:end]]
        return self._apply(messages, prompt=prompt, tools=conversation.tools)

    def _apply(self, messages: Sequence[Message], *, prompt: bool, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        made = self._chat.template_messages(messages)
        if self._call_form and self._call_form.nothing is None:
            made = [{**m, "content": m["content"] or None} if m.get("tool_calls") else m for m in made]
        return self._template.apply(made, prompt=prompt, tools=tools)

    def _as_message(self, message: Message | Said, mark: str) -> Message:
        if not isinstance(message, Said):
            return self._template.defused_message(message, mark)
        content = self._template.defused(message.content, mark)
        reasoning = self._template.defused(message.reasoning, mark)
        made: Message = {"role": "assistant", "content": content}
        if key := self._reasoning_key_of_calls if message.calls else self._reasoning_key:
            made |= {key: reasoning} if reasoning else {}
        elif reasoning or message.opened:
            made["content"] = f"{THINK_OPEN}\n{reasoning}\n{THINK_CLOSE}\n\n{content}"
        if message.calls and self._call_form:
            if self._call_form.shows_ids and not all(one.id for one in message.calls):
                raise ConfigError("its tool_calls must have ids: the chat template writes them, so they are learned.")
            made["tool_calls"] = [
                _tool_call(
                    one.id or f"call{number:05d}",
                    one.call.name,
                    self._template.defused(dict(one.call.arguments), mark),
                    as_json=self._call_form.as_json,
                )
                for number, one in enumerate(message.calls)
            ]
        return made

    # -- a turn -----------------------------------------------------------------------------------

    def _spoken(self, conversation: Conversation, place: int, prompt: str, mark: str) -> Spoken:
        said = conversation.said(place)
        base, opened = _before_thought(prompt)
        if said.reasoning and base != prompt and not opened:
            raise ConfigError(
                "it has a thought, but the generation prompt ends it before it begins. Take the thought out, or let "
                "the model think (template_options)."
            )
        text, end, token = self._after_prompt(conversation, place, base, mark)
        text = self._after_thought(conversation, place, text, base, opened, mark)
        plain = text.replace(mark, "")
        self._check(said, plain)
        return Spoken((*self._template.encode(text, mark), token), plain + end)

    def _after_thought(
        self, conversation: Conversation, place: int, text: str, base: str, opened: str, mark: str
    ) -> str:
        """The turn after what the prompt has opened of it, from the template's text of the turn."""
        said = conversation.said(place)
        empty = None if said.reasoning else NO_THOUGHT.match(text)
        if said.reasoning and said.reasoning not in text.replace(mark, ""):
            silent = replace(said, reasoning="")
            messages = (*conversation.messages[:place], silent)
            text, *_ = self._after_prompt(replace(conversation, messages=messages), place, base, mark)
            body = NO_THOUGHT.sub("", text, count=1) if NO_THOUGHT.match(text) else text
            thought = self._template.defused(said.reasoning, mark)
            return ("" if opened else f"{THINK_OPEN}\n") + f"{thought}\n{THINK_CLOSE}\n\n{body}"
        if not opened:
            return text[empty.end() :] if empty else text
        if text.startswith(THINK_OPEN):
            return text.removeprefix(opened) if text.startswith(opened) else text.removeprefix(THINK_OPEN)
        return text if said.reasoning else f"\n{THINK_CLOSE}\n\n{text}"

    def _after_prompt(self, conversation: Conversation, place: int, base: str, mark: str) -> tuple[str, str, int]:
        """The template's text of a turn, the text of its end, and the token that ends it."""
        rest = self._rest(conversation, place, base, mark)
        pattern = self._template.special_pattern
        for found in pattern.finditer(rest, len(self._template.before_end(rest))) if pattern else ():
            token = self._template.specials[found.group()]
            if token in self._chat.stop_token_ids:
                return rest[: found.start()], found.group(), token
        called = "tool" if conversation.said(place).calls else "user"
        ending = self._chat.ending(conversation.role_after(place) or called)
        return rest.rstrip() + ending.text, ending.token, ending.token_id

    def _rest(self, conversation: Conversation, place: int, base: str, mark: str) -> str:
        whole = self._text(conversation, place + 1, mark, prompt=False)
        if whole.startswith(base):
            return whole[len(base) :]
        asked, _ = _before_thought(self._apply(self._chat.dialogue, prompt=True))
        shown = self._as_message(conversation.messages[place], mark)
        whole = self._apply([*self._chat.dialogue, shown], prompt=False)
        if whole.startswith(asked):
            return whole[len(asked) :]
        if not {"tool_calls", self._reasoning_key} & set(shown):
            return shown["content"] + self._chat.ending().text + self._chat.ending().token
        raise ConfigError(
            "the chat template does not begin a turn with tool_calls as its generation prompt does. Name the syntax "
            'in which calls are written instead, e.g. SFTConfig(tool_parser_name="hermes").'
        )

    def _check(self, said: Said, text: str) -> None:
        """Refuse a turn of which something was lost."""
        content = said.content.strip()
        for part, what in ((content, "content"), (said.reasoning, "thought")):
            if part not in text:
                beside = " beside its tool_calls" if said.calls else ""
                raise ConfigError(f"the chat template leaves out or changes its {what}{beside}: {part!r:.80}.")
        names = [one.call.name for one in said.calls]
        if said.reasoning and any(name in text.partition(said.reasoning)[0] for name in names):
            raise ConfigError(
                "the chat template writes its thought after its tool_calls. Name the syntax in which calls are written "
                'instead, e.g. SFTConfig(tool_parser_name="hermes").'
            )
        others = f"{content} {said.reasoning}"
        if any(text.count(name) - others.count(name) < names.count(name) for name in names):
            raise ConfigError(f"the chat template leaves out some of its tool_calls: {', '.join(names)}.")

    # -- reading the template ---------------------------------------------------------------------

    def _find_call_form(self) -> CallForm | None:
        """How the template takes calls; None where it does not show them."""
        for form in CALL_FORMS:
            text = self._probe(_called(form))
            shown = all(mark in text for mark in (NAME_MARK, KEY_MARK, VALUE_MARK))
            if shown and f"'{KEY_MARK}'" not in text and f'\\"{KEY_MARK}' not in text:
                return replace(form, shows_ids=ID_MARK in text)
        return None

    def _find_agents_read_calls(self, form: CallForm) -> bool:
        prompt, _ = _before_thought(self._template.apply(self._chat.dialogue))
        turn = NO_THOUGHT.sub("", self._probe(_called(form)).removeprefix(prompt), count=1)
        return self._parser.parse(self._template.before_end(turn)).calls == (
            ToolCall(NAME_MARK, {KEY_MARK: VALUE_MARK}),
        )

    def _find_shows_tools(self) -> bool:
        function = {"name": NAME_MARK, "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            text = self._template.apply(self._chat.dialogue, tools=[{"type": "function", "function": function}])
        except ConfigError:
            return False
        return NAME_MARK in text

    def _find_reasoning_key(self, said: Message) -> str:
        """Under which the template takes the thought of such a message; empty where it must stand in the content."""
        return next((key for key in REASONING_KEYS if MESSAGE_MARK in self._probe({**said, key: MESSAGE_MARK})), "")

    def _find_shows_role(self, role: str, first: bool) -> bool:
        message = {"role": role, "content": MESSAGE_MARK}
        if first:
            return MESSAGE_MARK in self._probe(message, {"role": "user", "content": "U"}, before=())
        return MESSAGE_MARK in self._probe({"role": "assistant", "content": ASSISTANT_MARK}, message)

    def _probe(self, *messages: Message, before: Sequence[Message] | None = None) -> str:
        """The template's text of a small dialogue; empty where it refuses it."""
        try:
            return self._template.apply([*(self._chat.dialogue if before is None else before), *messages], prompt=False)
        except ConfigError:
            return ""


class _Row:
    """A token row that grows; owned by the thread that encodes."""

    def __init__(self, prompt: Sequence[int], text: str):
        self._tokens, self._text = list(prompt), text
        self._weights = [0.0] * len(prompt)
        self.said: tuple[int, ...] = ()

    def say(self, spoken: Spoken, weight: float) -> None:
        self.said = spoken.tokens
        self._tokens += spoken.tokens
        self._text += spoken.text
        self._weights += [weight] * len(spoken.tokens)

    def goes_on(self, tokens: Sequence[int], text: str, prompt: str) -> bool:
        """Whether the row with these tokens after it is the prompt; then they are appended."""
        if _squeezed(self._text + text) != _squeezed(prompt):
            return False
        self._tokens += tokens
        self._text += text
        self._weights += [0.0] * len(tokens)
        return True

    @property
    def is_learned(self) -> bool:
        return any(self._weights)

    def done(self) -> TokenRow:
        mask = tuple(int(weight > 0) for weight in self._weights)
        weights = () if set(self._weights) <= {0.0, 1.0} else tuple(self._weights)
        return TokenRow(tuple(self._tokens), mask, (0.0,) * len(mask), tuple(said - 1 for said in mask), weights)


def _squeezed(text: str) -> str:
    """Without white space, of which templates trim some."""
    return "".join(text.split())


def _before_thought(prompt: str) -> tuple[str, str]:
    """A prompt without a thought that it opens, or opens and closes; and what opened one that is open."""
    if opened := opened_thought(prompt):
        return prompt.removesuffix(opened), opened
    closed = CLOSED_THOUGHT.search(prompt)
    return (prompt[: closed.start()], "") if closed else (prompt, "")


def _called(form: CallForm) -> Message:
    """A message with one call, all of it marks."""
    call = _tool_call(ID_MARK, NAME_MARK, {KEY_MARK: VALUE_MARK}, as_json=form.as_json)
    return {"role": "assistant", "content": form.nothing, "tool_calls": [call]}


def _tool_call(id: str, name: str, arguments: Mapping[str, Any], *, as_json: bool) -> Message:
    given = json.dumps(arguments, ensure_ascii=False) if as_json else arguments
    return {"id": id, "type": "function", "function": {"name": name, "arguments": given}}
