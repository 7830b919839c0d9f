"""Tools of servers that speak the Model Context Protocol, through its official SDK."""

import contextlib
import json
import math
import os
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import anyio
from anyio.from_thread import start_blocking_portal

from agentlab.errors import ConfigError, ToolError
from agentlab.files import escaped
from agentlab.tools.base import Tool
from agentlab.tools.schema import check_schema
from agentlab.types import ToolSpec

MAX_LOG = 1 << 20
"""Bytes of what a server writes to its standard error that are kept on disk."""
TOLD_LOG = 2000
"""Characters of it that are told where the server does not answer."""


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
        ConfigError: the SDK is not installed, the server does not answer (what it last wrote to its
            standard error is told), `only` names a tool that it has not, or a tool's schema is
            invalid (then `only` can leave that tool out).
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
        connect = _connector(server, dict(env or {}), cwd, timeout_s)
        stack = contextlib.ExitStack()
        # A file, since sys.stderr is none in a notebook, and a process could not write to it.
        log = tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._log: Any = stack.enter_context(log)
        try:
            self._portal = stack.enter_context(start_blocking_portal(name="agentlab-mcp"))
            self._client: Any = stack.enter_context(self._portal.wrap_async_context_manager(connect(log)))
            listed = self._portal.call(_listed, self._client, timeout_s)
        except Exception as error:  # whatever keeps a server from answering, the reader must be told which one
            last = _last_lines(self._log)
            stack.close()
            told = f"\nThe last that it wrote to its standard error:\n{last}" if last else ""
            raise ConfigError(f"The MCP server {server!r} does not answer: {_said(error)}{told}") from error
        self.close: Callable[[], object] = weakref.finalize(self, _end, stack)
        offered = {tool.name: tool for tool in listed}
        try:
            if missing := [name for name in only or () if name not in offered]:
                raise ConfigError(f"The MCP server has no tool {missing[0]!r}. It has: {', '.join(offered)}.")
            self.tools: dict[str, Tool] = {
                name: MCPTool(self, offered[name]) for name in (offered if only is None else only)
            }
        except ConfigError:
            self.close()
            raise

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the server, and wait for its answer.

        Raises:
            ToolError: it failed, took too long, or the server has ended.
        """
        _check_sendable(name, arguments)
        try:
            if os.fstat(self._log.fileno()).st_size > MAX_LOG:
                os.ftruncate(self._log.fileno(), 0)  # the server goes on at the end, which is now the beginning
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
        spec = ToolSpec(listed.name, self.description, listed.input_schema)
        check_schema(spec)
        self.parameters = spec.parameters

    def __call__(self, **arguments: Any) -> str:
        return self.server.call(self.name, arguments)

    def spec(self, name: str) -> ToolSpec:
        return ToolSpec(name, self.description, self.parameters)


def _connector(
    server: Sequence[str] | str, env: dict[str, str], cwd: str | Path | None, timeout_s: float
) -> Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]:
    try:
        import mcp
        from mcp import StdioServerParameters, stdio_client
    except ImportError as error:
        raise ConfigError("This needs the MCP SDK. Install it: pip install 'agentlab[mcp]'.") from error
    if isinstance(server, str):
        return lambda log: _within(timeout_s, mcp.Client(server))
    command, *words = map(str, server)
    parameters = StdioServerParameters(command=command, args=words, env=env, cwd=cwd)

    return lambda log: _within(timeout_s, mcp.Client(stdio_client(parameters, errlog=log)))


@contextlib.asynccontextmanager
async def _within(seconds: float, client: Any) -> AsyncIterator[Any]:
    """The client, connected in time.

    Raises:
        TimeoutError: it took longer.
    """
    with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
        async with client as connected:
            scope.deadline = math.inf
            yield connected
    if scope.cancelled_caught:
        raise TimeoutError(f"it took longer than {seconds:g} s to start")


def _last_lines(log: Any) -> str:
    """The end of what a server has written to its standard error."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 4 * TOLD_LOG))
    return log.read().strip()[-TOLD_LOG:]


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
