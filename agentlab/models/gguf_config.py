"""A decoder's config from the metadata of a GGUF file.

Source: llama.cpp, which fixes in its code what its files leave out; each such value says so here.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from agentlab.errors import ConfigError, ModelError
from agentlab.models.config import DecoderConfig, LinearScaling, RopeScaling
from agentlab.models.decoder import rotary_frequencies
from agentlab.models.gguf_reader import GGUFFile
from agentlab.models.hub_config import FAMILIES

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text"}
"""Architectures that can be loaded, with Hugging Face's `model_type`."""
WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6}
"""Every how manieth layer sees everything; newer files say it, for older ones llama.cpp has these."""
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""Models of that depth scale queries by hidden size over heads, others by the size of a head: llama.cpp's rule."""
GEMMA3_LOCAL_BASE = 10_000.0
"""Of layers with a window; newer files say it, for older ones llama.cpp has this."""
LLAMA3_FACTORS = "rope_freqs.weight"
"""The tensor with which llama.cpp slows the rotary frequencies of Llama 3."""
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>")
"""Control tokens that end a turn even where the metadata names another one; llama.cpp looks for them, too."""
CONTROL = 3


def gguf_model_type(file: GGUFFile) -> str:
    """Hugging Face's `model_type` of the model in the file.

    Raises:
        ModelError: its architecture cannot be loaded.
    """
    architecture = file.need("general.architecture")
    if architecture not in MODEL_TYPES:
        raise ModelError(
            f"{file.path} holds a model of the architecture {architecture!r}, which agentlab cannot run. "
            f"Choose a model of one of these: {', '.join(MODEL_TYPES)}."
        )
    return MODEL_TYPES[architecture]


def gguf_config(file: GGUFFile, model_type: str, names: Collection[str]) -> DecoderConfig:
    """The config of the model in the file.

    Args:
        file: Its header.
        model_type: As `gguf_model_type` gives it.
        names: Hugging Face names of its tensors: they say what has a bias, and whether embeddings are tied.

    Raises:
        ModelError: something is missing, impossible or not supported.
    """
    metadata = _Keys(file)
    heads, hidden = metadata.need("attention.head_count"), metadata.need("embedding_length")
    head_dim = metadata.get("attention.key_length", hidden // heads if isinstance(heads, int) else 0)
    _refuse_variants(metadata, head_dim)
    family = FAMILIES[model_type]
    num_layers, rope_theta = metadata.need("block_count"), float(metadata.get("rope.freq_base", 10_000.0))
    try:
        return DecoderConfig(
            model_type=model_type,
            vocab_size=len(file.need("tokenizer.ggml.tokens")),
            hidden_size=hidden,
            intermediate_size=metadata.need("feed_forward_length"),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=metadata.get("attention.head_count_kv", heads),
            head_dim=head_dim,
            rope_theta=rope_theta,
            rope_scaling=_rope_scaling(metadata, head_dim, rope_theta),
            norm_eps=_shortest(metadata.need("attention.layer_norm_rms_epsilon")),
            max_position=metadata.need("context_length"),
            tied_embeddings="lm_head.weight" not in names,
            bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_token_ids=_turn_ends(file),
            **{
                "qkv_bias": "model.layers.0.self_attn.q_proj.bias" in names,
                "output_bias": "model.layers.0.self_attn.o_proj.bias" in names,
                "mlp_bias": "model.layers.0.mlp.up_proj.bias" in names,
                **family.traits,
                **(_gemma_choices(metadata, num_layers, hidden, heads, head_dim) if family.is_gemma else {}),
            },
        )
    except ConfigError as error:
        raise ModelError(f"{file.path} describes an impossible model: {error} Download it again.") from error


class _Keys:
    """The metadata under the name of the file's architecture."""

    def __init__(self, file: GGUFFile):
        self.file = file
        self.architecture: str = file.need("general.architecture")

    def need(self, key: str) -> Any:
        return self.file.need(f"{self.architecture}.{key}")

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}", default)


