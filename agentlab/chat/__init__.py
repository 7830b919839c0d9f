"""Chat templates as token deltas, and the syntaxes in which models call tools."""

from agentlab.chat.format import ChatFormat

__all__ = ["ChatFormat"]
