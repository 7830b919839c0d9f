"""Models: weights, shape and tokenizer; where they come from, and the one forward pass."""

from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import Decoder, LoRAParam
from agentlab.models.lora import add_lora, merge_lora
from agentlab.models.model import Model
from agentlab.models.tiny import tiny_model

__all__ = ["Decoder", "DecoderConfig", "LoRAParam", "Model", "add_lora", "merge_lora", "tiny_model"]
