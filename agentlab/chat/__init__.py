"""Chat templates as token deltas, and the syntaxes in which models call tools."""

from agentlab.chat.conversation import Conversation, Said, read_conversation
from agentlab.chat.demonstrator import Demonstrator
from agentlab.chat.format import ChatFormat
from agentlab.chat.owned import OwnTokenizer, private_copy
from agentlab.chat.parsers import ParsedResponse, ToolCallParser, split_reasoning
from agentlab.chat.reasoning import opened_thought, reasons
from agentlab.chat.syntaxes import parser_named, parser_of_model

__all__ = [
    "ChatFormat",
    "Conversation",
    "Demonstrator",
    "OwnTokenizer",
    "ParsedResponse",
    "Said",
    "ToolCallParser",
    "opened_thought",
    "parser_named",
    "parser_of_model",
    "private_copy",
    "read_conversation",
    "reasons",
    "split_reasoning",
]
