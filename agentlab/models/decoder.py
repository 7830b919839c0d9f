"""The decoder-only transformer of all families (Llama, Qwen, Gemma) as a Flax NNX module."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from agentlab.models.attention import float32_product
from agentlab.models.config import DecoderConfig, LinearScaling, LoraConfig, RopeScaling

Attention = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]
"""(layer, q [B,T,Hq,Dh], k [B,T,Hkv,Dh], v [B,T,Hkv,Dh]) -> [B,T,Hq,Dh]; q, k normed and rotated.

It applies `config.attention_scale`, `config.attention_soft_cap` and `config.window(layer)` itself."""

ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True)}

_List: Any = getattr(nnx, "List", list)  # flax 0.12 wants its own list for submodules, 0.11 has none


class LoRAParam(nnx.Param):
    """A low-rank adapter's weight: what LoRA training updates, and all that it updates."""


class Linear(nnx.Module):
    """y = W x (+ b), W stored [out, in] as Hugging Face does; with an adapter + scale * B A x."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        *,
        bias: bool,
        lora: LoraConfig | None,
        dtype: jnp.dtype,
        rngs: nnx.Rngs | None,
    ):
        self.weight = nnx.Param(_normal(rngs, (num_out, num_in), dtype))
        if bias:
            self.bias = nnx.Param(_constant(rngs, 0.0, (num_out,), dtype))
        if lora:
            self.lora_a = LoRAParam(_normal(rngs, (lora.rank, num_in), dtype))
            self.lora_b = LoRAParam(_constant(rngs, 0.0, (num_out, lora.rank), dtype))
        self.has_bias = bias
        self.lora_scale = lora.scale if lora else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., in] -> [..., out]"""
        y = project(x, self.weight[...])
        if self.lora_scale is not None:
            # Adapters may be float32 on weights of half precision; the stream keeps its type.
            y += (self.lora_scale * project(project(x, self.lora_a[...]), self.lora_b[...])).astype(y.dtype)
        return y + self.bias[...] if self.has_bias else y


class RMSNorm(nnx.Module):
    """x / rms(x) * weight over the last axis, computed in float32; with `offset_norms` times 1 + weight.

    As in the references, Gemma multiplies in float32, the others in the type of x.

    Source: Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4.
    """

    def __init__(self, config: DecoderConfig, size: int, *, dtype: jnp.dtype, rngs: nnx.Rngs | None):
        self.weight = nnx.Param(_constant(rngs, 0.0 if config.offset_norms else 1.0, (size,), dtype))
        self.eps = config.norm_eps
        self.offset = config.offset_norms

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        if self.offset:
            return ((1.0 + self.weight[...].astype(jnp.float32)) * normed).astype(x.dtype)
        return self.weight[...] * normed.astype(x.dtype)


class SelfAttention(nnx.Module):
    """Projections, norms and rotation around the attention that the caller provides."""

    def __init__(self, config: DecoderConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs | None):
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        linear = functools.partial(_linear, config, dtype=dtype, rngs=rngs)
        self.q_proj = linear("q_proj", config.hidden_size, heads * size, bias=config.qkv_bias)
        self.k_proj = linear("k_proj", config.hidden_size, kv_heads * size, bias=config.qkv_bias)
        self.v_proj = linear("v_proj", config.hidden_size, kv_heads * size, bias=config.qkv_bias)
        self.o_proj = linear("o_proj", heads * size, config.hidden_size, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config, size, dtype=dtype, rngs=rngs)
            self.k_norm = RMSNorm(config, size, dtype=dtype, rngs=rngs)
        self.config = config

    def __call__(self, x: jax.Array, angles: jax.Array, layer: int, attention: Attention) -> jax.Array:
        q = self._heads(self.q_proj(x), self.config.num_heads)
        k = self._heads(self.k_proj(x), self.config.num_kv_heads)
        v = self._heads(self.v_proj(x), self.config.num_kv_heads)
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        mixed = attention(layer, rotate(q, angles), rotate(k, angles), v)
        return self.o_proj(mixed.reshape(*x.shape[:-1], -1))

    def _heads(self, x: jax.Array, count: int) -> jax.Array:
        return x.reshape(*x.shape[:-1], count, self.config.head_dim)


