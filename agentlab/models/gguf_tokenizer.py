"""A transformers tokenizer from the vocabulary, merges and template that a GGUF file carries."""

from collections.abc import Callable, Mapping
from typing import Any

from agentlab.errors import ModelError
from agentlab.models.tokenizer import transformers

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3's tokenizer cuts text before merging, from its tokenizer.json."""

QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
"""The same for Qwen 2, 2.5 and 3, which cut digits apart."""

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Token types of llama.cpp: added tokens that are special, and added tokens that are text."""


def gguf_tokenizer(metadata: Mapping[str, Any], *, source: str) -> Any:
    """Build the tokenizer that GGUF metadata describes: byte-level BPE, or Gemma's.

    Args:
        metadata: As the file has it.
        source: The file, for error texts.

    Raises:
        ModelError: it is of another kind, or cuts text in an unknown way.
    """
    from tokenizers import AddedToken

    def value(name: str) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}")

    tokens: list[str] = value("tokens")
    if value("model") == "gpt2":
        tokenizer = _byte_level(value, source)
    elif value("model") == "llama" and value("add_space_prefix") is False:
        tokenizer = _gemma(value)
    else:
        raise ModelError(
            f"{source} has a tokenizer of the kind {value('model')!r}; of GGUF files only byte-level BPE "
            '("gpt2") and Gemma\'s ("llama" without a leading space) can be read. '
            "Load the model from its Hugging Face folder instead."
        )
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


def _byte_level(value: Callable[[str], Any], source: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = [tuple(merge.split(" ", 1)) for merge in value("merges") or []]
    vocabulary = {token: index for index, token in enumerate(value("tokens"))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=value("pre") == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(value("pre"), source)
    tokenizer.decoder = decoders.ByteLevel()
    if value("pre") == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _gemma(value: Callable[[str], Any]) -> Any:
    """SentencePiece's BPE as transformers runs it for Gemma: spaces as ▁, unknown characters as bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokens, scores, types = value("tokens"), value("scores"), value("token_type")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges(vocabulary, scores, types)
    unknown, first = (tokens[value(f"{name}_token_id")] for name in ("unknown", "bos"))
    model = models.BPE(vocab=vocabulary, merges=merges, fuse_unk=True, unk_token=unknown, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    if value("add_bos_token") is not False:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, vocabulary[first])]
        )
    return tokenizer


def _merges(vocabulary: Mapping[str, int], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every way to make a piece from two others, the pieces of the highest score first."""
    pieces = [token for token, index in vocabulary.items() if types[index] in (NORMAL, USER_DEFINED)]
    merges = []
    for piece in sorted(pieces, key=lambda piece: -scores[vocabulary[piece]]):
        pairs = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [(left, right) for left, right in pairs if left in vocabulary and right in vocabulary]
        merges += sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return merges


def _pre_tokenizer(kind: str | None, source: str) -> Any:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if kind in ("smollm", "starcoder"):
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if kind in ("gpt-2", "default"):
        return ByteLevel(add_prefix_space=False)
    if kind in ("llama-bpe", "qwen2"):
        split = Split(Regex(LLAMA3_SPLIT if kind == "llama-bpe" else QWEN2_SPLIT), behavior="isolated")
        return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    raise ModelError(
        f"{source} cuts text in the way {kind!r}; known are smollm, starcoder, gpt-2, llama-bpe and qwen2. "
        "Load the model from its Hugging Face folder instead."
    )
