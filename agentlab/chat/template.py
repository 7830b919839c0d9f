"""A chat template as text, and its texts as token ids: what a message spells never becomes a control token."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentlab.chat.owned import OwnTokenizer
from agentlab.chat.reasoning import THINK_CLOSE, THINK_OPEN
from agentlab.errors import ConfigError, nearest
from agentlab.types import Message

AUTHORED_ROLES = ("system", "developer", "assistant")
"""Who may write markup that is no special token but one token all the same, e.g. Qwen's <tool_call>."""


class TemplateText:
    """Renders messages by a tokenizer's chat template, and encodes what it wrote.

    Before they are rendered, texts that spell control tokens are cut by a mark, and at the marks the
    rendering is cut before it is encoded: only what the template itself wrote becomes control tokens.

    Holds no state, so any thread may use it.

    Args:
        tokenizer: With a chat template.
        options: Further variables of the template.

    Raises:
        ConfigError: the template has no variable of the name of an option.
    """

    def __init__(self, tokenizer: OwnTokenizer, options: Mapping[str, Any]):
        self._tokenizer, self._options = tokenizer, dict(options)
        self._check_options()
        self.specials = special_tokens(tokenizer)
        """The texts of special tokens, each with its id."""
        self.controls = self.specials | markup_tokens(tokenizer)
        """Those, and added tokens that the template writes."""
        self.special_pattern = any_of(text for text in self.specials if text not in (THINK_OPEN, THINK_CLOSE))
        """Finds special tokens; not the tags of reasoning, which some tokenizers call special: a model writes them."""
        self.control_pattern = any_of(self.controls)
        self._anchor = self._find_anchor()

    def apply(
        self, messages: Sequence[Message], *, prompt: bool = True, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The text that the template makes of messages as they are.

        Args:
            messages: As they are handed to the template.
            prompt: With the generation prompt at the end.
            tools: The template's variable `tools`; not set where there are none.

        Raises:
            ConfigError: the template refuses them.
        """
        given = {**self._options, "tools": list(tools)} if tools else self._options
        try:
            return self._tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, **given)
        except Exception as error:  # a template may raise anything; the reader needs to know what it refused
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ConfigError(
                f"The chat template refused a conversation with the roles {roles}: {error}. "
                f"Give messages in an order it knows, or set another tokenizer.chat_template."
            ) from error

    def encode(self, text: str, mark: str, *, begins: bool = False) -> tuple[int, ...]:
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
        for special, token in self.specials.items():
            anchored = self._tokenizer.encode(f"{special}a\nb", add_special_tokens=False)
            if anchored[:1] == [token]:
                return "" if anchored[1:] == self._tokenizer.encode("a\nb", add_special_tokens=False) else special
        return ""

    def before_end(self, text: str) -> str:
        """The text without the special tokens and the white space at its end."""
        specials = tuple(self.specials)
        while (text := text.rstrip()).endswith(specials):
            text = text.removesuffix(max((s for s in specials if text.endswith(s)), key=len))
        return text

    def defused_message(self, message: Message, mark: str) -> Message:
        """The message with a mark inside everything in its texts that spells a control token.

        Raises:
            ConfigError: it spells one that is a single character.
        """
        return self.defused(message, mark, authored=message["role"] in AUTHORED_ROLES)

    def defused(self, value: Any, mark: str, *, authored: bool = True) -> Any:
        """Texts, lists and dictionaries of them likewise; who authors may write markup that is no special token."""
        pattern = self.special_pattern if authored else self.control_pattern
        return value if pattern is None else self._defuse(value, mark, pattern)

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


def absent_mark(values: Iterable[Any]) -> str:
    """A mark that no text in the values contains."""
    mark, texts = "qzCUTqz", [str(value) for value in values]
    while any(mark in text for text in texts):
        mark += "z"
    return mark


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
