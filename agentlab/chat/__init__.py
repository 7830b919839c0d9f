"""Chat templates as token deltas, and the syntaxes in which models call tools."""

from agentlab.chat.format import ChatFormat
from agentlab.chat.owned import OwnTokenizer, private_copy
from agentlab.chat.parsers import ParsedResponse, ToolCallParser, split_reasoning
from agentlab.chat.reasoning import opened_thought, reasons
from agentlab.chat.syntaxes import parser_named, parser_of_model

__all__ = [
    "ChatFormat",
    "OwnTokenizer",
    "ParsedResponse",
    "ToolCallParser",
    "opened_thought",
    "parser_named",
    "parser_of_model",
    "private_copy",
    "reasons",
    "split_reasoning",
]
