"""One episode as HTML: tokens coloured by who wrote them, tool calls with their results, the reward."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeVar

from agentlab.files import escaped, shown
from agentlab.types import TokenRow, TokenScores, ToolCall, ToolResult, Trajectory, Turn
from agentlab.viz.escaping import escape
from agentlab.viz.paint import Paint, kind_of

T = TypeVar("T")
_MAX_CHARS = 20_000
BOX = (
    "background:#fff;color:#222;border:1px solid #ccc;border-radius:4px;padding:8px 10px;max-width:100%;"
    "box-sizing:border-box;font-size:13px;line-height:1.5;overflow-wrap:anywhere"
)
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;margin:4px 0"


class Tokenizer(Protocol):
    """Anything that turns token ids into text."""

    def decode(self, token_ids: Any, /, *, skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, repr=False)
class EpisodeView:
    """An episode to look at: HTML in a notebook, text elsewhere."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def show_trajectory(
    trajectory: Trajectory, tokenizer: Tokenizer, *, color: str = "loss mask", scores: TokenScores | None = None
) -> EpisodeView:
    """Show what the policy read and wrote, token by token, and what came of it.

    A sampled token tells its log-probability and policy version when pointed at. All text is escaped.

    Args:
        trajectory: The record of an episode; may be a failed one.
        tokenizer: The tokenizer of the model that sampled it.
        color: What tokens are coloured by: "loss mask", "advantage", "log-probability" or
            "log-probability gap", which is between trainer and sampler.
        scores: What an update made of its tokens; None if none has counted it.

    Raises:
        ConfigError: the colouring is unknown.
    """
    decode, paint = decoder_of(tokenizer), Paint.of(trajectory, color, scores)
    parts = [f'<div style="margin-bottom:4px">{escape(_headline(trajectory))}</div>', paint.legend()]
    return EpisodeView(
        f'<div style="{BOX}">{"".join(parts)}{episode_html(trajectory, decode, paint)}</div>',
        escaped(_as_text(trajectory, decode)),
    )


