"""Agents: they keep a conversation, and turn what the model says into actions."""

from agentlab.agents.base import ConversationAgentBase, observation_messages
from agentlab.agents.check import check_agent
from agentlab.agents.model import FrozenLakeAgent, ModelAgent, Taught, ToolAgent, speaking_with

__all__ = [
    "ConversationAgentBase",
    "FrozenLakeAgent",
    "ModelAgent",
    "Taught",
    "ToolAgent",
    "check_agent",
    "observation_messages",
    "speaking_with",
]
