"""The front doors: reinforcement learning of an agent, and supervised fine-tuning."""

from agentlab.learner.adapters import save_adapters
from agentlab.learner.imitation import SFTTrainer
from agentlab.learner.rl import AgenticRLLearner, GRPOConfig, GRPOLearner

__all__ = ["AgenticRLLearner", "GRPOConfig", "GRPOLearner", "SFTTrainer", "save_adapters"]
