"""Reading a model from a GGUF file, llama.cpp's format: config, weights and tokenizer in one."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from agentlab.errors import ModelError
from agentlab.models.gguf_config import LLAMA3_FACTORS, gguf_config, gguf_model_type
from agentlab.models.gguf_reader import GGUFTensor, read_gguf
from agentlab.models.gguf_tokenizer import gguf_tokenizer
from agentlab.models.hub_config import FAMILIES
from agentlab.models.model import Model
from agentlab.models.weights import StoredTensor, check_tensors, load_params

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
POST_NORM_BLOCK_NAMES = {
    **BLOCK_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Of models whose blocks have norms before and after: Gemma."""
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def load_gguf(path: Path, *, name: str, dtype: Any, mesh: Mesh | None, progress: bool) -> Model:
    """Load a model from a GGUF file; quantised weights are expanded.

    Raises:
        ModelError: the file is damaged, of an unknown architecture, or its tokenizer is not known.
    """
    file = read_gguf(path)
    model_type = gguf_model_type(file)
    stored = {key: tensor for key, tensor in file.tensors.items() if key != LLAMA3_FACTORS}
    tensors = {hf_name(key, model_type, path): tensor for key, tensor in stored.items()}
    config = gguf_config(file, model_type, tensors)
    check_tensors(config, {key: tensor.shape for key, tensor in tensors.items()}, source=str(path))
    tokenizer = gguf_tokenizer(file.metadata, source=str(path))
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    plain = _undone(tensors, heads if model_type == "llama" else {}, offset_norms=config.offset_norms)
    params = load_params(config, plain, source=str(path), dtype=dtype, mesh=mesh, progress=progress)
    return Model(name, config, params, tokenizer)


def hf_name(name: str, model_type: str, path: Path) -> str:
    """The Hugging Face name of a GGUF tensor, e.g. blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight.

    Raises:
        ModelError: the tensor is not one of such a model.
    """
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    blocks = POST_NORM_BLOCK_NAMES if FAMILIES[model_type].traits.get("post_norms") else BLOCK_NAMES
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if found and found[2] in blocks:
        return f"model.layers.{found[1]}.{blocks[found[2]]}.{found[3]}"
    raise ModelError(
        f"{path} holds the tensor {name!r}, which is not part of a {model_type} model that agentlab can run. "
        "Load the model from its Hugging Face folder instead."
    )


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's order of the rows of a query or key projection of a llama model.

    It interleaves the two halves of each head, row (half, i) -> (i, half), to rotate neighbours.
    """
    rows = weight.shape[0]
    halves = weight.reshape(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


@dataclass(frozen=True)
class ChangedTensor:
    """A tensor of which llama.cpp stores something else, changed back as a whole."""

    stored: GGUFTensor
    change: Callable[[np.ndarray], np.ndarray]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """The whole tensor as one block."""
        yield 0, self.change(np.concatenate([block for _, block in self.stored.blocks()]))


def _undone(
    tensors: Mapping[str, GGUFTensor], permuted: Mapping[str, int], *, offset_norms: bool
) -> dict[str, StoredTensor]:
    """The tensors as Hugging Face stores them: rows of queries and keys in order, Gemma's norms without the 1."""
    undone: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        layer = name.split(".")[-2]
        if layer in permuted:
            undone[name] = ChangedTensor(tensor, lambda weight, heads=permuted[layer]: unpermute(weight, heads))
        elif offset_norms and layer.endswith("norm"):
            undone[name] = ChangedTensor(tensor, lambda weight: weight - np.float32(1.0))
        else:
            undone[name] = tensor
    return undone
