"""The dashboard over a loopback HTTP server: a page that asks for what is new once a second, whatever cells do."""

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import anyio
from anyio.abc import SocketAttribute, SocketStream

from agentlab.concurrency import Closed, Inbox, LoopThread, WorkerPool
from agentlab.viz.face import SIZES
from agentlab.viz.served_page import page_html, policy

HOST = "127.0.0.1"
HEIGHT_PX = 640
_MAX_HEAD_BYTES = 16_384
_PATIENCE_S = 5.0
"""For a request to arrive whole, and at the end for the page to ask for the last picture."""
_REASONS = {200: "OK", 204: "No Content", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


@dataclass(frozen=True)
class Shown:
    """What the page shows; replaced whole."""

    number: int = 0
    html: Mapping[str, str] = field(default_factory=dict)
    pngs: Mapping[str, bytes] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    """By picture, the number at which it was last changed."""
    over: bool = False


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    policy: str = "default-src 'none'"


Pages = Mapping[str, Callable[[Mapping[str, str]], str]]
"""By name, pages without scripts made from the query."""


class ServedFace:
    """The dashboard as a page of a server on 127.0.0.1, below a path that nobody can guess.

    Made on the main thread. What is shown belongs to the thread "agentlab-view"; `assign` and `close`
    post to it from any thread. Acts and pages run on a worker, so that none delays the picture.

    Args:
        acts: What each button does, e.g. {"Pause": run.pause}.
        pages: Pages beside the dashboard.

    Raises:
        OSError: no port can be had.
    """

    def __init__(self, acts: Mapping[str, Callable[[], Any]], pages: Pages | None = None):
        self._acts, self._pages = acts, pages or {}
        self._token, self._nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(12)
        self._shown = Shown()
        opened: Inbox[int] = Inbox()
        self._thread = LoopThread(lambda: self._main(opened), name="agentlab-view")
        try:
            self.port = opened.get()
        except Closed:
            self._thread.result()
            raise

    @property
    def path(self) -> str:
        """Of the page; whoever knows it may look and press buttons."""
        return f"/{self._token}/"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{self.path}"

    def view(self) -> dict[str, Any]:
        """What a cell publishes to show it; {} where it has shown itself."""
        return frame(self.port, self.path)

    def assign(self, html: Mapping[str, str], pngs: Mapping[str, bytes]) -> None:
        """Show these texts and pictures from now on."""
        self._thread.post(self._take, dict(html), dict(pngs))

    def tell(self, snapshot: Any) -> None:
        """Nothing: the page of trajectories is made anew whenever it is asked for."""

    def close(self) -> None:
        """End the server, once the page has asked for the last picture or some seconds have passed."""
        self._thread.post(self._end)

    # -- on its own thread ---------------------------------------------------------------------------

    async def _main(self, opened: Inbox[int]) -> None:
        try:
            listener = await anyio.create_tcp_listener(local_host=HOST, local_port=0)
            opened.put(listener.extra(SocketAttribute.local_port))
        finally:
            opened.close()
        self._ended, self._last_seen = anyio.Event(), anyio.Event()
        self._pool = WorkerPool(1)
        try:
            async with listener, anyio.create_task_group() as group:
                group.start_soon(listener.serve, self._serve)
                await self._ended.wait()
                with anyio.move_on_after(_PATIENCE_S):
                    await self._last_seen.wait()
                group.cancel_scope.cancel()
        finally:
            self._pool.close()

    def _take(self, html: Mapping[str, str], pngs: Mapping[str, bytes]) -> None:
        old, number = self._shown, self._shown.number + 1
        versions = {name: old.versions[name] if old.pngs.get(name) == png else number for name, png in pngs.items()}
        self._shown = Shown(number, html, pngs, versions, old.over)

    def _end(self) -> None:
        old = self._shown
        self._shown = Shown(old.number + 1, old.html, old.pngs, old.versions, over=True)
        self._ended.set()

    async def _serve(self, stream: SocketStream) -> None:
        async with stream:
            try:
                with anyio.fail_after(_PATIENCE_S):
                    head = await _head(stream)
                if head is None:
                    return
                response = _response(await self._answer(*head))
                with anyio.fail_after(_PATIENCE_S):
                    await stream.send(response)
            except (TimeoutError, anyio.BrokenResourceError):  # whoever asked has gone
                return

    async def _answer(self, method: str, target: str) -> Answer:
        path, _, asked = target.partition("?")
        _, token, *rest = path.split("/")
        if not rest or not hmac.compare_digest(token.encode(), self._token.encode()):
            return Answer(404)
        name, query = "/".join(rest), dict(parse_qsl(asked))
        if name.capitalize() in self._acts:
            return await self._act(method, self._acts[name.capitalize()])
        if method != "GET":
            return Answer(405)
        if name in self._pages:
            return await self._page(self._pages[name], query)
        return self._look(name, query)

    def _look(self, name: str, query: Mapping[str, str]) -> Answer:
        shown = self._shown
        if name == "":
            text = page_html(tuple(SIZES), tuple(self._acts), tuple(self._pages), self._nonce)
            return Answer(200, text.encode(), "text/html; charset=utf-8", policy(self._nonce))
        if name == "state":
            if shown.over:
                self._last_seen.set()
            if query.get("n") == str(shown.number):
                return Answer(204)
            state = {"n": shown.number, "html": shown.html, "pictures": shown.versions, "over": shown.over}
            return Answer(200, json.dumps(state).encode(), "application/json")
        png = shown.pngs.get(name.removesuffix(".png"))
        return Answer(200, png, "image/png") if png and name.endswith(".png") else Answer(404)

    async def _act(self, method: str, act: Callable[[], Any]) -> Answer:
        if method != "POST":
            return Answer(405)
        return await self._on_worker(lambda: act() and None, lambda _: Answer(204))

    async def _page(self, make: Callable[[Mapping[str, str]], str], query: Mapping[str, str]) -> Answer:
        def answer(text: str) -> Answer:
            return Answer(200, text.encode("utf-8", "replace"), "text/html; charset=utf-8", policy(None))

        return await self._on_worker(lambda: make(query), answer)

    async def _on_worker(self, fn: Callable[[], Any], answer: Callable[[Any], Answer]) -> Answer:
        try:
            return answer(await self._pool.run(fn))
        except Exception as error:  # belongs to whoever pressed the button, and is shown there
            return Answer(500, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))