def _refuse_variants(metadata: _Keys, head_dim: int) -> None:
    refused = {
        "experts": metadata.get("expert_count", 0),
        "values of another size than keys": metadata.get("attention.value_length", head_dim) != head_dim,
        "heads that are only partly rotated": metadata.get("rope.dimension_count", head_dim) != head_dim,
        "numbers of heads that differ by layer": any(
            isinstance(metadata.get(f"attention.{key}"), list) for key in ("head_count", "head_count_kv")
        ),
    }
    for what, found in refused.items():
        if found:
            raise ModelError(
                f"{metadata.file.path} uses {what}, which is not supported. Choose another model: one of the "
                f"architectures {', '.join(MODEL_TYPES)}."
            )


def _gemma_choices(metadata: _Keys, num_layers: int, hidden: int, heads: int, head_dim: int) -> dict[str, Any]:
    architecture = metadata.architecture
    period = metadata.get("attention.sliding_window_pattern", WINDOW_PERIODS[architecture])
    window = metadata.need("attention.sliding_window")
    sees_part = period if isinstance(period, list) else [bool((layer + 1) % period) for layer in range(num_layers)]
    is_27b = num_layers == LAYERS_OF_27B[architecture]
    gemma3 = {"local_rope_theta": float(metadata.get("rope.freq_base_swa", GEMMA3_LOCAL_BASE))}
    return {
        "windows": tuple(window if part else None for part in sees_part),
        "query_pre_attn_scalar": hidden // heads if is_27b else head_dim,
        "attention_soft_cap": metadata.get("attn_logit_softcapping") if architecture == "gemma2" else None,
        "logit_soft_cap": metadata.get("final_logit_softcapping"),
        **(gemma3 if architecture == "gemma3" else {}),
    }


def _rope_scaling(metadata: _Keys, head_dim: int, rope_theta: float) -> RopeScaling | LinearScaling | None:
    kind = metadata.get("rope.scaling.type", "none")
    if LLAMA3_FACTORS in metadata.file.tensors:
        _, factors = next(metadata.file.tensors[LLAMA3_FACTORS].blocks())
        return llama3_scaling(factors, head_dim, rope_theta, source=str(metadata.file.path))
    if kind == "linear":
        return LinearScaling(factor=float(metadata.need("rope.scaling.factor")))
    if kind != "none":
        raise ModelError(
            f"{metadata.file.path} asks for the rotary scaling {kind!r}; of GGUF files only linear scaling and that "
            "of Llama 3 can be read. Choose another model."
        )
    return None


def llama3_scaling(factors: np.ndarray, head_dim: int, rope_theta: float, *, source: str) -> RopeScaling:
    """The scaling of which llama.cpp stored only by what it divides each frequency.

    All Llama 3 models keep waves of which at least 4 fit into the original context, and slow those of which at
    most 1 does; the context follows from any wave in between.

    Args:
        factors: [head_dim / 2]

    Raises:
        ModelError: no such scaling has these factors.
    """
    plain = DecoderConfig(
        vocab_size=1,
        hidden_size=1,
        intermediate_size=1,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        rope_theta=rope_theta,
    )
    frequencies = rotary_frequencies(plain).astype(np.float64)
    largest = float(factors.max())
    between = (factors > 1.001) & (factors < 0.999 * largest)
    if factors.shape == frequencies.shape and between.any() and largest > 1:
        kept = (1 / factors[between] - 1 / largest) / (1 - 1 / largest)
        contexts = (1 + 3 * kept) * 2 * np.pi / frequencies[between]
        found = RopeScaling(
            factor=_shortest(largest),
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position=round(float(np.median(contexts))),
        )
        config = DecoderConfig(**{**vars(plain), "rope_scaling": found})
        if np.allclose(frequencies / rotary_frequencies(config), factors, rtol=1e-4):
            return found
    raise ModelError(
        f"{source}: the tensor {LLAMA3_FACTORS} must hold the {head_dim // 2} rotary factors of a Llama 3 model, and "
        "these are of no such model. Load the model from its Hugging Face folder instead."
    )


def _turn_ends(file: GGUFFile) -> tuple[int, ...]:
    tokens, types = file.need("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type") or []
    named = [file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    marked = enumerate(zip(tokens, types, strict=False))
    found = [index for index, (token, kind) in marked if kind == CONTROL and token in TURN_ENDS]
    return tuple(dict.fromkeys(index for index in (*named, *found) if index is not None))


def _shortest(number: float) -> float:
    """What was meant by a number that was stored in float32: 1e-05 and not 9.999999747378752e-06."""
    return float(f"{np.float32(number):.7g}")
