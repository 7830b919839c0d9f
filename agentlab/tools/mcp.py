"""Tools of servers that speak the Model Context Protocol, through its official SDK."""

import contextlib
import json
import os
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import anyio
from anyio.from_thread import start_blocking_portal

from agentlab.errors import ConfigError, ToolError
from agentlab.files import escaped
from agentlab.tools.base import Tool
from agentlab.tools.schema import SPOKEN
from agentlab.types import ToolSpec

KEPT = ("description", "title", "default", "format", "properties", "required")
"""What of a schema only the model reads."""


@final
class MCP:
    """A connection to an MCP server; its `tools` are a `tool_map`.

    The connection is made at once, and lives on a thread of its own until `close()`, the end of a
    `with` block, or that of the process. Its tools may be called from any thread, and by all
    episodes at once.

    Args:
        server: The command that starts a server which speaks over its standard input and output, as
            a list of words; or the URL of one that speaks over HTTP.
        env: Environment variables of the command; beyond these it sees only harmless ones of yours.
        cwd: The folder in which the command runs.
        only: Names of the tools to offer; None for all.
        timeout_s: Seconds that connecting, and each call, may take.

    Raises:
        ConfigError: the SDK is not installed, the server does not answer, or `only` names a tool
            that it has not.
    """

    def __init__(
        self,
        server: Sequence[str] | str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        only: Sequence[str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        if not server or not timeout_s > 0:
            raise ConfigError(f"server must be a command or a URL, and timeout_s above 0, got {server!r}, {timeout_s}.")
        self.timeout_s = timeout_s
        connect = _connector(server, dict(env or {}), cwd)
        stack = contextlib.ExitStack()
        try:
            self._portal = stack.enter_context(start_blocking_portal(name="agentlab-mcp"))
            self._client: Any = stack.enter_context(self._portal.wrap_async_context_manager(connect()))
            listed = self._portal.call(_listed, self._client, timeout_s)
        except Exception as error:  # whatever keeps a server from answering, the reader must be told which one
            stack.close()
            raise ConfigError(f"The MCP server {server!r} does not answer: {_said(error)}") from error
        self.close: Callable[[], object] = weakref.finalize(self, _end, stack)
        self.tools: dict[str, Tool] = {tool.name: MCPTool(self, tool) for tool in listed}
        if missing := [name for name in only or () if name not in self.tools]:
            self.close()
            raise ConfigError(f"The MCP server has no tool {missing[0]!r}. It has: {', '.join(self.tools)}.")
        if only is not None:
            self.tools = {name: self.tools[name] for name in only}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the server, and wait for its answer.

        Raises:
            ToolError: it failed, took too long, or the server has ended.
        """
        _check_sendable(name, arguments)
        try:
            result = self._portal.call(_called, self._client, name, dict(arguments), self.timeout_s)
        except Exception as error:  # of the SDK, the transport or the server: the model reads what went wrong
            raise ToolError(f"{name}: {_said(error)}") from error
        text = "\n".join(_text(block) for block in result.content)
        if result.is_error:
            raise ToolError(text or f"{name} failed and did not say why.")
        return text or "(no output)"

    def __enter__(self) -> "MCP":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class MCPTool(Tool):
    """One tool of an MCP server, described by the server."""

    def __init__(self, server: MCP, listed: Any) -> None:
        self.server, self.name = server, listed.name
        self.description = listed.description or listed.title or listed.name
        self.parameters = parameters_of(listed.input_schema)

    def __call__(self, **arguments: Any) -> str:
        return self.server.call(self.name, arguments)

    def spec(self, name: str) -> ToolSpec:
        return ToolSpec(name, self.description, self.parameters)


def parameters_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A server's JSON schema in the form in which arguments are checked here; what is not understood allows all."""
    properties = {name: plain_schema(part) for name, part in schema.get("properties", {}).items()}
    found = {"type": "object", "properties": properties, "required": list(schema.get("required", ()))}
    return found | ({"additionalProperties": True} if schema.get("additionalProperties") else {})


def plain_schema(schema: Any) -> dict[str, Any]:
    """The schema of one argument."""
    if not isinstance(schema, Mapping):
        return {}
    kept = {name: schema[name] for name in KEPT if name in schema}
    kind = schema.get("type")
    if isinstance(kind, list):
        return kept | {"anyOf": [plain_schema({**schema, "type": one}) for one in kind]}
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return kept | {"anyOf": [plain_schema(option) for option in options]}
    if isinstance(schema.get("enum"), list):
        return kept | {"enum": schema["enum"]}
    if kind == "array":
        return kept | {"type": kind, "items": plain_schema(schema.get("items"))}
    return kept | ({"type": kind} if kind in SPOKEN else {})


def _connector(
    server: Sequence[str] | str, env: dict[str, str], cwd: str | Path | None
) -> Callable[[], contextlib.AbstractAsyncContextManager[Any]]:
    try:
        import mcp
        from mcp import StdioServerParameters, stdio_client
    except ImportError as error:
        raise ConfigError("This needs the MCP SDK. Install it: pip install 'agentlab[mcp]'.") from error
    if isinstance(server, str):
        return lambda: mcp.Client(server)
    command, *words = map(str, server)
    parameters = StdioServerParameters(command=command, args=words, env=env, cwd=cwd)

    @contextlib.asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        # Not sys.stderr: in a notebook it is no file, and a process cannot write to it.
        with open(os.devnull, "w", encoding="utf-8") as nothing:  # noqa: ASYNC230, PTH123
            async with mcp.Client(stdio_client(parameters, errlog=nothing)) as client:
                yield client

    return connected


async def _listed(client: Any, timeout_s: float) -> list[Any]:
    """All tools of the server, page by page."""
    with anyio.fail_after(timeout_s):
        page = await client.list_tools()
        tools = list(page.tools)
        while page.next_cursor:
            page = await client.list_tools(cursor=page.next_cursor)
            tools += page.tools
        return tools


async def _called(client: Any, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
    with anyio.fail_after(timeout_s):
        return await client.call_tool(name, arguments)


def _check_sendable(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse half a surrogate pair, which no message can hold: the connection, which all episodes share, would end."""
    try:
        json.dumps(arguments, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = escaped(error.object[error.start : error.end])
        raise ToolError(
            f"{name}: the arguments hold {half}, half of a surrogate pair and no character. Write whole characters."
        ) from error


def _end(stack: contextlib.ExitStack) -> None:
    with contextlib.suppress(Exception):  # of a server that has ended before: it cannot be told good-bye
        stack.close()


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _text(block: Any) -> str:
    return block.text if block.type == "text" else f"({block.type} that cannot be shown as text)"
