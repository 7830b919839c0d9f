"""The trajectory browser: siblings side by side, coloured, found by what became of them, and nothing of it is run."""

import re

import pytest

from agentlab.errors import ConfigError
from agentlab.types import (
    Action,
    Failure,
    RunSnapshot,
    Task,
    TokenRow,
    TokenScores,
    ToolCall,
    ToolResult,
    TrainedGroup,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentlab.viz import show_trajectory, trajectories
from agentlab.viz.paint import SCALES
from agentlab.viz.siblings import matching, siblings_of

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


class Bytes:
    def decode(self, token_ids, *, skip_special_tokens=True):
        return bytes(token_ids).decode(errors="replace")


class Browsed:
    tokenizer = Bytes()

    def __init__(self, *played, trained=()):
        self.played, self.trained = played, trained

    def snapshot(self):
        state = {"name": "r", "status": "running", "step": 1, "steps": 2, "start_ns": 0, "now_ns": 1}
        return RunSnapshot(**state, trajectories=tuple(self.played), trained=tuple(self.trained))


def row(*parts):
    """Of (text, logprob) pieces; a logprob of None marks what was not sampled."""
    tokens = [(byte, logprob) for text, logprob in parts for byte in text.encode()]
    return TokenRow(
        tuple(byte for byte, _ in tokens),
        tuple(int(logprob is not None) for _, logprob in tokens),
        tuple(logprob or 0.0 for _, logprob in tokens),
        tuple(-1 if logprob is None else 3 for _, logprob in tokens),
    )


def played(episode, reward=1.0, group="g", prompt="What is 2 + 3?", end_ns=1, **fields):
    fields.setdefault("rows", (row((prompt, None), ("ab", -0.5)),))
    task = Task(f"task-{group}", prompt)
    return Trajectory(task=task, group_id=group, episode=episode, reward=reward, end_ns=end_ns, **fields)


def painted(html: str) -> dict[str, str]:
    """Text by background of the first episode's tokens."""
    body = html[html.index("monospace") :]
    pieces = re.findall(r'<span style="background:(#\w+);color:#\w+">((?:<span title=.*?</span>|[^<])*)</span>', body)
    return {back: re.sub(r"<[^>]*>", "", piece) for back, piece in pieces}


def timed_out(**fields):
    return Failure("tool", "tool 'search' took longer than 2 s, its tool_timeout_s", "", **fields)


def test_siblings_stand_side_by_side_in_the_order_of_their_numbers():
    html = trajectories(Browsed(played(2, 0.25), played(0, 1.0), played(1, float("nan")))).html
    assert html.index("Episode 0: reward 1<") < html.index("Episode 1: reward none") < html.index("reward 0.25<")
    assert html.count("flex:1 1 300px") == 3
    assert "flex-flow:row wrap" in html


def test_the_newest_group_is_shown_first_and_older_ones_are_a_button_away():
    shown = trajectories(Browsed(played(0, group="old", end_ns=1), played(0, group="new", end_ns=5)))
    assert "Task task-new" in shown.html
    shown.older.click()
    assert "Task task-old" in shown.html
    shown.older.click()
    assert "Task task-old" in shown.html
    shown.newer.click()
    assert "Task task-new" in shown.html


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("all", {"right", "wrong", "broken", "late", "slow", "long"}),
        ("failed", {"broken", "late"}),
        ("timed out", {"late", "slow"}),
        ("cut short", {"slow", "long"}),
        ("reward 0", {"wrong"}),
        ("trained on", {"right"}),
    ],
)
def test_a_group_is_found_by_what_became_of_one_of_its_episodes(kind, found):
    nan = float("nan")
    right = played(0, 1.0, "right")
    run = Browsed(
        *(played(0, 0.0, "wrong"), played(1, 1.0, "wrong")),
        played(0, nan, "broken", failure=Failure("step", "ValueError: took a wrong turn", "Traceback …")),
        played(0, nan, "late", failure=timed_out()),
        played(0, 0.5, "slow", truncation="timeout"),
        played(0, 0.5, "long", truncation="max_turns"),
        trained=[TrainedGroup(TrajectoryGroup("right", right.task, (right,)), 0, (TokenScores((1, 1), (-1, -1)),))],
    )
    assert {group.id for group in matching(siblings_of(run.snapshot()), kind)} == found


def test_a_group_is_found_by_the_text_of_its_task_whatever_its_case():
    run = Browsed(played(0, group="a", prompt="Capital of France"), played(0, group="b", prompt="2 + 3"))
    assert {group.id for group in matching(siblings_of(run.snapshot()), text=" FRANCE ")} == {"a"}
    assert "Capital of France" in trajectories(run, text="france").html
    assert "No episode matches" in trajectories(run, text="Spain").html


