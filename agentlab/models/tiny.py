"""A tiny random model, made on the spot, for tests and for trying things out without a download."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from agentlab.errors import ConfigError
from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import abstract_params
from agentlab.models.hub_config import FAMILIES
from agentlab.models.model import Model
from agentlab.models.tokenizer import transformers
from agentlab.models.tree import flat_arrays, fresh_array, with_arrays

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tiny_model(seed: int = 0, *, dtype: Any = jnp.float32, **config: Any) -> Model:
    """A random model of about 0.1 M parameters with a byte-level tokenizer and a ChatML template.

    It is a Llama; `model_type` makes it one of another family, with all that is particular to it.

    Args:
        seed: Of the weights; the same seed gives the same model.
        dtype: Of the weights.
        **config: Fields of `DecoderConfig` to change, e.g. `num_layers=1` or `model_type="gemma2"`.

    Raises:
        ConfigError: a field is unknown or impossible.
    """
    tokenizer = tiny_tokenizer()
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_position": 4096,
        "tied_embeddings": True,
        "eos_token_ids": (tokenizer.convert_tokens_to_ids("<|im_end|>"),),
    }
    family = FAMILIES.get(config.get("model_type", "llama"))
    if family is None:
        raise ConfigError(f"model_type must be one of {', '.join(FAMILIES)}, got {config['model_type']!r}.")
    local_base = {"local_rope_theta": family.defaults.get("rope_local_base_freq")}
    made = DecoderConfig(**{**shape, **family.traits, **local_base, **config})
    norm = 0.0 if made.offset_norms else 1.0
    rng = np.random.default_rng(seed)
    abstract = abstract_params(made, dtype)
    arrays = {path: fresh_array(path, a.shape, a.dtype, rng, norm=norm) for path, a in flat_arrays(abstract).items()}
    params = with_arrays(abstract, arrays)
    return Model(f"tiny-{seed}", made, params, tokenizer)


def tiny_tokenizer() -> Any:
    """A tokenizer of one token per byte and three special ones: nothing is out of vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytewise = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = transformers().PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHATML
    return tokenizer
