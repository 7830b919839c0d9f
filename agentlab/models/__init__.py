"""Models: weights, shape and tokenizer; where they come from, and the one forward pass."""

from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import Decoder, LoRAParam
from agentlab.models.load import load_model
from agentlab.models.lora import add_lora, merge_lora
from agentlab.models.model import Model
from agentlab.models.save import save_model
from agentlab.models.sharding import shard_params
from agentlab.models.tiny import tiny_model

__all__ = [
    "Decoder",
    "DecoderConfig",
    "LoRAParam",
    "Model",
    "add_lora",
    "load_model",
    "merge_lora",
    "save_model",
    "shard_params",
    "tiny_model",
]
