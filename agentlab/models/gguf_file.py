"""Reading a model from a GGUF file, llama.cpp's format: config, weights and tokenizer in one."""

from pathlib import Path
from typing import Any

import numpy as np

from agentlab.errors import ConfigError, ModelError
from agentlab.models.config import DecoderConfig
from agentlab.models.gguf_reader import GGUFFile, read_gguf
from agentlab.models.gguf_tokenizer import gguf_tokenizer
from agentlab.models.model import Model
from agentlab.models.weights import check_tensors, load_params

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def load_gguf(path: Path, *, name: str, dtype: Any, progress: bool) -> Model:
    """Load a model of the llama architecture from a GGUF file; quantised weights are expanded.

    Raises:
        ModelError: the file is damaged, of another architecture, or its tokenizer is not known.
    """
    file = read_gguf(path)
    tensors = {hf_name(key, path): tensor for key, tensor in file.tensors.items()}
    config = _config(file, tied="lm_head.weight" not in tensors)
    check_tensors(config, {key: tensor.shape for key, tensor in tensors.items()}, source=str(path))
    tokenizer = gguf_tokenizer(file.metadata, source=str(path))

    def read(key: str) -> np.ndarray:
        weight = tensors[key].expand()
        if "q_proj" in key:
            return unpermute(weight, config.num_heads)
        return unpermute(weight, config.num_kv_heads) if "k_proj" in key else weight

    params = load_params(config, read, source=str(path), dtype=dtype, progress=progress)
    return Model(name, config, params, tokenizer)


def hf_name(name: str, path: Path) -> str:
    """The Hugging Face name of a GGUF tensor, e.g. blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight.

    Raises:
        ModelError: the tensor is not one of a llama model.
    """
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{parts[3]}"
    raise ModelError(
        f"{path} holds the tensor {name!r}, which is not part of a llama model that agentlab can run. "
        "Load the model from its Hugging Face folder instead."
    )


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's order of the rows of a query or key projection.

    It interleaves the two halves of each head, row (half, i) -> (i, half), to rotate neighbours.
    """
    rows = weight.shape[0]
    halves = weight.reshape(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _config(file: GGUFFile, *, tied: bool) -> DecoderConfig:
    architecture = file.need("general.architecture")
    if architecture != "llama":
        raise ModelError(
            f"{file.path} holds a model of the architecture {architecture!r}; of GGUF files only "
            '"llama" ones can be loaded. Load the model from its Hugging Face folder instead.'
        )
    if file.metadata.get("llama.expert_count", 0) or file.metadata.get("llama.rope.scaling.type", "none") != "none":
        raise ModelError(
            f"{file.path} uses experts or rotary scaling, which are not read from GGUF files. "
            "Load the model from its Hugging Face folder instead."
        )
    heads, hidden = file.need("llama.attention.head_count"), file.need("llama.embedding_length")
    eos = file.metadata.get("tokenizer.ggml.eos_token_id")
    try:
        return DecoderConfig(
            vocab_size=len(file.need("tokenizer.ggml.tokens")),
            hidden_size=hidden,
            intermediate_size=file.need("llama.feed_forward_length"),
            num_layers=file.need("llama.block_count"),
            num_heads=heads,
            num_kv_heads=file.metadata.get("llama.attention.head_count_kv", heads),
            head_dim=file.metadata.get("llama.attention.key_length", hidden // heads),
            rope_theta=float(file.metadata.get("llama.rope.freq_base", 10_000.0)),
            norm_eps=float(np.float32(file.need("llama.attention.layer_norm_rms_epsilon"))),
            max_position=file.need("llama.context_length"),
            tied_embeddings=tied,
            bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_token_ids=() if eos is None else (eos,),
        )
    except ConfigError as error:
        raise ModelError(f"{file.path} describes an impossible model: {error} Download it again.") from error
