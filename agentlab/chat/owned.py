"""Tokenizers of one's own: what users do with theirs changes nothing here."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, final

from agentlab.errors import ConfigError

READABLE = (
    "added_tokens_decoder",
    "all_special_ids",
    "all_special_tokens",
    "bos_token",
    "bos_token_id",
    "chat_template",
    "clean_up_tokenization_spaces",
    "eos_token",
    "eos_token_id",
    "name_or_path",
    "pad_token",
    "pad_token_id",
    "unk_token_id",
    "vocab_size",
)
"""What may be read of a tokenizer that is kept private."""
BACKEND = "_tokenizer"
"""Where `transformers` keeps the tables, and truncation and padding with them."""


@final
class OwnTokenizer:
    """A private copy of a tokenizer, which nothing can change; any thread may use it.

    A tokenizer of `transformers` keeps truncation and padding from one call to the next, and so a call
    with `truncation=True` on one thread cuts what another thread encodes at that moment. Here there is
    nothing to set: whole texts are encoded, and whole sequences decoded.

    Args:
        tokenizer: Copied as it is now; one that is an `OwnTokenizer` already is shared. A vocabulary of
            150,000 takes about 0.4 s and 80 MB.

    Raises:
        ConfigError: it cannot be copied.
    """

    __slots__ = ("_copy",)

    def __init__(self, tokenizer: Any) -> None:
        self._copy: Any = tokenizer._copy if isinstance(tokenizer, OwnTokenizer) else private_copy(tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name in READABLE:
            return copy.copy(getattr(self._copy, name))
        raise AttributeError(
            f"A private copy of a tokenizer has no {name!r}: it encodes, decodes and renders, and cannot be changed. "
            "For anything else use the model's own: model.tokenizer."
        )

    def __len__(self) -> int:
        return len(self._copy)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a whole text."""
        return self._copy.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], /, **options: bool) -> str:
        """The text of token ids; options as of the tokenizer, e.g. `skip_special_tokens`."""
        return self._copy.decode(token_ids, **options)

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False, **variables: Any
    ) -> str:
        """The text of a conversation, as the chat template writes it."""
        given = {**variables, "tokenize": False, "add_generation_prompt": add_generation_prompt}
        return self._copy.apply_chat_template(conversation, **given)


def private_copy(tokenizer: Any) -> Any:
    """A copy of a tokenizer that shares nothing with it, and neither cuts nor pads.

    What it holds that cannot be copied, e.g. a lock, is shared; that must not change from call to call.

    Raises:
        ConfigError: the tables of a tokenizer of `transformers` cannot be copied.
    """
    made = copy.copy(tokenizer)
    for name, value in getattr(tokenizer, "__dict__", {}).items():
        try:
            made.__dict__[name] = copy.deepcopy(value)
        except Exception as error:  # whatever a user has put there
            if name == BACKEND:
                raise ConfigError(
                    "A tokenizer must allow copy.deepcopy, so that nobody else can change how texts are encoded; "
                    f"{type(tokenizer).__name__} raised {type(error).__name__}: {error}. Load it anew."
                ) from error
    backend = getattr(made, "backend_tokenizer", None)
    for name in ("no_truncation", "no_padding"):
        if callable(reset := getattr(backend, name, None)):
            reset()
    return made
