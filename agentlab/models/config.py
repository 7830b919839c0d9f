"""What a decoder looks like: sizes, and the variants by which the model families differ."""

from dataclasses import replace
from typing import Literal

from agentlab.errors import ConfigError
from agentlab.types import config

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
class LinearScaling:
    """Linear frequency scaling: every wave is slowed by `factor`.

    Source: Chen et al. 2023 (arXiv:2306.15595), equation 4.
    """

    factor: float


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
    rope_scaling: RopeScaling | LinearScaling | None = None
    local_rope_theta: float | None = None
    """Base of the rotary frequencies, never scaled, in layers with a window (Gemma 3); None for the same in all."""
    norm_eps: float = 1e-6
    max_position: int = 2048
    """Tokens of context that the model was trained for."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether the attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normed per head before the rotation (Qwen3, Gemma 3)."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the MLP's gate; gelu_tanh in Gemma."""
    offset_norms: bool = False
    """Whether norms multiply with 1 + weight, in float32 (Gemma)."""
    post_norms: bool = False
    """Whether attention and MLP are normed before and after (Gemma), or before only."""
    scaled_embeddings: bool = False
    """Whether embeddings enter the first layer times the root of `hidden_size` (Gemma)."""
    query_pre_attn_scalar: int | None = None
    """Queries times keys are divided by the root of this; None takes `head_dim`."""
    windows: tuple[int | None, ...] = ()
    """Per layer, how many tokens a token sees, itself included; None or () sees all."""
    attention_soft_cap: float | None = None
    """Bound c of the scores by c * tanh(score / c) (Gemma 2)."""
    logit_soft_cap: float | None = None
    """The same for the logits."""
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
        if self.windows and (
            len(self.windows) != self.num_layers or any(w is not None and w < 1 for w in self.windows)
        ):
            raise ConfigError(
                f"windows must hold one length of at least 1, or None, for each of the {self.num_layers} layers, "
                f"got {self.windows}. Leave it empty for a model whose tokens see all earlier ones."
            )

    @property
    def attention_scale(self) -> float:
        """What the product of a query and a key is multiplied with."""
        return (self.query_pre_attn_scalar or self.head_dim) ** -0.5

    @property
    def num_parameters(self) -> int:
        """Weights without adapters; tied embeddings count once."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        block_norms = (4 if self.post_norms else 2) * self.hidden_size
        block = attention + 3 * self.hidden_size * self.intermediate_size + block_norms
        biases = self.qkv_bias * self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        biases += self.output_bias * self.hidden_size + self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        norms = self.qk_norm * 2 * self.head_dim
        tables = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return tables + self.num_layers * (block + biases + norms) + self.hidden_size

    def window(self, layer: int) -> int | None:
        """How many tokens a token of this layer sees, itself included; None sees all."""
        return self.windows[layer] if self.windows else None

    def has_local_rope(self, layer: int) -> bool:
        """Whether this layer rotates by `local_rope_theta`."""
        return self.local_rope_theta is not None and self.window(layer) is not None

    def without_lora(self) -> "DecoderConfig":
        return replace(self, lora=None) if self.lora else self
