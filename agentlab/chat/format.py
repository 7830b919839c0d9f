"""Messages to token ids and back, exactly as a tokenizer's chat template writes them."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab.chat.owned import OwnTokenizer
from agentlab.chat.reasoning import THINK_CLOSE, THINK_OPEN, opened_thought, reasons
from agentlab.chat.template import TemplateText, absent_mark
from agentlab.errors import ConfigError
from agentlab.types import Message

CACHED_PROMPTS = 1024
"""Renderings kept for reuse: a group's episodes share their prompt, and observations repeat."""

END_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
)
"""Special tokens that end a text in the model families we know; each counts where it exists."""

MAX_OPENED_TOKENS = 32
"""Ids at the end of a prompt that are looked at for a thought that it opens: the tag may be one id or one for each
of its letters."""

ASSISTANT_MARK = "qzASSISTANTqz"
MESSAGE_MARK = "qzMESSAGEqz"
DIALOGUES: tuple[tuple[Message, ...], ...] = (
    ({"role": "system", "content": "S"}, {"role": "user", "content": "U"}),
    ({"role": "user", "content": "U"},),
)
"""What stands before a sampled turn when a delta is rendered. The system message keeps templates
from putting their default one in; the second is for templates that refuse system messages."""

PROBES = {
    "what an assistant said": ASSISTANT_MARK,
    "the reasoning of earlier turns": f"<think>\nqzREASONqz\n</think>\n\n{ASSISTANT_MARK}",
}
"""Turns that a template may change once something follows them."""


@dataclass(frozen=True)
class Closing:
    """How a template closes a sampled turn: the text before its end-of-turn token, and that token."""

    text: str
    token: str
    token_id: int


@dataclass(frozen=True)
class After:
    """What a template puts after a sampled turn: ids to append, and their text."""

    open_turn: tuple[int, ...]
    """Where the turn was cut before its end."""
    open_text: str
    closed_by: int | None = None
    """The token that closes it; None where the template does not show it."""
    closed_turn: tuple[int, ...] = ()
    """Where the turn ends with that token."""
    closed_text: str = ""


