"""A transformers tokenizer from the vocabulary, merges and template that a GGUF file carries."""

from collections.abc import Mapping
from typing import Any

from agentlab.errors import ModelError
from agentlab.models.tokenizer import transformers

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3's tokenizer cuts text before merging, from its tokenizer.json."""

CONTROL, USER_DEFINED = 3, 4
"""Token types of llama.cpp: added tokens that are special, and added tokens that are text."""


def gguf_tokenizer(metadata: Mapping[str, Any], *, source: str) -> Any:
    """Build the byte-level BPE tokenizer that GGUF metadata describes.

    Args:
        metadata: As the file has it.
        source: The file, for error texts.

    Raises:
        ModelError: it is not a byte-level BPE, or cuts text in an unknown way.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models

    def value(name: str) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}")

    if value("model") != "gpt2":
        raise ModelError(
            f"{source} has a tokenizer of the kind {value('model')!r}; of GGUF files only byte-level BPE "
            '("gpt2") can be read. Load the model from its Hugging Face folder instead.'
        )
    tokens: list[str] = value("tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in value("merges") or []]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=value("pre") == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(value("pre"), source)
    tokenizer.decoder = decoders.ByteLevel()
    types = value("token_type") or []
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [tokens[i] for i, token_type in enumerate(types) if token_type == kind]
        tokenizer.add_tokens([AddedToken(text, special=special, normalized=False) for text in added])
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {option: value(f"{name}_token_id") for name, option in names.items()}
    roles = {option: tokens[index] for option, index in ids.items() if index is not None}
    made = transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **roles
    )
    made.chat_template = metadata.get("tokenizer.chat_template")
    return made


def _pre_tokenizer(kind: str | None, source: str) -> Any:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if kind in ("smollm", "starcoder"):
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if kind in ("gpt-2", "default"):
        return ByteLevel(add_prefix_space=False)
    if kind == "llama-bpe":
        split = Split(Regex(LLAMA3_SPLIT), behavior="isolated")
        return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    raise ModelError(
        f"{source} cuts text in the way {kind!r}; known are smollm, starcoder, gpt-2 and llama-bpe. "
        "Load the model from its Hugging Face folder instead."
    )
