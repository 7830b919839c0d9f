"""A decoder's config as a Hugging Face `config.json`: reading and writing it, for every family."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentlab.errors import ConfigError, ModelError
from agentlab.models.config import DecoderConfig, LinearScaling, RopeScaling

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Family:
    """What all models of one architecture have in common."""

    architecture: str
    """Hugging Face's name of the class."""
    traits: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `DecoderConfig` that are no choice of the single model."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a config.json of this family means where it says nothing."""

    @property
    def is_gemma(self) -> bool:
        return bool(self.traits.get("offset_norms"))


GEMMA = {"activation": "gelu_tanh", "offset_norms": True, "post_norms": True, "scaled_embeddings": True}
GEMMA_DEFAULTS = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
FAMILIES = {
    "llama": Family("LlamaForCausalLM"),
    "qwen2": Family("Qwen2ForCausalLM", {"qkv_bias": True, "output_bias": False}),
    "qwen3": Family("Qwen3ForCausalLM", {"qk_norm": True}, {"head_dim": 128}),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        GEMMA,
        {
            **GEMMA_DEFAULTS,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window_pattern": 2,
        },
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        {**GEMMA, "qk_norm": True},
        {
            **GEMMA_DEFAULTS,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window_pattern": 6,
        },
    ),
}
"""By Hugging Face's `model_type`."""


def read_config(raw: Mapping[str, Any], *, source: str) -> DecoderConfig:
    """Read the contents of a Hugging Face `config.json`.

    Args:
        raw: The parsed file.
        source: Where it lies, for error texts.

    Raises:
        ModelError: the architecture is unknown, a needed key is missing, or a value is not supported.
    """
    model_type = _model_type(raw, source)
    family = FAMILIES[model_type]
    raw = {**family.defaults, **{key: value for key, value in raw.items() if key != "model_type"}}
    try:
        _refuse_variants(raw, family, source)
        num_heads, hidden_size = int(raw["num_attention_heads"]), int(raw["hidden_size"])
        config = DecoderConfig(
            model_type=model_type,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(raw["intermediate_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
            rope_scaling=_rope_scaling(_rope(raw), source),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            max_position=int(raw.get("max_position_embeddings", 2048)),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            windows=_windows(raw, family, source),
            bos_token_id=_ids(raw.get("bos_token_id"))[0] if _ids(raw.get("bos_token_id")) else None,
            eos_token_ids=_ids(raw.get("eos_token_id")),
            **{**_biases(raw, model_type), **family.traits},
            **_rope_bases(raw),
            **_gemma_choices(raw, family),
        )
    except KeyError as missing:
        raise ModelError(
            f"{source} must say {missing.args[0]!r} and does not. Is it the config.json of a "
            f"{model_type} model? Download the model again, or name another."
        ) from missing
    except (TypeError, ValueError) as error:
        raise ModelError(f"{source} describes an impossible model: {error} Download the model again.") from error
    return config


def write_config(config: DecoderConfig) -> dict[str, Any]:
    """The Hugging Face `config.json` of a model; `read_config` gives the same config back.

    Rotary settings are written twice: as `rope_parameters` for transformers 5 and as `rope_theta`
    and `rope_scaling` for older readers.

    Raises:
        ConfigError: no model of this family in Hugging Face's format is like that.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise ConfigError(f"model_type must be one of {', '.join(FAMILIES)}, got {config.model_type!r}.")
    eos = list(config.eos_token_ids)
    written = {
        "architectures": [family.architecture],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "attention_dropout": 0.0,
        **(_written_gemma(config) if family.is_gemma else {"hidden_act": "silu"}),
        **_written_windows(config),
        **_written_rope(config),
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else (eos or None),
        "dtype": "float32",
        "torch_dtype": "float32",
    }
    back, wanted = _plain(read_config(written, source="the written config")), _plain(config)
    different = [name for name in config.__dataclass_fields__ if getattr(back, name) != getattr(wanted, name)]
    if different:
        raise ConfigError(
            f"Hugging Face's format has no {config.model_type} model whose {different[0]} is "
            f"{getattr(config, different[0])!r}. Choose a model_type that has it: {', '.join(FAMILIES)}."
        )
    return written


def _plain(config: DecoderConfig) -> DecoderConfig:
    """The same without adapters, and with one spelling of what can be spelt in two ways."""
    scalar = None if config.query_pre_attn_scalar == config.head_dim else config.query_pre_attn_scalar
    windows = config.windows if any(config.windows) else ()
    return replace(config, lora=None, query_pre_attn_scalar=scalar, windows=windows)


# -- reading --------------------------------------------------------------------------------------


def _model_type(raw: Mapping[str, Any], source: str) -> str:
    by_architecture = {family.architecture: model_type for model_type, family in FAMILIES.items()}
    named = raw.get("architectures") or []
    for architecture in named:
        if architecture in by_architecture:
            return by_architecture[architecture]
    if not named and raw.get("model_type") in FAMILIES:
        return raw["model_type"]
    got = ", ".join(map(str, named)) or raw.get("model_type") or "nothing"
    raise ModelError(
        f"{source} names the architecture {got}, which agentlab cannot run. "
        f"Choose a model of one of these: {', '.join(by_architecture)}."
    )


def _refuse_variants(raw: Mapping[str, Any], family: Family, source: str) -> None:
    key, supported = ("hidden_activation", "gelu_pytorch_tanh") if family.is_gemma else ("hidden_act", "silu")
    activation = raw.get(key) or supported
    if activation != supported:
        raise ModelError(
            f'{source} asks for the activation {activation!r}; only "{supported}" is supported. Choose another model.'
        )
    if raw.get("quantization_config"):
        raise ModelError(f"{source} holds quantised weights. Use the unquantised model, or its .gguf file.")
    if raw.get("use_bidirectional_attention"):
        raise ModelError(f"{source} lets tokens see later ones: it cannot generate text. Choose another model.")
    if raw.get("attn_logit_softcapping") and family.architecture != "Gemma2ForCausalLM":
        raise ModelError(f"{source} asks for attn_logit_softcapping, which only Gemma 2 has. Choose another model.")
    if _rope(raw).get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) not in (None, 1.0):
        raise ModelError(f"{source} rotates only a part of each head, which is not supported. Choose another model.")


def _biases(raw: Mapping[str, Any], model_type: str) -> dict[str, bool]:
    everywhere = bool(raw.get("attention_bias", False))
    return {
        "qkv_bias": everywhere,
        "output_bias": everywhere,
        "mlp_bias": bool(raw.get("mlp_bias", False)) and model_type == "llama",
    }


def _gemma_choices(raw: Mapping[str, Any], family: Family) -> dict[str, Any]:
    if not family.is_gemma:
        return {}
    caps = {"attention_soft_cap": "attn_logit_softcapping", "logit_soft_cap": "final_logit_softcapping"}
    chosen = {name: None if raw.get(key) is None else float(raw[key]) for name, key in caps.items()}
    return {**chosen, "query_pre_attn_scalar": int(raw["query_pre_attn_scalar"])}


def _windows(raw: Mapping[str, Any], family: Family, source: str) -> tuple[int | None, ...]:
    num_layers = int(raw["num_hidden_layers"])
    kinds = raw.get("layer_types")
    if not family.is_gemma and (not raw.get("use_sliding_window") or family.architecture == "LlamaForCausalLM"):
        if raw.get("use_sliding_window") or SLIDING in (kinds or ()):
            raise ModelError(
                f"{source} asks for sliding windows that its family has not, or that use_sliding_window turns off. "
                "Choose another model."
            )
        return ()
    if kinds is None and family.is_gemma:
        kinds = [SLIDING if (i + 1) % int(raw["sliding_window_pattern"]) else FULL for i in range(num_layers)]
    elif kinds is None:
        kinds = [SLIDING if i >= int(raw.get("max_window_layers", 28)) else FULL for i in range(num_layers)]
    if len(kinds) != num_layers or set(kinds) - {SLIDING, FULL}:
        raise ModelError(
            f'{source} must name "{FULL}" or "{SLIDING}" for each of its {num_layers} layers in layer_types, '
            f"got {kinds!r:.80}. Choose another model."
        )
    if SLIDING not in kinds:
        return ()
    return tuple(int(raw["sliding_window"]) if kind == SLIDING else None for kind in kinds)


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of layers that see everything; transformers 5 nests them where there are two sorts of layers."""
    parameters = raw.get("rope_parameters") or {}
    return {**(raw.get("rope_scaling") or {}), **(parameters.get(FULL, parameters) or {})}


def _rope_bases(raw: Mapping[str, Any]) -> dict[str, float]:
    bases = {"rope_theta": float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0)}
    if "rope_local_base_freq" in raw:
        nested = (raw.get("rope_parameters") or {}).get(SLIDING) or {}
        if nested.get("rope_type", "default") != "default":
            raise ValueError(f"layers with a window must rotate unscaled, got {nested['rope_type']!r}.")
        bases["local_rope_theta"] = float(nested.get("rope_theta") or raw["rope_local_base_freq"])
    return bases


def _rope_scaling(rope: Mapping[str, Any], source: str) -> RopeScaling | LinearScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=float(rope["factor"]))
    if kind != "llama3":
        raise ModelError(
            f'{source} asks for the rotary scaling {kind!r}; supported are "default", "linear" and "llama3". '
            "Choose another model."
        )
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position=int(rope["original_max_position_embeddings"]),
    )


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


