"""Tools: classes or functions that a model can call, described by their own docstrings and annotations."""

from agentlab.tools.base import FunctionTool, Tool, as_text, as_tool, as_tools, specs_of
from agentlab.tools.calculator import Calculator
from agentlab.tools.lookup import Lookup
from agentlab.tools.schema import check_arguments
from agentlab.tools.slow import Slow

__all__ = [
    "Calculator",
    "FunctionTool",
    "Lookup",
    "Slow",
    "Tool",
    "as_text",
    "as_tool",
    "as_tools",
    "check_arguments",
    "specs_of",
]
