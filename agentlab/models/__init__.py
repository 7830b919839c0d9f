"""Models: weights, shape and tokenizer; where they come from, and the one forward pass."""

from agentlab.models.adapters import Adapters, adapters_of, load_adapters, write_adapters
from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import Decoder, LoRAParam
from agentlab.models.load import load_model
from agentlab.models.lora import add_lora, merge_lora, merged, without_adapters
from agentlab.models.model import Model
from agentlab.models.save import save_model
from agentlab.models.sharding import shard_params
from agentlab.models.tiny import tiny_model

__all__ = [
    "Adapters",
    "Decoder",
    "DecoderConfig",
    "LoRAParam",
    "Model",
    "adapters_of",
    "add_lora",
    "load_adapters",
    "load_model",
    "merge_lora",
    "merged",
    "save_model",
    "shard_params",
    "tiny_model",
    "without_adapters",
    "write_adapters",
]