# -- writing --------------------------------------------------------------------------------------


def _written_gemma(config: DecoderConfig) -> dict[str, Any]:
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": config.attention_soft_cap,
        "final_logit_softcapping": config.logit_soft_cap,
        "query_pre_attn_scalar": config.query_pre_attn_scalar or config.head_dim,
    }


def _written_windows(config: DecoderConfig) -> dict[str, Any]:
    if config.model_type == "llama":
        return {}
    windows = config.windows or (None,) * config.num_layers
    length = next((window for window in windows if window is not None), None)
    written = {"sliding_window": length, "layer_types": [SLIDING if window else FULL for window in windows]}
    if not config.offset_norms:
        first = next((layer for layer, window in enumerate(windows) if window), config.num_layers)
        written |= {"use_sliding_window": length is not None, "max_window_layers": first}
    return written


def _written_rope(config: DecoderConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    rope: dict[str, Any] = {"rope_type": "default"}
    if isinstance(scaling, LinearScaling):
        rope = {"rope_type": "linear", "factor": scaling.factor}
    elif scaling:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    parameters: dict[str, Any] = {**rope, "rope_theta": config.rope_theta}
    written = {"rope_theta": config.rope_theta, "rope_scaling": rope if scaling else None}
    if config.local_rope_theta is not None:
        local = {"rope_type": "default", "rope_theta": config.local_rope_theta}
        parameters = {FULL: parameters, SLIDING: local}
        written["rope_local_base_freq"] = config.local_rope_theta
    return {**written, "rope_parameters": parameters}