class MLP(nnx.Module):
    """down(activation(gate(x)) * up(x)).

    Source: Shazeer 2020 (arXiv:2002.05202), equation 6 (SwiGLU, GEGLU).
    """

    def __init__(self, config: DecoderConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs | None):
        linear = functools.partial(_linear, config, bias=config.mlp_bias, dtype=dtype, rngs=rngs)
        self.gate_proj = linear("gate_proj", config.hidden_size, config.intermediate_size)
        self.up_proj = linear("up_proj", config.hidden_size, config.intermediate_size)
        self.down_proj = linear("down_proj", config.intermediate_size, config.hidden_size)
        self.activation = config.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(ACTIVATIONS[self.activation](self.gate_proj(x)) * self.up_proj(x))


class Block(nnx.Module):
    """One layer: attention and MLP, each normed before (and, with `post_norms`, after) and added to the stream.

    Names are those of Hugging Face checkpoints: `post_attention_layernorm` is the norm before the MLP,
    but with `post_norms` the one after the attention.
    """

    def __init__(self, config: DecoderConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs | None):
        norm = functools.partial(RMSNorm, config, config.hidden_size, dtype=dtype, rngs=rngs)
        self.input_layernorm = norm()
        self.self_attn = SelfAttention(config, dtype=dtype, rngs=rngs)
        self.post_attention_layernorm = norm()
        if config.post_norms:
            self.pre_feedforward_layernorm = norm()
            self.post_feedforward_layernorm = norm()
        self.mlp = MLP(config, dtype=dtype, rngs=rngs)
        self.post_norms = config.post_norms

    def __call__(self, x: jax.Array, angles: jax.Array, layer: int, attention: Attention) -> jax.Array:
        mixed = self.self_attn(self.input_layernorm(x), angles, layer, attention)
        if self.post_norms:
            x = x + self.post_attention_layernorm(mixed)
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x))


RunBlock = Callable[[Block, jax.Array, jax.Array, int], jax.Array]
"""(block, x, angles, layer) -> x after the block."""


class Decoder(nnx.Module):
    """The whole model up to the logits. Attribute names are those of Hugging Face checkpoints.

    The attention itself is given by the caller, so that packed training rows, prefill into a cache
    and decode from a cache share this one forward pass.

    Args:
        config: Shape and variant.
        rngs: Of the random weights; None makes a decoder of shapes only.
        dtype: Of the weights and of the stream.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs | None, dtype: Any = jnp.float32):
        dtype = jnp.dtype(dtype)
        self.embed_tokens = nnx.Param(_normal(rngs, (config.vocab_size, config.hidden_size), dtype))
        self.layers = _List([Block(config, dtype=dtype, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config, config.hidden_size, dtype=dtype, rngs=rngs)
        if not config.tied_embeddings:
            self.lm_head = nnx.Param(_normal(rngs, (config.vocab_size, config.hidden_size), dtype))
        self.config = config

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        attention: Attention,
        *,
        remat: bool = False,
        run_block: "RunBlock | None" = None,
    ) -> jax.Array:
        """Hidden states after the final norm.

        Args:
            tokens: [B, T] int32.
            positions: [B, T] int32, place of each token in its own sequence.
            attention: Called once per layer; scale, soft cap and window are its own (see `Attention`).
            remat: Compute each layer again in the backward pass instead of keeping its inside.
            run_block: Runs each layer in place of calling it, e.g. as a program that all layers share; it
                then provides the attention itself.

        Returns:
            [B, T, D] in the weights' dtype.
        """
        x = self.embed(tokens)
        locals_ = [self.config.has_local_rope(index) for index in range(self.config.num_layers)]
        angles = {local: rotary_angles(self.config, positions, local=local) for local in dict.fromkeys(locals_)}
        for index, (layer, local) in enumerate(zip(self.layers, locals_, strict=True)):
            if run_block is not None:
                x = run_block(layer, x, angles[local], index)
                continue
            block = functools.partial(layer, angles=angles[local], layer=index, attention=attention)
            x = jax.checkpoint(block)(x) if remat else block(x)
        return self.norm(x)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """[B, T] int32 -> [B, T, D]: what enters the first layer."""
        x = self.embed_tokens[...][tokens]
        # The scale is rounded to the weights' type, as in the references.
        return x * jnp.asarray(self.config.hidden_size**0.5, x.dtype) if self.config.scaled_embeddings else x

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[..., D] -> [..., V] float32"""
        table = self.embed_tokens if self.config.tied_embeddings else self.lm_head
        if hidden.dtype == jnp.float32:
            logits = project(hidden, table[...])
        else:
            logits = float32_product("...i,oi->...o", hidden, table[...])
        cap = self.config.logit_soft_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)


