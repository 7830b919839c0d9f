"""Tools of a real MCP server, which runs as a process of its own and is spoken to over stdio."""

import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentlab.environments import ToolEnvironment
from agentlab.errors import ConfigError, ToolError
from agentlab.tools import MCP
from agentlab.tools.mcp import MCPTool
from agentlab.types import Action, Task, ToolCall

pytest.importorskip("mcp", reason="no MCP SDK here: pip install 'agentlab[mcp]'")
mcp_types = pytest.importorskip("mcp.types")

SERVER = """
    import os, sys, time
    from mcp.server import MCPServer
    server = MCPServer("test")
    notes = []

    @server.tool()
    def add(a: int, b: int = 1) -> str:
        '''Add two numbers.'''
        return str(a + b)

    @server.tool()
    def note(text: str | None = None) -> str:
        '''Remember a text.'''
        notes.append(text)
        return str(len(notes))

    @server.tool()
    def fail(how: str) -> str:
        '''Fail.'''
        if how == "die":
            os._exit(3)
        if how == "sleep":
            time.sleep(60)
        raise ValueError(f"cannot {how}")

    print("starting", file=sys.stderr)
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    server.run("stdio")
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(textwrap.dedent(SERVER))
    return path


@pytest.fixture(scope="module")
def server(path):
    with MCP([sys.executable, str(path)]) as connection:
        yield connection


def test_the_servers_tools_are_a_tool_map_with_its_own_descriptions(server):
    assert list(server.tools) == ["add", "note", "fail"]
    spec = server.tools["add"].spec("plus")
    assert (spec.name, spec.description) == ("plus", "Add two numbers.")
    assert spec.parameters["required"] == ["a"]
    assert spec.parameters["properties"]["b"]["type"] == "integer"


def test_they_are_called_in_an_environment_and_errors_become_text(server):
    env = ToolEnvironment(Task("t", "?"), server.tools, lambda task, answer: 1.0)
    env.reset()
    calls = (
        ToolCall("add", {"a": 2, "b": 3}),
        ToolCall("add", {"a": "two"}),
        ToolCall("fail", {"how": "fly"}),
        ToolCall("note", {"text": None}),
        ToolCall("note", {"text": 3}),
    )
    texts = [result.text for result in env.step(Action(calls)).observation]
    assert texts[0] == "5" and "a must be a whole number" in texts[1] and "fail" in texts[2]
    assert texts[3] == "1" and "text must be text or null" in texts[4]


def test_a_server_over_http_serves_the_same_tools_and_its_end_is_told(path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    with pytest.raises(ConfigError, match="does not answer"):
        MCP(url, timeout_s=5)
    process = subprocess.Popen(
        [sys.executable, str(path), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with answering(url) as server:
            assert list(server.tools) == ["add", "note", "fail"]
            with ThreadPoolExecutor(4) as threads:
                sums = list(threads.map(lambda n: server.tools["add"](a=n, b=n), range(8)))
            assert sums == [str(2 * n) for n in range(8)]
            with pytest.raises(ToolError, match="fail"):
                server.tools["fail"](how="fly")
            server.timeout_s = 10.0
            process.kill()
            process.wait()
            with pytest.raises(ToolError, match="add: "):
                server.tools["add"](a=1)
    finally:
        process.kill()
        process.wait()


def answering(url):
    """The connection, as soon as the server has opened its port."""
    for _ in range(100):
        try:
            return MCP(url)
        except ConfigError:
            threading.Event().wait(0.2)
    raise AssertionError(f"nothing answers at {url}")


def test_many_threads_call_it_at_once(server):
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: server.tools["add"](a=n, b=n), range(30))) == [str(2 * n) for n in range(30)]


def test_a_call_has_a_deadline_and_a_dead_server_is_told(path):
    with MCP([sys.executable, str(path)], only=["fail"], timeout_s=20.0) as server:
        assert list(server.tools) == ["fail"]
        server.timeout_s = 0.2
        with pytest.raises(ToolError, match="Timeout"):
            server.tools["fail"](how="sleep")
    with MCP([sys.executable, str(path)]) as server:
        server.timeout_s = 10.0
        for _ in range(2):
            with pytest.raises(ToolError, match="fail: "):
                server.tools["fail"](how="die")


def test_a_server_that_cannot_be_started_or_has_no_such_tool_is_refused(path):
    with pytest.raises(ConfigError, match="does not answer"):
        MCP(["/no/such/program"])
    with pytest.raises(ConfigError, match="has no tool 'sub'. It has: add, note, fail"):
        MCP([sys.executable, str(path)], only=["sub"])
    with pytest.raises(ConfigError, match="command or a URL"):
        MCP([])


def test_without_the_sdk_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install 'agentlab\[mcp\]'"):
        MCP(["x"])


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_character_in_an_argument_fails_its_own_call_and_leaves_the_connection_to_the_others(server, text):
    with pytest.raises(ToolError, match="surrogate"):
        server.tools["note"](text=text)
    with pytest.raises(ToolError, match="surrogate"):
        server.tools["note"](**{"text": "a", text: "b"})
    assert server.tools["add"](a=1, b=2) == "3"


def listed(schema):
    """A tool as the SDK lists it."""
    return mcp_types.Tool(name="find", description="Find.", inputSchema=schema)


@pytest.mark.parametrize(
    ("schema", "valid", "refused"),
    [
        ({"type": "object", "properties": None, "required": None}, {}, {"x": 1}),
        ({"type": "object", "properties": []}, {}, {"x": 1}),
        ({"oneOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}]}, {"a": "x"}, {"a": 1}),
        ({"anyOf": [{"$ref": "#/definitions/A"}], "definitions": {"A": {"required": ["a"]}}}, {}, None),
        ({"properties": {"a": {"prefixItems": [{"type": "integer"}], "items": False}}}, {"a": [1]}, {"a": [1, 2]}),
        ({"properties": {"a": {"type": ["string", "null"]}}}, {"a": None}, {"a": 3}),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"const": 1}}}, {"a": 1}, {"a": 2}),
    ],
)
def test_schemas_as_servers_write_them_hold_their_calls(schema, valid, refused):
    tool = MCPTool(None, listed(schema))
    spec = tool.spec("find")
    if refused is None:
        with pytest.raises(ToolError, match="must have a"):
            tool.checked_arguments(spec, valid)
        return
    assert tool.checked_arguments(spec, valid) == valid
    with pytest.raises(ToolError):
        tool.checked_arguments(spec, refused)


def test_a_schema_that_is_none_is_refused_when_the_tool_is_made():
    with pytest.raises(ConfigError, match=r"Tool 'find': the schema is invalid at properties\.a\.type"):
        MCPTool(None, listed({"properties": {"a": {"type": "strin"}}}))


def test_a_server_that_dies_at_its_start_tells_its_own_last_lines():
    program = "import sys; print('loading', file=sys.stderr); sys.exit('no key for the weather: set WEATHER_KEY')"
    with pytest.raises(ConfigError, match="does not answer: (.*\n)*loading\nno key for the weather: set WEATHER_KEY"):
        MCP([sys.executable, "-c", program])


def test_a_server_that_never_answers_is_given_up_and_tells_its_own_last_lines():
    program = "import sys, threading; print('waiting', file=sys.stderr, flush=True); threading.Event().wait()"
    with pytest.raises(ConfigError, match="longer than 2 s to start(.*\n)*waiting"):
        MCP([sys.executable, "-c", program], timeout_s=2)
