"""A model as everybody passes it around: weights, their shape, and the tokenizer."""

from dataclasses import dataclass
from typing import Any

from flax import nnx

from agentlab.models.config import DecoderConfig
from agentlab.models.decoder import Decoder, decoder_structure


@dataclass(frozen=True, eq=False)
class Model:
    """Weights, shape and tokenizer. Frozen: training makes new parameters, never changes these."""

    name: str
    config: DecoderConfig
    params: Any
    """An `nnx.State` of jax arrays, as `nnx.split(decoder)` gives it."""
    tokenizer: Any
    """A transformers tokenizer with a chat template."""
    changed: bool = False
    """Whether training has changed the weights, so that they are no longer those that are known as `name`."""

    def decoder(self) -> Decoder:
        """A decoder over these parameters, to be called under `jax.jit`."""
        return nnx.merge(decoder_structure(self.config), self.params)

    def __repr__(self) -> str:
        size = self.config.num_parameters
        return f"Model({self.name!r}, {self.config.model_type}, {size / 1e6:.1f} M parameters)"