def test_tokens_are_coloured_by_advantage_and_by_the_gap_between_trainer_and_sampler():
    one = played(0, rows=(row(("q", None), ("ab", -0.5), ("ok", None), ("c", -3.0)),))
    scores = TokenScores((2.0, 0.0, -0.5), (-0.5, -0.4, -5.0))
    shown = {
        color: painted(show_trajectory(one, Bytes(), color=color, scores=scores).html)
        for color in ("loss mask", "advantage", "log-probability", "log-probability gap")
    }
    assert shown["loss mask"] == {"#f0f0f0": "q", "#cfe8f7": "c", "#fdebc8": "ok"}
    high, none, low = (SCALES["advantage"].color(value) for value in (2.0, 0.0, -0.5))
    assert shown["advantage"] == {"#ffffff": "ok", high: "a", none: "b", low: "c"}
    likely, unlikely = (SCALES["log-probability"].color(value) for value in (-0.5, -3.0))
    assert shown["log-probability"] == {"#ffffff": "ok", likely: "ab", unlikely: "c"}
    equal, apart, far = (SCALES["log-probability gap"].color(value) for value in (0.0, 0.1, 2.0))
    assert shown["log-probability gap"] == {"#ffffff": "ok", equal: "a", apart: "b", far: "c"}
    assert "trainer&#x27;s -0.400 · advantage 0" in show_trajectory(one, Bytes(), scores=scores).html


def test_scores_go_on_where_a_later_row_begins():
    one = played(0, rows=(row(("p", None), ("ab", -0.5)), row(("q", None), ("c", -0.5))))
    html = show_trajectory(one, Bytes(), color="advantage", scores=TokenScores((0.0, 0.0, 2.0), (-0.5,) * 3)).html
    assert f'background:{SCALES["advantage"].color(2.0)};color:#222"><span title="log-probability -0.500' in html
    assert painted(html)[SCALES["advantage"].color(2.0)] == "c"


@pytest.mark.parametrize("color", ["advantage", "log-probability gap"])
def test_what_no_update_has_said_is_said_to_be_missing(color):
    assert f"No {color}: only an update gives it" in trajectories(Browsed(played(0)), color=color).html
    assert "No " not in trajectories(Browsed(played(0)), color="log-probability").html


def test_an_episode_left_out_of_the_loss_says_why():
    pair = (played(0), played(1))
    trained = TrainedGroup(TrajectoryGroup("g", pair[0].task, pair), 4, (None, None))
    html = trajectories(Browsed(trained=[trained])).html
    assert "trained on at policy version 4" in html
    assert html.count("left out of the loss: all siblings earned the same") == 2


def test_calls_are_paired_with_answers_and_folded_with_parts_and_reasons_of_the_reward():
    turn = Turn(
        "r",
        Action((ToolCall("add", {"a": 2}), ToolCall("sub", {"a": 9}))),
        (ToolResult("add", "5"), ToolResult("sub", "no", failed=True)),
        info={"judge": "the unit is missing", "tool_calls": 2},
    )
    html = trajectories(Browsed(played(0, reward_parts={"format": 0.25, "answer": 0.5}, turns=(turn,)))).html
    folded = re.search(r"<details[^>]*>(.*?)</details>", html, re.DOTALL)
    assert folded is not None
    order = [folded[1].index(text) for text in ("add({", "add answered", "sub({", "sub failed", "the unit is missing")]
    assert order == sorted(order)
    assert "format 0.25 · answer 0.5" in html


def test_hostile_text_is_shown_and_not_run():
    turn = Turn(EVIL, Action((ToolCall(EVIL, {EVIL: EVIL}),)), (ToolResult(EVIL, EVIL),), info={EVIL: EVIL})
    one = played(
        0,
        group=EVIL,
        prompt=EVIL,
        rows=(row((EVIL, None), (EVIL, -0.5)),),
        turns=(turn,),
        reward_parts={EVIL: 1.0},
        failure=Failure("tool", EVIL, EVIL),
    )
    for color in ("loss mask", "advantage", "log-probability"):
        html = trajectories(Browsed(one), color=color).html
        assert "<script" not in html and "<img" not in html
        assert "&lt;script&gt;" in html
    untold = Browsed(one)
    untold.tokenizer = None
    assert "<script" not in trajectories(untold).html


def test_choosing_by_the_widgets_draws_anew():
    run = Browsed(played(0, 0.0, "wrong", end_ns=1), played(0, 1.0, "right", end_ns=2))
    shown = trajectories(run)
    assert "Task task-right" in shown.html
    shown.show.value = "reward 0"
    assert "Task task-wrong" in shown.html
    shown.color.value = "log-probability"
    assert "sampler&#x27;s log-probability" in shown.html
    shown.text.value = "nowhere"
    assert "No episode matches" in shown.html
    shown.text.value = ""
    run.played = (*run.played, played(0, 0.0, "newer", end_ns=9))
    shown.tell(run.snapshot())
    assert "1 newer" in shown.note.value
    shown.refresh.click()
    assert shown.note.value == ""
    assert "Task task-wrong" in shown.html  # what was chosen stays
    shown.newer.click()
    assert "Task task-newer" in shown.html


def test_an_unknown_kind_or_colouring_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'failed'"):
        trajectories(Browsed(), show="fail")
    with pytest.raises(ConfigError, match="Did you mean 'advantage'"):
        trajectories(Browsed(), color="advantages")
    with pytest.raises(ConfigError, match="Did you mean 'advantage'"):
        show_trajectory(played(0), Bytes(), color="advantages")
