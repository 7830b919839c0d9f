"""One episode as HTML: tokens coloured by who wrote them, tool calls with their results, the reward."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any, Protocol

from agentlab.types import TokenRow, ToolCall, ToolResult, Trajectory, Turn

_MAX_CHARS = 20_000
_BOX = (
    "background:#fff;color:#222;border:1px solid #ccc;border-radius:4px;padding:8px 10px;max-width:100%;"
    "box-sizing:border-box;font-size:13px;line-height:1.5;overflow-wrap:anywhere"
)
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;margin:4px 0"
_KINDS = {
    "prompt": ("prompt", "#f0f0f0", "#555"),
    "sampled": ("sampled by the policy: trained on", "#cfe8f7", "#10394f"),
    "given": ("given by tool or environment", "#fdebc8", "#553a00"),
}


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


def show_trajectory(trajectory: Trajectory, tokenizer: Tokenizer) -> EpisodeView:
    """Show what the policy read and wrote, token by token, and what came of it.

    A sampled token tells its log-probability and policy version when pointed at. All text is escaped.

    Args:
        trajectory: The record of an episode; may be a failed one.
        tokenizer: The tokenizer of the model that sampled it.
    """

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False)

    parts = [f'<div style="margin-bottom:4px">{escape(_headline(trajectory))}</div>', _legend()]
    parts += [_row(row, decode) for row in trajectory.rows]
    parts += [_turn(index, turn) for index, turn in enumerate(trajectory.turns)]
    if trajectory.failure is not None:
        failed = f"{trajectory.failure.stage}, turn {trajectory.failure.turn}: {trajectory.failure.error}"
        parts.append(f'<pre style="{_TEXT};color:#a03000">{escape(_cut(failed))}</pre>')
    return EpisodeView(f'<div style="{_BOX}">{"".join(parts)}</div>', _as_text(trajectory, decode))


def _headline(trajectory: Trajectory) -> str:
    reward = f"{trajectory.reward:.3g}" if math.isfinite(trajectory.reward) else "none (failed)"
    parts = [f"Task {trajectory.task.id}", f"episode {trajectory.episode}", f"reward {reward}"]
    parts += [f"{name} {value:.3g}" for name, value in trajectory.reward_parts.items()]
    num_tokens = sum(len(row.tokens) for row in trajectory.rows)
    parts.append(f"{len(trajectory.turns)} turns, {trajectory.num_sampled} of {num_tokens} tokens sampled")
    if trajectory.end_ns > trajectory.start_ns:
        parts.append(f"{(trajectory.end_ns - trajectory.start_ns) / 1e9:.2f} s")
    if trajectory.truncation:
        parts.append(f"cut by {trajectory.truncation}")
    return " · ".join(parts)


def _legend() -> str:
    return "".join(
        f'<span style="background:{back};color:{ink};padding:1px 5px;margin-right:6px;display:inline-block">'
        f"{label}</span>"
        for label, back, ink in _KINDS.values()
    )


def _row(row: TokenRow, decode: Callable[[Sequence[int]], str]) -> str:
    pieces = []
    for kind, places in _segments(row):
        _, back, ink = _KINDS[kind]
        if kind == "sampled":
            inner = "".join(
                f'<span title="{escape(_told(row, part))}">{escape(text)}</span>'
                for part, text in _whole_characters(row, places, decode)
            )
        else:
            inner = escape(_cut(decode([row.tokens[i] for i in places])))
        pieces.append(f'<span style="background:{back};color:{ink}">{inner}</span>')
    return f'<div style="{_TEXT};max-height:26em;overflow-y:auto">{"".join(pieces)}</div>'


def _segments(row: TokenRow) -> Iterator[tuple[str, list[int]]]:
    """(kind, places) of neighbouring tokens that were written by the same side."""

    def kind(place: int) -> str:
        return "sampled" if row.loss_mask[place] else "prompt" if place < row.prompt_length else "given"

    for name, places in groupby(range(len(row.tokens)), key=kind):
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


def _told(row: TokenRow, places: Sequence[int]) -> str:
    logprobs = ", ".join(f"{row.logprobs[i]:.3f}" for i in places)
    return f"log-probability {logprobs} · policy version {row.policy_versions[places[0]]}"


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
        lines.append(f'<pre style="{_TEXT};color:#553a00">{escape(_cut(str(turn.observation)))}</pre>')
    names = ", ".join(call.name for call in calls)
    summary = escape(f"{facts}{' · ' + names if names else ''}")
    return f'<details style="margin-top:4px"><summary>{summary}</summary>{"".join(lines)}</details>'


def _result(result: ToolResult) -> str:
    color = "#a03000" if result.failed else "#553a00"
    state = "failed" if result.failed else "answered"
    text = f"{result.name} {state} in {result.duration_s:.2f} s: {result.text}"
    return f'<pre style="{_TEXT};color:{color};padding-left:1em">{escape(_cut(text))}</pre>'


def _calls(turn: Turn) -> list[ToolCall]:
    value = getattr(turn.action, "value", None)
    return [call for call in value if isinstance(call, ToolCall)] if isinstance(value, list | tuple) else []


def _results(turn: Turn) -> list[ToolResult]:
    seen = turn.observation
    return [result for result in seen if isinstance(result, ToolResult)] if isinstance(seen, list | tuple) else []


def _call_text(call: ToolCall) -> str:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
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