def decoder_of(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """From token ids to text, special tokens included."""
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def episode_html(trajectory: Trajectory, decode: Callable[[Sequence[int]], str], paint: Paint) -> str:
    """Tokens, turns with their calls folded, and the failure of an episode."""
    parts = [f'<div style="color:#8a5a00">{escape(paint.missing)}</div>'] if paint.missing else []
    parts += [_row(number, row, decode, paint) for number, row in enumerate(trajectory.rows)]
    parts += [_turn(index, turn) for index, turn in enumerate(trajectory.turns)]
    if trajectory.failure is not None:
        failed = f"{trajectory.failure.stage}, turn {trajectory.failure.turn}: {trajectory.failure.error}"
        parts.append(f'<pre style="{_TEXT};color:#a03000">{escape(_cut(failed))}</pre>')
    return "".join(parts)


def _headline(trajectory: Trajectory) -> str:
    reward = f"{trajectory.reward:.3g}" if math.isfinite(trajectory.reward) else "none (failed)"
    parts = [f"Task {shown(trajectory.task.id, str)}", f"episode {trajectory.episode}", f"reward {reward}"]
    parts += [f"{name} {value:.3g}" for name, value in trajectory.reward_parts.items()]
    num_tokens = sum(len(row.tokens) for row in trajectory.rows)
    parts.append(f"{len(trajectory.turns)} turns, {trajectory.num_sampled} of {num_tokens} tokens sampled")
    if trajectory.end_ns > trajectory.start_ns:
        parts.append(f"{(trajectory.end_ns - trajectory.start_ns) / 1e9:.2f} s")
    if trajectory.truncation:
        parts.append(f"cut by {trajectory.truncation}")
    return " · ".join(parts)


def _row(number: int, row: TokenRow, decode: Callable[[Sequence[int]], str], paint: Paint) -> str:
    look, tell = paint.row(number)
    pieces = []
    for (sampled, (back, ink)), group in groupby(
        range(len(row.tokens)), key=lambda place: (row.loss_mask[place], look(place))
    ):
        places = list(group)
        if sampled:
            inner = "".join(
                f'<span title="{escape(tell(part))}">{escape(text)}</span>'
                for part, text in _whole_characters(row, places, decode)
            )
        else:
            inner = escape(_cut(decode([row.tokens[i] for i in places])))
        pieces.append(f'<span style="background:{back};color:{ink}">{inner}</span>')
    return f'<div style="{_TEXT};max-height:26em;overflow-y:auto">{"".join(pieces)}</div>'


def _segments(row: TokenRow) -> Iterator[tuple[str, list[int]]]:
    """(kind, places) of neighbouring tokens that were written by the same side."""
    for name, places in groupby(range(len(row.tokens)), key=lambda place: kind_of(row, place)):
        yield name, list(places)


def _whole_characters(
    row: TokenRow, places: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> Iterator[tuple[list[int], str]]:
    """(places, text) of the shortest runs of tokens that decode to whole characters."""
    waiting: list[int] = []
    for place in places:
        waiting.append(place)
        text = decode([row.tokens[i] for i in waiting])
        if "\ufffd" not in text or len(waiting) >= 8 or place == places[-1]:
            yield waiting, text
            waiting = []


def _turn(index: int, turn: Turn) -> str:
    calls, results = _calls(turn), _results(turn)
    facts = f"turn {index + 1} · model {turn.model_s:.2f} s · step {turn.step_s:.2f} s · reward {turn.reward:.3g}"
    lines = []
    for place, call in enumerate(calls):
        lines.append(f'<pre style="{_TEXT};color:#006b50">{escape(_cut(_call_text(call)))}</pre>')
        if place < len(results):
            lines.append(_result(results[place]))
    lines += [_result(result) for result in results[len(calls) :]]
    if not results and turn.observation is not None:
        lines.append(f'<pre style="{_TEXT};color:#553a00">{escape(_cut(shown(turn.observation, str)))}</pre>')
    told = {name: value for name, value in turn.info.items() if name not in ("tool_calls", "tool_failures")}
    if told:
        said = ", ".join(f"{shown(name, str)}: {shown(value, str)}" for name, value in told.items())
        lines.append(f'<pre style="{_TEXT};color:#555">{escape(_cut(said))}</pre>')
    names = ", ".join(call.name for call in calls)
    summary = escape(f"{facts}{' · ' + names if names else ''}")
    return f'<details style="margin-top:4px"><summary>{summary}</summary>{"".join(lines)}</details>'


def _result(result: ToolResult) -> str:
    color = "#a03000" if result.failed else "#553a00"
    state = "failed" if result.failed else "answered"
    text = f"{result.name} {state} in {result.duration_s:.2f} s: {result.text}"
    return f'<pre style="{_TEXT};color:{color};padding-left:1em">{escape(_cut(text))}</pre>'


def _calls(turn: Turn) -> list[ToolCall]:
    return all_of(ToolCall, lambda: turn.action.value)


def _results(turn: Turn) -> list[ToolResult]:
    return all_of(ToolResult, lambda: turn.observation)


def all_of(kind: type[T], look: Callable[[], Any]) -> list[T]:
    """What is of this kind in a list or tuple; nothing in anything else, which may raise when it is looked at."""
    try:
        value = look()
        return [item for item in value if isinstance(item, kind)] if isinstance(value, list | tuple) else []
    except (Exception, SystemExit):  # an action or observation of a class of a user's own
        return []


def _call_text(call: ToolCall) -> str:
    arguments = shown(call.arguments, lambda given: json.dumps(dict(given), ensure_ascii=False, default=shown))
    return f"{call.name}({arguments})" + (f"  ! {call.error}" if call.error else "")


def _cut(text: str) -> str:
    left = len(text) - _MAX_CHARS
    return text if left <= 0 else f"{text[: _MAX_CHARS // 2]}\n[{left} characters left out]\n{text[-_MAX_CHARS // 2 :]}"


def _as_text(trajectory: Trajectory, decode: Callable[[Sequence[int]], str]) -> str:
    lines = [_headline(trajectory)]
    for row in trajectory.rows:
        lines += [f"[{kind}] {_cut(decode([row.tokens[i] for i in places]))}" for kind, places in _segments(row)]
    if trajectory.failure is not None:
        lines.append(f"[failed in {trajectory.failure.stage}] {trajectory.failure.error}")
    return "\n".join(lines)
