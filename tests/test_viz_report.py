"""The report of a run: one file, all of it escaped, opened in a browser that must neither run nor fetch anything."""

import random
import re

import pytest

from agentlab.tracing import Span
from agentlab.types import (
    Action,
    Failure,
    RunSnapshot,
    Task,
    TokenRow,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from agentlab.viz import report
from agentlab.viz.report import chosen

SECOND = 1_000_000_000
EVIL = (
    "</pre></details></title><script>alert(document.domain)</script><img src=x onerror=alert(1)>"
    '<a href="javascript:alert(2)">x</a>"><svg/onload=alert(3)><iframe src="http://example.com/">'
    "<link rel=stylesheet href=http://example.com/a.css><style>@import 'http://example.com/b.css'</style>"
)


class Bytes:
    def decode(self, token_ids, *, skip_special_tokens=True):
        return bytes(token_ids).decode(errors="replace")


def trajectory(text: str, reward: float = 1.0, **fields) -> Trajectory:
    tokens = tuple(text.encode())
    row = TokenRow(tokens, (0,) * 4 + (1,) * (len(tokens) - 4), (-0.5,) * len(tokens), (1,) * len(tokens))
    turn = Turn(text, Action((ToolCall(text, {text: text}),)), (ToolResult(text, text),))
    task = Task(text, text)
    return Trajectory(task=task, group_id="g", episode=0, rows=(row,), turns=(turn,), reward=reward, **fields)


class Reported:
    """A run that wrote `text` wherever it could."""

    tokenizer = Bytes()

    def __init__(self, text: str):
        self.text = text

    def snapshot(self):
        failed = trajectory(self.text, float("nan"), failure=Failure("tool", self.text, self.text))
        return RunSnapshot(
            name=self.text,
            status="failed",
            step=1,
            steps=2,
            start_ns=0,
            now_ns=9 * SECOND,
            metrics=({"step": 1, "reward_mean": 0.5, self.text: 1.0},),
            trajectories=(trajectory(self.text), failed),
            settings={"group_size": 8, self.text: self.text, "stop": (self.text,)},
            failures={self.text: 1},
            notes=(self.text,),
            error=self.text,
        )

    def spans(self):
        tags = {"group": self.text, "episode": 0, "tool": self.text}
        return (
            Span("rollout", 0, 9 * SECOND, "", tags),
            Span("decode", 0, SECOND),
            Span("tool", SECOND, 8 * SECOND, "", tags),
        )

    def all_spans(self):
        return iter(self.spans())


def test_a_report_holds_curves_timeline_verdict_configuration_and_trajectories(tmp_path):
    page = report(Reported("arithmetic"), tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "The device was busy 11% of 9.0 s" in page
    assert "<td>group_size</td><td>8</td>" in page
    assert page.count("<summary>Task arithmetic") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_hostile_text_is_escaped_everywhere(tmp_path):
    page = report(Reported(EVIL), tmp_path / "report.html").read_text()
    assert not re.search(r"<\s*(script|iframe|svg|link|a )", page)
    assert not re.search(r"<img (?!alt=\"[a-z ]*\" src=\"data:image/png;base64,)", page)
    assert page.count("&lt;script&gt;") > 8
    assert page.count("<style>") == 1


def test_the_samples_are_the_best_the_worst_and_a_failed_one_first():
    some = [trajectory(f"{i:04}", reward) for i, reward in enumerate([0.5, 1.0, 0.0, 0.7])]
    failed = trajectory("fail", float("nan"))
    assert [t.task.id for t in chosen([*some, failed], 4)] == ["0001", "0002", "fail", "0003"]
    assert len(chosen(some, 10)) == 4
    assert chosen([], 3) == ()


@pytest.mark.browser
def test_a_browser_runs_nothing_of_it_and_fetches_nothing(tmp_path, chromium):
    api = pytest.importorskip("playwright.sync_api")
    path = report(Reported(EVIL), tmp_path / f"{random.randrange(10**6)}.html")
    asked, dialogs, errors = [], [], []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 380, "height": 800})
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        for summary in page.locator("summary").all():
            summary.click()
        page.wait_for_timeout(300)
        wide = page.evaluate("document.documentElement.scrollWidth")
        text = page.inner_text("body")
        browser.close()
    assert dialogs == [] and errors == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert "alert(document.domain)" in text
    assert wide <= 380