class ChatFormat:
    """A tokenizer's chat template as token deltas: what was sampled is never encoded again.

    Everything is read off the template at construction, by rendering small dialogues, and the deltas
    are held against its full rendering there. A template that changes earlier turns once something
    follows them says so in `rewrites`; then every turn is held against the full rendering (`appends`).

    Contents of messages are text, whoever wrote them: where one spells a special token, it is encoded
    as ordinary characters. So is markup that the template writes and that is one token without being
    special (Qwen's <tool_call>, <tool_response>, <think>), where anybody but the system prompt or the
    assistant wrote it. `tools=` is never given to a template, since many ignore it: agents describe
    their tools in the system prompt. A template without a tool role gets tool results as user
    messages, one without a system role gets its text at the beginning of the first user message (see
    `template_messages`).

    Holds no state but its caches and a copy of the tokenizer as it was, so any thread may use it, whatever
    others do with theirs.

    Args:
        tokenizer: Any `transformers` tokenizer with a chat template, or anything with its `encode`,
            `decode` and `apply_chat_template`. It is copied; an `OwnTokenizer` is shared.
        tool_role: The role under which tool results are rendered. By default "tool" where the
            template names that role, else "user".
        template_options: Further variables of the template, e.g. {"enable_thinking": False}.

    Raises:
        ConfigError: there is no chat template, it does not show what an assistant says, or it has no
            variable of the name of an option.
    """

    def __init__(
        self, tokenizer: Any, *, tool_role: str | None = None, template_options: Mapping[str, Any] | None = None
    ) -> None:
        self.tokenizer = self._tokenizer = tokenizer = OwnTokenizer(tokenizer)
        """A private copy, which cannot be changed."""
        self.template = TemplateText(tokenizer, template_options or {})
        """The template itself."""
        self._cleans_up = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self._reasons = reasons(tokenizer)
        self.dialogue = self._choose_dialogue()
        """The shortest one after which the template shows what an assistant says."""
        self.system_role: bool = self.dialogue[0]["role"] == "system"
        self.tool_role: str = tool_role or ("tool" if self._has_tool_role() else "user")
        self._closings = {role: self._closing(role) for role in dict.fromkeys(("user", self.tool_role))}
        self.stop_token_ids: tuple[int, ...] = self._find_stop_tokens()
        self.rewrites: str = self._find_rewrites()
        """In a sentence, what the template changes in earlier turns; empty if it only ever appends."""
        self._start = functools.lru_cache(CACHED_PROMPTS)(self._encode_start)
        self._after = functools.lru_cache(CACHED_PROMPTS)(self._encode_after)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The whole prompt of a conversation, with the generation prompt at its end.

        Raises:
            ConfigError: a message is malformed, or the template refuses the conversation.
        """
        return self._start(as_key(messages))

    def extend(self, sampled: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """What the template puts after a sampled turn, as ids to append to it.

        That is the rest of the end of turn (its token, too, if the turn was cut before it), the
        separators, the new messages and the generation prompt.

        Raises:
            ConfigError: a message is malformed, or the template refuses it there.
        """
        return self.extension(sampled, messages)[0]

    def extension(self, sampled: Sequence[int], messages: Sequence[Message]) -> tuple[tuple[int, ...], str]:
        """What `extend` appends, and its text."""
        after = self._after(as_key(messages))
        closed = bool(sampled) and sampled[-1] == after.closed_by
        return (after.closed_turn, after.closed_text) if closed else (after.open_turn, after.open_text)

    def appends(self, seen: Sequence[Message], messages: Sequence[Message]) -> bool:
        """Whether the template shows all that was said before as it was, so that a delta may follow it.

        Always true of a template that rewrites nothing. Differences in white space do not count.

        Args:
            seen: The messages of the prompt from which the last turn was sampled.
            messages: Those, then that turn, then what is new.

        Raises:
            ConfigError: the template refuses the conversation.
        """
        return not self.rewrites or self._is_appended(seen, messages)

    def turn(self, text: str) -> tuple[int, ...]:
        """The ids of a whole turn of the assistant, as a policy that says this would have sampled it.

        Raises:
            ConfigError: neither the template nor the tokenizer has a token that ends a turn.
        """
        closing, mark = self.ending(), absent_mark([text])
        said = self.template.defused(text, mark)
        return (*self.template.encode(said + closing.text, mark), closing.token_id)

    def ending(self, role: str = "user") -> Closing:
        """How a turn ends before a message of this role, or by the tokenizer's own end where the template shows none.

        Raises:
            ConfigError: neither the template nor the tokenizer has a token that ends a turn.
        """
        end = getattr(self._tokenizer, "eos_token_id", None)
        if closing := self._closings.get(role) or self._closings["user"]:
            return closing
        if not isinstance(end, int):
            raise ConfigError(
                "To learn a turn there must be a token that ends it, but the chat template shows none and the "
                "tokenizer has no eos_token. Set tokenizer.eos_token."
            )
        return Closing("", str(self._tokenizer.eos_token), end)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a sampled turn, without the end-of-turn tokens at its end."""
        end = len(tokens)
        while end and tokens[end - 1] in self.stop_token_ids:
            end -= 1
        if self._cleans_up:
            return self._tokenizer.decode(list(tokens[:end]), clean_up_tokenization_spaces=False)
        return self._tokenizer.decode(list(tokens[:end]))

    def response(self, prompt: Sequence[int], sampled: Sequence[int]) -> str:
        """The text of a turn that was sampled after `prompt`: what the prompt had opened of it, and `decode`.

        A template may end the generation prompt with "<think>". The text of the turn begins with that tag then, so
        that the text alone tells that a thought was begun, whether the model closed it or was cut off in it.
        """
        end = self.decode(prompt[-MAX_OPENED_TOKENS:]) if self._reasons else ""
        return opened_thought(end) + self.decode(sampled)

    def template_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as they are handed to the template: the one place where roles fall back.

        Content that is missing becomes empty text. Where the template has no tool role, results
        that follow each other become one user message, a line each, so that roles still alternate.
        Where it has no system role, a system message goes to the beginning of the user message after it.
        """
        made: list[Message] = []
        joins = False
        for message in map(checked_message, messages):
            role = self.tool_role if message["role"] == "tool" else message["role"]
            falls_back = message["role"] == "tool" and role == "user"
            if made and made[-1]["role"] == role == "user" and (falls_back or joins):
                made[-1] = {**made[-1], "content": f"{made[-1]['content']}\n{message['content']}"}
            elif falls_back:
                made.append({"role": role, "content": message["content"]})
            else:
                made.append({**message, "role": role})
            joins = falls_back or (joins and role == "user")
        return made if self.system_role else without_system(made)

    # -- encoding ---------------------------------------------------------------------------------

    def _encode_start(self, key: str) -> tuple[int, ...]:
        text, mark = self._render(self.template_messages(json.loads(key)))
        return self.template.encode(text, mark, begins=True)

    def _encode_after(self, key: str) -> After:
        messages = self.template_messages(json.loads(key))
        text, mark = self._render([*self.dialogue, {"role": "assistant", "content": ASSISTANT_MARK}, *messages])
        delta = text.split(ASSISTANT_MARK, 1)[1]
        open_turn, plain = self.template.encode(delta, mark), delta.replace(mark, "")
        closing = self._closings.get(messages[0]["role"] if messages else "user") or self._closings["user"]
        if closing is None or not delta.startswith(closing.text + closing.token):
            return After(open_turn, plain)
        closed_turn = self.template.encode(delta[len(closing.text) :], mark)[1:]
        return After(open_turn, plain, closing.token_id, closed_turn, plain[len(closing.text + closing.token) :])

    def _render(self, messages: list[Message]) -> tuple[str, str]:
        """The template's text, and the mark at which it must be cut before it is encoded."""
        mark = absent_mark(messages)
        return self.template.apply([self.template.defused_message(message, mark) for message in messages]), mark

    # -- reading the template ---------------------------------------------------------------------

    def _choose_dialogue(self) -> list[Message]:
        error: ConfigError | None = None
        for dialogue in DIALOGUES:
            try:
                text = self.template.apply([*dialogue, {"role": "assistant", "content": ASSISTANT_MARK}])
            except ConfigError as refused:
                error = error or refused
                continue
            if text.count(ASSISTANT_MARK) == 1:
                return list(dialogue)
        raise error or ConfigError(
            "The chat template must show the content of an assistant's message once. "
            "Set tokenizer.chat_template to the template of a chat model."
        )

    def _has_tool_role(self) -> bool:
        """Whether the template's source names the role and shows its content after a sampled turn."""
        source = str(getattr(self._tokenizer, "chat_template", None))
        return bool(re.search(r"""['"]tool['"]""", source)) and self._between("tool") is not None

    def _between(self, role: str) -> str | None:
        """The text from a sampled turn to the content of a message after it; None if that is not shown."""
        assistant = {"role": "assistant", "content": ASSISTANT_MARK}
        try:
            text = self.template.apply([*self.dialogue, assistant, {"role": role, "content": MESSAGE_MARK}])
        except ConfigError:
            return None
        found = re.search(f"{ASSISTANT_MARK}(.*?){MESSAGE_MARK}", text, re.DOTALL)
        return found.group(1) if found else None

    def _closing(self, role: str) -> Closing | None:
        between = self._between(role)
        found = (
            self.template.control_pattern.search(between)
            if self.template.control_pattern and between is not None
            else None
        )
        if between is None or found is None:
            return None
        return Closing(between[: found.start()], found.group(), self.template.controls[found.group()])

    def _find_rewrites(self) -> str:
        """What the template changes in a turn once a message follows it."""
        found: list[str] = []
        opened = opened_thought(self.template.apply(self.dialogue))
        for what, probe in PROBES.items():
            said = f"{opened}{THINK_CLOSE}\n\n{probe}" if opened and THINK_OPEN not in probe else probe
            for role in self._closings:
                if self._between(role) is None:
                    continue
                turn = {"role": "assistant", "content": said}
                after = [*self.dialogue, turn, {"role": role, "content": MESSAGE_MARK}]
                if not self._is_appended(self.dialogue, after):
                    found.append(f"{what} when a {role} message follows")
        return f"the chat template changes or leaves out {' and '.join(found)}" if found else ""

    def _is_appended(self, seen: Sequence[Message], messages: Sequence[Message]) -> bool:
        """Whether the full rendering is that of `seen`, the turn, and the delta after it."""
        turn, news = messages[len(seen)], messages[len(seen) + 1 :]
        mark = {"role": "assistant", "content": ASSISTANT_MARK}
        delta = self.template.apply([*self.dialogue, mark, *self.template_messages(news)]).split(ASSISTANT_MARK, 1)[1]
        prompt = self.template.apply(self.template_messages(seen))
        said = checked_message(turn)["content"].removeprefix(opened_thought(prompt))
        built = prompt + said + delta
        return "".join(built.split()) == "".join(self.template.apply(self.template_messages(messages)).split())

    def _find_stop_tokens(self) -> tuple[int, ...]:
        eos = getattr(self._tokenizer, "eos_token_id", None)
        ids = set(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
        ids |= {closing.token_id for closing in self._closings.values() if closing}
        return tuple(
            sorted(ids | {self.template.specials[name] for name in END_NAMES if name in self.template.specials})
        )


def without_system(messages: Sequence[Message]) -> list[Message]:
    """The messages, each system message put at the beginning of the user message that follows it."""
    made: list[Message] = []
    for message in messages:
        if made and made[-1]["role"] == "system" and message["role"] == "user":
            made[-1] = {**message, "content": f"{made[-1]['content']}\n\n{message['content']}"}
        else:
            made.append(message)
    return made


def as_key(messages: Sequence[Message]) -> str:
    """The messages as one hashable value.

    Raises:
        ConfigError: something in them is not plain data.
    """
    try:
        return json.dumps(list(messages))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"A message must hold text, numbers, lists and dictionaries only: {error}. "
            f'Give it as {{"role": "user", "content": "…"}}.'
        ) from error


def checked_message(message: Any) -> Message:
    """The message with text as content.

    Raises:
        ConfigError: it has no role, or its content is not text.
    """
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or not re.fullmatch(r"[\w-]+", role):
        raise ConfigError(
            f'A message must be {{"role": "user", "content": "…"}} with a word as role, got {message!r:.80}.'
        )
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        content = "".join(str(part["text"]) for part in content)
    if content is not None and not isinstance(content, str):
        raise ConfigError(f"The content of a message must be text, got {type(content).__name__}: {content!r:.80}.")
    return {**message, "content": content or ""}
