"""A server that speaks vLLM's routes as far as our engine uses them, and answers from a script."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FakeVLLM:
    """Answers every request with `num_tokens` tokens under the weights that were installed last."""

    def __init__(self, *, num_tokens: int = 3, token_s: float = 0.0, max_model_len: int = 64):
        self.num_tokens, self.token_s, self.max_model_len = num_tokens, token_s, max_model_len
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.version = "default"
        self.paused = False
        self.refuse: str | None = None
        """What it says instead of taking new weights."""
        self.num_running = 0
        self.drop_next = 0
        """Requests whose connection it closes in the middle of its answer."""
        self.metrics: dict[str, float] = {}
        """Further counters of the page of metrics, without the prefix."""
        self.queries: list[str] = []
        """What stood behind the path of each call that was posted."""
        self.engine_dead = False
        """Whether it answers, but only that what computes behind it has died."""
        self.update_s = 0.0
        """How long it reads a file of weights."""
        self.missing: list[str] = []
        """Files of weights that went while it read them."""
        self.num_aborts = 0
        """Raised, it ends the requests under way."""
        self._http: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the same port as before if there was one."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.get(self)

            def do_POST(self) -> None:
                fake.post(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Die: nobody listens any more."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/v1/models":
            answer(handler, {"data": [{"id": "m", "max_model_len": self.max_model_len}]})
        elif handler.path == "/metrics":
            text = f'# HELP x\nvllm:num_requests_running{{engine="0"}} {self.num_running}\n'
            text += "vllm:num_requests_waiting 0.0\n"
            text += "".join(f'vllm:{name}{{engine="0"}} {value}\n' for name, value in self.metrics.items())
            answer(handler, text.encode())
        else:
            answer(handler, b"", status=503 if self.engine_dead else 200)

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(size) or b"{}")
        path, _, query = handler.path.partition("?")
        self.calls.append((path, body))
        self.queries.append(query)
        self.num_aborts += "mode=abort" in query
        if self.engine_dead:
            answer(handler, {"error": {"message": "EngineCore encountered an issue."}}, status=500)
        elif path == "/inference/v1/generate":
            self.generate(handler, body)
        elif path == "/update_weights" and self.refuse:
            answer(handler, {"error": {"message": self.refuse}}, status=500)
        else:
            if path == "/update_weights":
                time.sleep(self.update_s)
                file = body["update_info"]["path"]
                self.missing += [] if Path(file).exists() else [file]
            self.paused = {"/pause": True, "/resume": False}.get(path, self.paused)
            self.version = body.get("weight_version", self.version)
            answer(handler, {})

    def generate(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        count = min(self.num_tokens, body["sampling_params"]["max_tokens"])
        self.num_running += 1
        num_aborts = self.num_aborts
        try:
            handler.send_response(200)
            handler.end_headers()
            if self.drop_next:
                self.drop_next -= 1
                return
            first = piece([7], None)
            handler.wfile.write(first)
            time.sleep(self.token_s * count)
            if self.engine_dead:
                handler.wfile.write(b'data: {"error": {"message": "EngineCore encountered an issue."}}\n\n')
                return
            if self._http is None:
                return  # it died meanwhile
            spans = [{"version": self.version, "start": 0, "end": count}]
            reason = "stop" if count == self.num_tokens else "length"
            reason = "abort" if self.num_aborts > num_aborts else reason
            handler.wfile.write(piece(list(range(8, 7 + count)), reason, spans))
            usage = {"prompt_tokens_details": {"cached_tokens": 2}}
            handler.wfile.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
            handler.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            self.num_running -= 1


def piece(tokens: list[int], reason: str | None, spans: Any = None) -> bytes:
    choice = {
        "token_ids": tokens,
        "finish_reason": reason,
        "weight_versions": spans,
        "logprobs": {"content": [{"token_id": t, "logprob": -0.5} for t in tokens]},
    }
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def answer(handler: BaseHTTPRequestHandler, content: Any, status: int = 200) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
