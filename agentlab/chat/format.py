"""Messages to token ids and back, exactly as a tokenizer's chat template writes them."""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab.chat.owned import OwnTokenizer
from agentlab.chat.reasoning import THINK_CLOSE, THINK_OPEN, opened_thought, reasons
from agentlab.errors import ConfigError, nearest
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

AUTHORED_ROLES = ("system", "developer", "assistant")
"""Who may write markup that is no special token but one token all the same, e.g. Qwen's <tool_call>."""

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
        self._options = dict(template_options or {})
        self._check_options()
        self._specials = special_tokens(tokenizer)
        self._controls = self._specials | markup_tokens(tokenizer)
        self._special_pattern, self._control_pattern = any_of(self._specials), any_of(self._controls)
        self._anchor = self._find_anchor()
        self._cleans_up = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self._reasons = reasons(tokenizer)
        self._dialogue = self._choose_dialogue()
        self.system_role: bool = self._dialogue[0]["role"] == "system"
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
        open_turn, closed_by, after_closing = self._after(as_key(messages))
        return after_closing if sampled and sampled[-1] == closed_by else open_turn

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
        closing = self._closings["user"]
        end = closing.token_id if closing else getattr(self._tokenizer, "eos_token_id", None)
        if not isinstance(end, int):
            raise ConfigError(
                "To learn a turn there must be a token that ends it, but the chat template shows none and the "
                "tokenizer has no eos_token. Set tokenizer.eos_token."
            )
        mark = "qzCUTqz"
        while mark in text:
            mark += "z"
        said = self._defuse_message({"role": "assistant", "content": text}, mark)["content"]
        return (*self._encode(said + (closing.text if closing else ""), mark, begins=False), end)

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
        return self._encode(text, mark, begins=True)

    def _encode_after(self, key: str) -> tuple[tuple[int, ...], int | None, tuple[int, ...]]:
        """Ids to append to an open turn; the token that closes a turn; ids to append to a closed one."""
        messages = self.template_messages(json.loads(key))
        text, mark = self._render([*self._dialogue, {"role": "assistant", "content": ASSISTANT_MARK}, *messages])
        delta = text.split(ASSISTANT_MARK, 1)[1]
        closing = self._closings.get(messages[0]["role"] if messages else "user") or self._closings["user"]
        if closing is None or not delta.startswith(closing.text + closing.token):
            return self._encode(delta, mark), None, ()
        after_closing = self._encode(delta[len(closing.text) :], mark)
        return self._encode(delta, mark), closing.token_id, after_closing[1:]

    def _encode(self, text: str, mark: str, *, begins: bool = False) -> tuple[int, ...]:
        """Ids of a text, cut at the marks; half of a surrogate pair, which no encoding has, becomes "?"."""
        pieces = text.encode("utf-8", "replace").decode("utf-8").split(mark)
        first = self._tokenizer.encode(pieces[0], add_special_tokens=False) if begins else self._continued(pieces[0])
        return (*first, *(token for piece in pieces[1:] for token in self._continued(piece)))

    def _continued(self, piece: str) -> list[int]:
        """Ids of a text that continues another."""
        if not piece:
            return []
        return self._tokenizer.encode(self._anchor + piece, add_special_tokens=False)[1 if self._anchor else 0 :]

    def _find_anchor(self) -> str:
        """A special token to put before a text that continues another, where the tokenizer would else
        take it for a beginning and put a space before it; else nothing."""
        for special, token in self._specials.items():
            anchored = self._tokenizer.encode(f"{special}a\nb", add_special_tokens=False)
            if anchored[:1] == [token]:
                return "" if anchored[1:] == self._tokenizer.encode("a\nb", add_special_tokens=False) else special
        return ""

    def _render(self, messages: list[Message]) -> tuple[str, str]:
        """The template's text, and the mark at which it must be cut before it is encoded."""
        mark = "qzCUTqz"
        while any(mark in str(message) for message in messages):
            mark += "z"
        return self._apply([self._defuse_message(message, mark) for message in messages]), mark

    def _defuse_message(self, message: Message, mark: str) -> Message:
        authored = message["role"] in AUTHORED_ROLES
        pattern = self._special_pattern if authored else self._control_pattern
        return message if pattern is None else self._defuse(message, mark, pattern)

    def _defuse(self, value: Any, mark: str, pattern: re.Pattern[str]) -> Any:
        """The value with a mark inside everything in its texts that spells a control token."""
        if isinstance(value, str):
            return self._defuse_text(value, mark, pattern)
        if isinstance(value, dict):
            return {self._defuse(k, mark, pattern): self._defuse(item, mark, pattern) for k, item in value.items()}
        return [self._defuse(item, mark, pattern) for item in value] if isinstance(value, list) else value

    def _defuse_text(self, text: str, mark: str, pattern: re.Pattern[str]) -> str:
        pieces: list[str] = []
        begin = 0
        while found := pattern.search(text, begin):
            if len(found.group()) == 1:
                raise ConfigError(
                    f"A message contains {found.group()!r}, which is a special token of one character and so "
                    f"cannot be encoded as text. Take it out of the message: {text!r:.80}."
                )
            pieces.append(text[begin : found.start() + 1])
            begin = found.start() + 1
        return mark.join([*pieces, text[begin:]])

    def _apply(self, messages: list[Message], *, prompt: bool = True) -> str:
        try:
            return self._tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, **self._options)
        except Exception as error:  # a template may raise anything; the reader needs to know what it refused
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ConfigError(
                f"The chat template refused a conversation with the roles {roles}: {error}. "
                f"Give messages in an order it knows, or set another tokenizer.chat_template."
            ) from error

    # -- reading the template ---------------------------------------------------------------------

    def _check_options(self) -> None:
        """A template says nothing of a variable that it does not have, so this is said here."""
        source = getattr(self._tokenizer, "chat_template", None)
        if not isinstance(source, str):
            return
        words = set(re.findall(r"[A-Za-z_]\w*", source))
        for name in self._options:
            if name not in words:
                raise ConfigError(
                    f"template_options: the chat template has no variable {name!r}.{nearest(str(name), words)}"
                )

    def _choose_dialogue(self) -> list[Message]:
        error: ConfigError | None = None
        for dialogue in DIALOGUES:
            try:
                text = self._apply([*dialogue, {"role": "assistant", "content": ASSISTANT_MARK}])
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
            text = self._apply([*self._dialogue, assistant, {"role": role, "content": MESSAGE_MARK}])
        except ConfigError:
            return None
        found = re.search(f"{ASSISTANT_MARK}(.*?){MESSAGE_MARK}", text, re.DOTALL)
        return found.group(1) if found else None

    def _closing(self, role: str) -> Closing | None:
        between = self._between(role)
        found = self._control_pattern.search(between) if self._control_pattern and between is not None else None
        if between is None or found is None:
            return None
        return Closing(between[: found.start()], found.group(), self._controls[found.group()])

    def _find_rewrites(self) -> str:
        """What the template changes in a turn once a message follows it."""
        found: list[str] = []
        opened = opened_thought(self._apply(self._dialogue))
        for what, probe in PROBES.items():
            said = f"{opened}{THINK_CLOSE}\n\n{probe}" if opened and THINK_OPEN not in probe else probe
            for role in self._closings:
                if self._between(role) is None:
                    continue
                turn = {"role": "assistant", "content": said}
                after = [*self._dialogue, turn, {"role": role, "content": MESSAGE_MARK}]
                if not self._is_appended(self._dialogue, after):
                    found.append(f"{what} when a {role} message follows")
        return f"the chat template changes or leaves out {' and '.join(found)}" if found else ""

    def _is_appended(self, seen: Sequence[Message], messages: Sequence[Message]) -> bool:
        """Whether the full rendering is that of `seen`, the turn, and the delta after it."""
        turn, news = messages[len(seen)], messages[len(seen) + 1 :]
        mark = {"role": "assistant", "content": ASSISTANT_MARK}
        delta = self._apply([*self._dialogue, mark, *self.template_messages(news)]).split(ASSISTANT_MARK, 1)[1]
        prompt = self._apply(self.template_messages(seen))
        said = checked_message(turn)["content"].removeprefix(opened_thought(prompt))
        built = prompt + said + delta
        return "".join(built.split()) == "".join(self._apply(self.template_messages(messages)).split())

    def _find_stop_tokens(self) -> tuple[int, ...]:
        eos = getattr(self._tokenizer, "eos_token_id", None)
        ids = set(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
        ids |= {closing.token_id for closing in self._closings.values() if closing}
        return tuple(sorted(ids | {self._specials[name] for name in END_NAMES if name in self._specials}))


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """The texts of a tokenizer's special tokens, each with its id."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    texts = {str(token): index for index, token in added.items() if getattr(token, "special", True)}
    for text in getattr(tokenizer, "all_special_tokens", ()):
        ids = tokenizer.encode(text, add_special_tokens=False)
        if text not in texts and len(ids) == 1:
            texts[text] = ids[0]
    return texts


def markup_tokens(tokenizer: Any) -> dict[str, int]:
    """Added tokens that are not special but that the chat template writes, each with its id."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    plain = {str(token): index for index, token in added.items() if not getattr(token, "special", True)}
    return {text: index for text, index in plain.items() if len(text.strip()) > 1 and text in template}


def any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of the texts, the longest first; None of none."""
    spelled = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, spelled))) if spelled else None


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
