"""Tools: classes or functions that a model can call, described by their own docstrings and annotations."""

from agentlab.tools.base import FunctionTool, Tool, as_text, as_tool, as_tools, specs_of
from agentlab.tools.calculator import Calculator
from agentlab.tools.code import Bash, Python
from agentlab.tools.lookup import Lookup
from agentlab.tools.mcp import MCP
from agentlab.tools.recorded import Record, Replay
from agentlab.tools.sandbox import Limits, Ran, Sandbox, SandboxPool, SandboxWarning
from agentlab.tools.schema import check_arguments
from agentlab.tools.search import BM25, Search
from agentlab.tools.slow import Slow
from agentlab.tools.sql import SQL
from agentlab.tools.workspace import Workspace
from agentlab.tools.wrapped import Cache, RateLimit, Retry, Timeout, Wrapped

__all__ = [
    "BM25",
    "MCP",
    "SQL",
    "Bash",
    "Cache",
    "Calculator",
    "FunctionTool",
    "Limits",
    "Lookup",
    "Python",
    "Ran",
    "RateLimit",
    "Record",
    "Replay",
    "Retry",
    "Sandbox",
    "SandboxPool",
    "SandboxWarning",
    "Search",
    "Slow",
    "Timeout",
    "Tool",
    "Workspace",
    "Wrapped",
    "as_text",
    "as_tool",
    "as_tools",
    "check_arguments",
    "specs_of",
]