FEW_ROWS = 128
"""Rows up to which XLA's CPU client multiplies W by columns faster than rows by W transposed, on an AMD EPYC with
AVX-512. `bench engine` tells in which of these layouts a bare loop is the fastest."""


def project(x: jax.Array, weight: jax.Array) -> jax.Array:
    """[..., in] times weight [out, in], transposed -> [..., out]"""
    rows = math.prod(x.shape[:-1])
    if jax.default_backend() != "cpu" or not 1 < rows <= FEW_ROWS:
        return jnp.einsum("...i,oi->...o", x, weight)
    # Without the barriers XLA folds the transpositions into the product, and it is the slower one again.
    columns = jax.lax.optimization_barrier(x.reshape(rows, -1).T)
    return jax.lax.optimization_barrier(weight @ columns).T.reshape(*x.shape[:-1], -1)


def rotary_angles(config: DecoderConfig, positions: jax.Array, *, local: bool = False) -> jax.Array:
    """[B, T] -> [B, T, Dh / 2] float32: by how much each pair of a head is turned.

    Args:
        local: For the layers of which `config.has_local_rope` is true.

    Source: Su et al. 2021 (arXiv:2104.09864), equation 15.
    """
    frequencies = rotary_frequencies(config, local=local)
    return positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)


def rotary_frequencies(config: DecoderConfig, *, local: bool = False) -> np.ndarray:
    """[Dh / 2] float32, radians per token; `local` as in `rotary_angles`."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    base = config.local_rope_theta if local and config.local_rope_theta else config.rope_theta
    frequencies = np.float32(1.0) / np.float32(base) ** exponents
    if local or config.rope_scaling is None:
        return frequencies
    if isinstance(config.rope_scaling, LinearScaling):
        return frequencies / np.float32(config.rope_scaling.factor)
    return _scaled(frequencies, config.rope_scaling)


def _scaled(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position * frequencies / np.float32(2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return ((1 - kept) * frequencies / scaling.factor + kept * frequencies).astype(np.float32)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turn the pairs (x[i], x[i + Dh / 2]) of [B, T, H, Dh] by angles [B, T, Dh / 2], in float32."""
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


@functools.cache
def decoder_structure(config: DecoderConfig) -> nnx.GraphDef:
    """What `nnx.merge` needs beside the parameters: `nnx.merge(decoder_structure(config), params)`."""
    return nnx.split(Decoder(config, rngs=None))[0]


def abstract_params(config: DecoderConfig, dtype: Any = jnp.float32) -> Any:
    """The parameters' `nnx.State` with shapes and dtypes only; nothing is computed or allocated."""
    return nnx.split(Decoder(config, rngs=None, dtype=dtype))[1]


def _linear(config: DecoderConfig, name: str, num_in: int, num_out: int, **options: Any) -> Linear:
    lora = config.lora if config.lora and name in config.lora.targets else None
    return Linear(num_in, num_out, lora=lora, **options)


def _normal(rngs: nnx.Rngs | None, shape: tuple[int, ...], dtype: jnp.dtype) -> Any:
    """Random with variance 1 / in; only a shape without `rngs`."""
    if rngs is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    return (jax.random.normal(rngs.params(), shape) * shape[-1] ** -0.5).astype(dtype)


def _constant(rngs: nnx.Rngs | None, value: float, shape: tuple[int, ...], dtype: jnp.dtype) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype) if rngs is None else jnp.full(shape, value, dtype)
