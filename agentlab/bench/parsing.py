"""How fast tool calls are read out of hostile text: rows for the bench `tools`."""

import random
import time
from collections.abc import Iterator

from agentlab.bench.contract import Row
from agentlab.chat import ToolCallParser
from agentlab.chat.syntaxes import PARSERS
from agentlab.types import ToolSpec

GOAL_MB_PER_S = 10.0
SIZE_CHARS = 200_000
TRIES = 3
FRAGMENTS = (
    *("<tool_call>", "</tool_call>", '<tool_call>{"name": "search", "arguments": {"query": "', "<tool_call>{}"),
    *("<function=", "<function=search>", "<parameter=", "<parameter=query>1</parameter>", "</function>"),
    *("<function=search><parameter=query>", "<think>", "</think>", "<think></think>", "Action:", "Action: search["),
    *(
        "Action: search\nAction Input: ",
        "search(",
        "search(query=",
        "search()\n",
        "search((((((((",
        'search("',
        "a=1, ",
    ),
    *("```tool_code", "```tool_code\nsearch()\n```\n", "print(", "search(query='x')\n", "[search(", "\n", " ", "\t\n"),
    *("<start_function_call>", "<start_function_call>call:search{query:", "<escape>", "call:search{", "{query:["),
    *("<|python_tag|>", '<|python_tag|>{"name": ', "search.call(", '{"name": ', '{"a":1}; ', "{", "[", "[{},", "{},"),
    *('"', '\\"', "'", "\\", ",", ":", ";", "=", "(", ")", "]", "}", "null", "9", "-", "é", "\0", "aB_9.-", "```", "`"),
)
"""What is repeated, once each, from the beginning of a text and after the beginnings of calls."""
BEGINNINGS = ("", '{"name": "', "Action: search[", "search(a=", "<function=search>")
TOOLS = (
    ToolSpec(
        "search",
        "Searches.",
        {
            "type": "object",
            "properties": {"query": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["query"],
        },
    ),
)


def hostile_texts(size: int = SIZE_CHARS) -> Iterator[tuple[str, str]]:
    """(what it is, text) of every text that is measured."""
    for fragment in FRAGMENTS:
        repeated = (fragment * (size // len(fragment) + 1))[:size]
        for beginning in BEGINNINGS:
            yield f"{beginning!r} and {fragment!r} repeated", beginning + repeated
    for seed in range(4):
        rng = random.Random(seed)
        yield f"fragments drawn by seed {seed}", "".join(rng.choices(FRAGMENTS, k=size // 12))[:size]


def slowest(parser: ToolCallParser, size: int = SIZE_CHARS) -> tuple[float, str]:
    """(MB/s, what it is) of the text that the parser reads slowest."""
    return min((throughput(parser, text), what) for what, text in hostile_texts(size))


def throughput(parser: ToolCallParser, text: str) -> float:
    """Megabytes of UTF-8 that the parser reads per second; the best of a few tries, on a shared machine."""
    num_bytes = len(text.encode())
    best_s = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        parser.parse(text, TOOLS)
        best_s = min(best_s, time.perf_counter() - start)
        if num_bytes / best_s > 10 * GOAL_MB_PER_S * 1e6:
            break
    return num_bytes / best_s / 1e6


def rows() -> list[Row]:
    """One row per syntax: how fast it reads the text that it reads slowest."""
    found = []
    for name, parser in PARSERS.items():
        speed, what = slowest(parser)
        found.append(Row.at_least(f"parser {name}, slowest on {what}", speed, GOAL_MB_PER_S, "MB/s"))
    return found
