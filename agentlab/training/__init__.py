"""Training: packed batches, the algorithms' losses, and the trainer that updates a policy with them."""

from agentlab.training import algorithms
from agentlab.training.algorithms import Algorithm, group_advantages
from agentlab.training.packing import pack
from agentlab.training.sft import SFTConfig
from agentlab.training.trainer import TrainConfig, Trainer, UpdateResult, check_trainable

__all__ = [
    "Algorithm",
    "SFTConfig",
    "TrainConfig",
    "Trainer",
    "UpdateResult",
    "algorithms",
    "check_trainable",
    "group_advantages",
    "pack",
]
