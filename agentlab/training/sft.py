"""Supervised fine-tuning as an algorithm: imitate what the trajectories say."""

from dataclasses import field
from typing import Any

import jax.numpy as jnp
import numpy as np

from agentlab.chat import parser_named
from agentlab.errors import ConfigError
from agentlab.training.algorithms import Algorithm, LossOptions, TokenLosses, TokenTerms, token_mean
from agentlab.training.trainer import TrainConfig
from agentlab.types import config

WITHOUT_USE = ("algorithm", "beta", "clip_low", "clip_high", "dual_clip", "entropy_bonus", "solved_reward")
"""Options of `TrainConfig` that say nothing where there are no rewards."""


@config
class SFTConfig(TrainConfig):
    """How a model is taught by example."""

    conversations_per_step: int = 16
    """Conversations in one update."""
    max_conversation_tokens: int = 0
    """Longer conversations are left out and counted; 0 takes the model's context."""
    template_options: dict = field(default_factory=dict, hash=False)
    """Variables of the model's chat template, e.g. {"enable_thinking": False} for Qwen 3."""
    tool_parser_name: str = "auto"
    """The syntax in which tools are described and calls are written, as a `ToolAgent` has it, e.g. "hermes". "auto"
    leaves that to the chat template, and where it knows none takes the syntax that the model was taught."""

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        if self.conversations_per_step < 1:
            raise ConfigError(f"conversations_per_step must be at least 1, got {self.conversations_per_step}.")
        if self.tool_parser_name != "auto":
            parser_named(self.tool_parser_name)
        if self.max_conversation_tokens < 0:
            raise ConfigError(
                f"max_conversation_tokens must be 0 (the context) or more, got {self.max_conversation_tokens}."
            )
        for name in WITHOUT_USE:
            default = TrainConfig.__dataclass_fields__[name].default
            if getattr(self, name) != default:
                raise ConfigError(
                    f"{name} means nothing to SFTTrainer, which has no rewards: leave it at {default}, "
                    f"got {getattr(self, name)}."
                )


def imitate(rewards: Any) -> np.ndarray:
    """Every trajectory counts the same, whatever its reward: ones, shaped as `rewards`."""
    return np.ones_like(np.asarray(rewards, np.float64))


def negative_log_likelihood(terms: TokenTerms, options: LossOptions) -> TokenLosses:
    """-logprob of each token: the cross-entropy with what was said."""
    zeros = jnp.zeros_like(terms.logprob)
    return TokenLosses(loss=jnp.where(terms.mask, -terms.logprob, 0.0), kl=zeros, clipped=zeros)


sft = Algorithm("sft", advantages=imitate, loss=negative_log_likelihood, aggregate=token_mean)
"""Cross-entropy over the assistant's tokens: the mean over all of an update, each counted as what its turn weighs."""
