"""What a tool is: a class with `__call__`, whose docstring and annotations describe it to the model."""

import abc
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, final

from agentlab.errors import ConfigError
from agentlab.tools.docstrings import description_of
from agentlab.tools.schema import check_arguments, check_schema
from agentlab.tools.signatures import Signature, signature_of
from agentlab.types import Task, ToolSpec


class Tool(abc.ABC):
    """A tool that a model can call.

    Subclasses write `__call__` with annotated parameters, plainly or as `async def`, and a
    docstring. A parameter may be of any type that pydantic makes of JSON: text and numbers, lists,
    dates, `Literal`, an `Enum`, a dataclass, a `TypedDict`, a model of pydantic, unions and lists of
    them. The model is told all their fields, and `__call__` gets values of these types. What an
    argument is for is told by the docstring (in Google's, NumPy's or reST style) or by
    `Annotated[int, "How many."]`. What it returns becomes the text that the model reads (see `as_text`); what it raises
    becomes the text of a failed call. An instance is used by all episodes, perhaps by several at
    once; a class given in a `tool_map` is instantiated for every episode.
    """

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do it."""

    def spec(self, name: str) -> ToolSpec:
        """The tool as the model is told of it.

        Raises:
            ConfigError: a parameter has no annotation, or one that JSON cannot carry.
        """
        description = description_of(type(self).__doc__ or type(self).__call__.__doc__ or "")
        return ToolSpec(name, description, _named(name, self._signature).parameters)

    def checked_arguments(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as `__call__` takes them: held against the spec, of the annotated types.

        Raises:
            ToolError: an argument is unknown, missing, or not what is wanted; in words for the model.
        """
        try:
            signature = self._signature()
        except ConfigError:  # the tool describes itself, and its `__call__` takes what it takes
            signature = None
        if signature is None or signature.parameters != spec.parameters:
            check_arguments(spec.name, spec.parameters, arguments)
        return dict(arguments) if signature is None else signature.arguments(spec.name, arguments)

    def _signature(self) -> Signature:
        own = type(self).__call__.__doc__ or ""
        has_options = type(self).__init__ is not object.__init__  # then the class describes those
        return signature_of(self.__call__, own, "" if has_options else type(self).__doc__ or "")

    def bind(self, task: Task) -> "Tool":
        """The tool for one episode of this task: itself, unless it answers from the task's data."""
        return self

    def close(self) -> Any:
        """Give back what the tool holds; the environment that made or bound it calls this at its end."""
        return None


@final
class FunctionTool(Tool):
    """A plain annotated function, or any object that can be called, as a tool."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def spec(self, name: str) -> ToolSpec:
        described = self.function.func if isinstance(self.function, functools.partial) else self.function
        description = description_of(inspect.getdoc(described) or "")
        return ToolSpec(name, description, _named(name, self._signature).parameters)

    def _signature(self) -> Signature:
        described = self.function.func if isinstance(self.function, functools.partial) else self.function
        own = "" if inspect.isroutine(described) else type(described).__call__.__doc__ or ""
        return signature_of(self.function, own, inspect.getdoc(described) or "")


def as_tool(tool: Any) -> Tool:
    """A tool as a person gives it: an instance, a class, or an annotated function.

    Raises:
        ConfigError: it cannot be called, or its class needs arguments.
    """
    if isinstance(tool, Tool):
        return tool
    if isinstance(tool, type):
        return as_tool(_instance(tool))
    if callable(tool):
        return FunctionTool(tool)
    raise ConfigError(
        "A tool must be a Tool, a class of one, or a function with annotations, "
        f"got {type(tool).__name__}: {tool!r:.80}."
    )


def as_tools(tool_map: Mapping[str, Any]) -> dict[str, Tool]:
    """The tools of a `tool_map` by name, each checked by making its description.

    Raises:
        ConfigError: it is no mapping, a name is not one a model can write, a tool is none, or its schema is invalid.
    """
    if not isinstance(tool_map, Mapping):
        raise ConfigError(f'tool_map must be like {{"calculator": Calculator}}, got {type(tool_map).__name__}.')
    for name in tool_map:
        if not isinstance(name, str) or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise ConfigError(f"The name of a tool must be letters, digits, and any of _ . -, got {name!r}.")
    tools = {name: as_tool(tool) for name, tool in tool_map.items()}
    for spec in specs_of(tools):
        check_schema(spec)
    return tools


def specs_of(tools: Mapping[str, Tool]) -> tuple[ToolSpec, ...]:
    """The tools as the model is told of them, in their order."""
    return tuple(tool.spec(name) for name, tool in tools.items())


def as_text(value: Any) -> str:
    """What a tool returned as the text that the model reads: text as it is, plain data as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return "(no output)"
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _named(name: str, signature: Callable[[], Signature]) -> Signature:
    try:
        return signature()
    except ConfigError as error:
        raise ConfigError(f"Tool {name!r}: {error}") from error


def _instance(kind: type) -> Any:
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The tool class {kind.__name__} cannot be made without arguments ({error}). "
            f"Give an instance instead: {kind.__name__}(...)."
        ) from error
    if not callable(made := kind()):
        raise ConfigError(f"The tool class {kind.__name__} must have a __call__ method. Add one with annotations.")
    return made