def frame(port: int, path: str, height_px: int = HEIGHT_PX) -> dict[str, Any]:
    """What shows a page of a port of this machine in a cell; on Colab {}, for there it shows itself.

    Colab's own proxy carries it to the browser; that has not been tried yet. Elsewhere the browser must
    run on the machine of the kernel, or reach its port through a tunnel.
    """
    try:
        from google.colab import output  # pyright: ignore[reportMissingImports]
    except ImportError:
        style = "width:100%;border:0"
        return {
            "text/html": f'<iframe src="http://{HOST}:{port}{path}" height="{height_px}" style="{style}" '
            'title="agentlab dashboard" referrerpolicy="no-referrer"></iframe>'
        }
    output.serve_kernel_port_as_iframe(port, path=path, width="100%", height=str(height_px))
    return {}


async def _head(stream: SocketStream) -> tuple[str, str] | None:
    """(method, target) of a request; None if it is none, or too long."""
    received = b""
    while b"\r\n\r\n" not in received:
        if len(received) > _MAX_HEAD_BYTES:
            return None
        try:
            received += await stream.receive()
        except anyio.EndOfStream:
            return None
    line = received.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    return (line[0], line[1]) if len(line) == 3 and line[1].startswith("/") else None


def _response(answer: Answer) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        f"Content-Security-Policy: {answer.policy}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + answer.body
