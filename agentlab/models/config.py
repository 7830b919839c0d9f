"""What a decoder looks like, and how that is read from and written to a Hugging Face config."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentlab.errors import ConfigError, ModelError
from agentlab.types import config

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Hugging Face architecture names that can be loaded, with their `model_type`."""

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@config
class RopeScaling:
    """Llama 3's frequency scaling: long waves are slowed by `factor`, short ones kept.

    Source: Llama 3.1 release, `apply_scaling`; same names as in Hugging Face configs.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@config
class LoraConfig:
    """Low-rank adapters: y = W x + (alpha / rank) B A x.

    Source: Hu et al. 2021 (arXiv:2106.09685), equation 3.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = LORA_TARGETS
    """Names of the linear layers that carry an adapter, in every block."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"The rank of a LoRA adapter must be at least 1, got {self.rank}.")
        unknown = [name for name in self.targets if name not in LORA_TARGETS]
        if unknown or not self.targets:
            raise ConfigError(
                f"LoRA targets must be some of {', '.join(LORA_TARGETS)}, got {self.targets!r}. "
                "Leave `targets` out to adapt all of them."
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@config
class DecoderConfig:
    """Shape and variant of a decoder-only transformer. Hashable: two equal configs share programs."""

    model_type: str = "llama"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    max_position: int = 2048
    """Tokens of context that the model was trained for."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether the attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normed per head before the rotation (Qwen3)."""
    windows: tuple[int | None, ...] = ()
    """Per layer, how many tokens a token sees, itself included; None or () sees all."""
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn."""
    lora: LoraConfig | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}."
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even for the rotary embedding, got {self.head_dim}.")

    @property
    def attention_scale(self) -> float:
        """What the product of a query and a key is multiplied with."""
        return self.head_dim**-0.5

    @property
    def num_parameters(self) -> int:
        """Weights without adapters; tied embeddings count once."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        block = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        biases = self.qkv_bias * self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        biases += self.output_bias * self.hidden_size + self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        norms = self.qk_norm * 2 * self.head_dim
        tables = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return tables + self.num_layers * (block + biases + norms) + self.hidden_size

    def window(self, layer: int) -> int | None:
        """How many tokens a token of this layer sees, itself included; None sees all."""
        return self.windows[layer] if self.windows else None

    def without_lora(self) -> "DecoderConfig":
        return replace(self, lora=None) if self.lora else self


def read_config(raw: Mapping[str, Any], *, source: str) -> DecoderConfig:
    """Read the contents of a Hugging Face `config.json`.

    Args:
        raw: The parsed file.
        source: Where it lies, for error texts.

    Raises:
        ModelError: the architecture is unknown, a needed key is missing, or a value is not supported.
    """
    model_type = _model_type(raw, source)
    _refuse_variants(raw, source)
    try:
        num_heads = int(raw["num_attention_heads"])
        hidden_size = int(raw["hidden_size"])
        return DecoderConfig(
            model_type=model_type,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(raw["intermediate_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
            rope_theta=_rope_theta(raw),
            rope_scaling=_rope_scaling(raw, source),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            max_position=int(raw.get("max_position_embeddings", 2048)),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=bool(raw.get("attention_bias", False)) or model_type == "qwen2",
            output_bias=bool(raw.get("attention_bias", False)) and model_type != "qwen2",
            mlp_bias=bool(raw.get("mlp_bias", False)) and model_type == "llama",
            qk_norm=model_type == "qwen3",
            bos_token_id=_ids(raw.get("bos_token_id"))[0] if _ids(raw.get("bos_token_id")) else None,
            eos_token_ids=_ids(raw.get("eos_token_id")),
        )
    except KeyError as missing:
        raise ModelError(
            f"{source} must say {missing.args[0]!r} and does not. Is it the config.json of a "
            f"{model_type} model? Download the model again, or name another."
        ) from missing
    except (TypeError, ValueError) as error:
        raise ModelError(f"{source} describes an impossible model: {error} Download the model again.") from error


def write_config(config: DecoderConfig) -> dict[str, Any]:
    """The Hugging Face `config.json` of a model; `read_config` gives the same config back.

    Rotary settings are written twice: as `rope_parameters` for transformers 5 and as `rope_theta`
    and `rope_scaling` for older readers.
    """
    scaling = config.rope_scaling
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    architecture = next(name for name, model_type in ARCHITECTURES.items() if model_type == config.model_type)
    eos = list(config.eos_token_ids)
    return {
        "architectures": [architecture],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "attention_dropout": 0.0,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope if scaling else None,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else (eos or None),
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _model_type(raw: Mapping[str, Any], source: str) -> str:
    named = raw.get("architectures") or []
    for architecture in named:
        if architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
    if not named and raw.get("model_type") in ARCHITECTURES.values():
        return raw["model_type"]
    got = ", ".join(named) or raw.get("model_type") or "nothing"
    raise ModelError(
        f"{source} names the architecture {got}, which agentlab cannot run. "
        f"Choose a model of one of these: {', '.join(ARCHITECTURES)}."
    )


def _refuse_variants(raw: Mapping[str, Any], source: str) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(
            f'{source} asks for the activation {activation!r}; only "silu" is supported. Choose another model.'
        )
    if raw.get("use_sliding_window"):
        raise ModelError(f"{source} asks for sliding-window attention, which is not supported. Choose another model.")
    if raw.get("quantization_config"):
        raise ModelError(f"{source} holds quantised weights. Use the unquantised model, or its .gguf file.")


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}


def _rope_theta(raw: Mapping[str, Any]) -> float:
    return float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0)


def _rope_scaling(raw: Mapping[str, Any], source: str) -> RopeScaling | None:
    rope = _rope(raw)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(
            f'{source} asks for the rotary scaling {kind!r}; supported are "default" and "llama3". '
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
