"""The dashboard's loopback server: asked over real sockets, as a page would."""

import json
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request

import pytest

from agentlab.errors import ConfigError
from agentlab.tracing import now_ns, record
from agentlab.types import RunSnapshot, Task, TokenRow, Trajectory
from agentlab.viz import Dashboard, dashboard
from agentlab.viz.served import ServedFace

SECOND = 1_000_000_000
EVIL = "<script>alert(1)</script>"


class Bytes:
    def decode(self, token_ids, *, skip_special_tokens=True):
        return bytes(token_ids).decode(errors="replace")


class FakeRun:
    tokenizer = Bytes()

    def __init__(self):
        self.start_ns = now_ns()
        self.state = self.at(2, 1)
        self.listeners, self.asked = [], []

    def at(self, step, seconds, status="running", **fields):
        return RunSnapshot("arithmetic", status, step, 10, self.start_ns, self.start_ns + seconds * SECOND, **fields)

    def snapshot(self):
        return self.state

    def add_listener(self, listener, /):
        self.listeners.append(listener)

    def pause(self):
        self.asked.append("pause")

    def resume(self):
        raise RuntimeError(EVIL)

    def stop(self):
        self.asked.append("stop")


@pytest.fixture
def run():
    return FakeRun()


@pytest.fixture
def served(run):
    made = Dashboard(run, transport="iframe")
    assert isinstance(made.face, ServedFace)
    yield made
    made.face.close()
    get(f"{made.face.url}state")  # the last look: then the server need not wait for one
    has_ended()


def has_ended() -> None:
    """Wait until no server is left."""
    for thread in threading.enumerate():
        if thread.name == "agentlab-view":
            thread.join(timeout=20)
            assert not thread.is_alive()


def get(url: str, method: str = "GET"):
    """(status, headers, body)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_the_page_may_ask_nobody_but_its_server_and_runs_no_script_but_its_own(served):
    status, headers, body = get(served.face.url)
    assert status == 200
    rules = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["script-src"].startswith("'nonce-")
    assert rules["script-src"].removeprefix("'nonce-").removesuffix("'") in body.decode()
    assert b"http" not in body.replace(b"<meta http-equiv", b"")


def test_state_and_pictures_follow_the_run_and_are_sent_once(served, run):
    _, _, body = get(f"{served.face.url}state?n=-1")
    first = json.loads(body)
    assert "step 2 of 10" in first["html"]["head"]
    assert get(f"{served.face.url}state?n={first['n']}")[0] == 204
    picture = get(f"{served.face.url}lanes.png")[2]
    assert picture.startswith(b"\x89PNG")
    record("decode", run.start_ns + SECOND, run.start_ns + 9 * SECOND)
    served.tick(run.at(3, 10))
    second = json.loads(get(f"{served.face.url}state?n={first['n']}")[2])
    assert "step 3 of 10" in second["html"]["head"]
    assert second["pictures"]["lanes"] > first["pictures"]["lanes"]
    assert second["pictures"]["curve"] == first["pictures"]["curve"]  # unchanged: not asked for again
    assert get(f"{served.face.url}lanes.png")[2] != picture


def test_buttons_act_by_post_only_and_an_error_is_told_to_who_pressed(served, run):
    assert get(f"{served.face.url}pause")[0] == 405
    assert get(f"{served.face.url}pause", "POST")[0] == 204
    assert run.asked == ["pause"]
    status, headers, body = get(f"{served.face.url}resume", "POST")
    assert (status, body.decode()) == (500, f"RuntimeError: {EVIL}")
    assert headers["Content-Type"].startswith("text/plain")
    assert get(served.face.url)[0] == 200


def test_nobody_gets_anything_without_the_path(served, run):
    base = f"http://127.0.0.1:{served.face.port}"
    for path in ("/", "/state", "/x/", "/x/state", "/x/pause"):
        assert get(base + path, "POST" if path.endswith("pause") else "GET")[0] == 404
    assert run.asked == []
    assert len(served.face.path) > 30


@pytest.mark.parametrize("sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET //[ HTTP/1.1\r\n\r\n", b"\xff" * 20_000, b"GET /"])
def test_what_is_no_request_ends_only_its_own_connection(served, sent):
    with socket.create_connection(("127.0.0.1", served.face.port), timeout=20) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
    assert get(served.face.url)[0] == 200


def test_trajectories_are_looked_through_by_a_page_without_scripts(served, run):
    row = TokenRow(tuple(EVIL.encode()), (0,) + (1,) * (len(EVIL) - 1), (-0.5,) * len(EVIL), (1,) * len(EVIL))
    one = Trajectory(task=Task("t", EVIL), group_id=EVIL, episode=0, rows=(row,), reward=0.0)
    run.state = run.at(2, 1, trajectories=(one,))
    query = urllib.parse.urlencode({"show": "reward 0", "color": "log-probability", "text": "alert", "group": EVIL})
    status, headers, body = get(f"{served.face.url}trajectories?{query}")
    page = body.decode()
    assert status == 200
    assert "script-src" not in headers["Content-Security-Policy"]
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "Episode 0: reward 0" in page
    status, _, body = get(f"{served.face.url}trajectories?show=fail")
    assert status == 500 and "Did you mean 'failed'" in body.decode()


def test_the_last_state_says_that_the_run_is_over_and_then_the_server_ends(run):
    made = Dashboard(run, transport="iframe")
    url, port = made.face.url, made.face.port
    made.tick(run.at(10, 61, "finished"))
    made.face.close()
    last = json.loads(get(f"{url}state?n=0")[2])
    assert last["over"]
    assert "step 10 of 10" in last["html"]["head"]
    has_ended()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_each_transport_has_one_dashboard_and_an_unknown_one_is_refused_with_the_nearest(run):
    assert dashboard(run, "background") is dashboard(run)
    assert dashboard(run, "watch") is not dashboard(run)
    assert len(run.listeners) == 1  # what a cell refreshes, the run's thread does not
    with pytest.raises(ConfigError, match="Did you mean 'iframe'"):
        dashboard(run, "iframes")


def test_watching_is_the_default_on_colab(monkeypatch):
    assert dashboard(FakeRun()).transport == "background"
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab-tpu")
    assert dashboard(FakeRun()).transport == "watch"
