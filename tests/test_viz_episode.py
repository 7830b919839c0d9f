"""An episode as HTML: every token coloured by who wrote it, and nothing of it is run."""

import re

from agentlab.types import (
    Action,
    Failure,
    Task,
    TokenRow,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from agentlab.viz import show_trajectory
from agentlab.viz.episode import EpisodeView

EVIL = "<script>alert(1)</script>"


class Bytes:
    """A tokenizer whose ids are UTF-8 bytes."""

    def decode(self, token_ids, *, skip_special_tokens=True):
        return bytes(token_ids).decode(errors="replace")


def row(*parts: tuple[str, int]) -> TokenRow:
    tokens = [(byte, mask) for text, mask in parts for byte in text.encode()]
    return TokenRow(
        tuple(byte for byte, _ in tokens),
        tuple(mask for _, mask in tokens),
        tuple(-0.5 * mask for _, mask in tokens),
        tuple(3 if mask else -1 for _, mask in tokens),
    )


def shown(**fields) -> EpisodeView:
    return show_trajectory(Trajectory(task=Task("7", "q"), group_id="g", episode=2, **fields), Bytes())


def text_on(html: str, background: str) -> list[str]:
    """Texts of the token pieces on this background."""
    body = html[html.index("monospace") :]
    pieces = re.findall(
        rf'<span style="background:{background};color:#\w+">((?:<span title=.*?</span>|[^<])*)</span>', body
    )
    return [re.sub(r"<[^>]*>", "", piece) for piece in pieces]


def test_prompt_sampled_and_given_tokens_are_told_apart():
    html = shown(rows=(row(("What is 2+3?", 0), ("5", 1), ("ok", 0), ("bye", 1)),), reward=1.0).html
    assert text_on(html, "#f0f0f0") == ["What is 2+3?"]
    assert text_on(html, "#cfe8f7") == ["5", "bye"]
    assert text_on(html, "#fdebc8") == ["ok"]
    assert 'title="log-probability -0.500 · policy version 3"' in html
    assert "reward 1" in html


def test_a_character_of_several_tokens_stays_whole():
    html = shown(rows=(row(("q", 0), ("né", 1)),)).html
    assert text_on(html, "#cfe8f7") == ["né"]


def test_tool_calls_are_paired_with_their_results():
    call, result = ToolCall("add", {"a": 2}), ToolResult("add", "5", failed=False, duration_s=0.25)
    html = shown(turns=(Turn("r", action=Action((call,)), observation=(result,)),), reward=0.0).html
    assert "add({&quot;a&quot;: 2})" in html
    assert "add answered in 0.25 s: 5" in html


def test_hostile_text_is_shown_and_not_run():
    view = shown(
        rows=(row((EVIL, 0), (EVIL, 1), (EVIL, 0)),),
        turns=(
            Turn(
                EVIL, action=Action((ToolCall(EVIL, {EVIL: EVIL}, error=EVIL),)), observation=(ToolResult(EVIL, EVIL),)
            ),
            Turn(EVIL, action=Action(EVIL), observation=EVIL),
        ),
        reward_parts={EVIL: 1.0},
        failure=Failure("tool", EVIL, EVIL),
    )
    assert "<script" not in view.html
    assert "&lt;script&gt;" in view.html


def test_a_failed_episode_says_why_and_has_no_reward():
    view = shown(failure=Failure("reset", "ValueError: no board", "", 0))
    assert "reward none (failed)" in view.html
    assert "ValueError: no board" in view.html
    assert "[failed in reset] ValueError: no board" in repr(view)


def test_very_long_tool_text_is_cut_and_says_so():
    view = shown(rows=(row(("q", 0), ("a", 1), ("x" * 100_000, 0)),))
    assert "[80000 characters left out]" in view.html
    assert len(view.html) < 40_000
