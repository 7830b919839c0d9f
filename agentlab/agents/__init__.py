"""Agents: they keep a conversation, and turn what the model says into actions."""

from agentlab.agents.base import ConversationAgentBase, observation_messages

__all__ = ["ConversationAgentBase", "observation_messages"]
