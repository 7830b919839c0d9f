"""All syntaxes of tool calls by the name a person gives as `tool_parser_name`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentlab.chat.family_calls import Gemma, Llama3, Qwen3Coder
from agentlab.chat.parsers import Hermes, JSONCalls, ToolCallParser
from agentlab.chat.short_calls import ReAct, ShortCalls
from agentlab.errors import ConfigError, nearest

PARSERS: Mapping[str, ToolCallParser] = MappingProxyType(
    {parser.name: parser for parser in (Hermes(), JSONCalls(), ReAct(), ShortCalls(), Qwen3Coder(), Llama3(), Gemma())}
)


def parser_named(name: str | ToolCallParser) -> ToolCallParser:
    """The syntax of this name; a parser of one's own is taken as it is.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if isinstance(name, ToolCallParser):
        return name
    if name not in PARSERS:
        raise ConfigError(f"There is no tool-call syntax {name!r}.{nearest(str(name), PARSERS)}")
    return PARSERS[name]


SIGNS: tuple[tuple[str, str], ...] = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3"),
    ("<|start_header_id|>", "llama3"),
    ("<start_function_call>", "gemma"),
    ("<start_of_turn>", "gemma"),
)
"""What a chat template, or a special token, says about the syntax in which the model calls tools."""


def parser_of_model(tokenizer: Any) -> str:
    """The name of the syntax that the model of this tokenizer was taught; "hermes" where nothing tells."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    tokens = set(getattr(tokenizer, "all_special_tokens", ()))
    return next((name for sign, name in SIGNS if sign in template or sign in tokens), "hermes")
