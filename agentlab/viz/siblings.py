"""Groups of episodes as HTML: siblings side by side, found by what became of them or by the text of their task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from agentlab.files import escaped, shown
from agentlab.types import RunSnapshot, Task, TokenScores, Trajectory
from agentlab.viz.episode import Tokenizer, decoder_of, episode_html
from agentlab.viz.escaping import escape
from agentlab.viz.paint import Paint

Kept = Literal["all", "failed", "timed out", "cut short", "reward 0", "trained on"]
KINDS: tuple[Kept, ...] = get_args(Kept)
_MAX_PROMPT_CHARS = 600
_CARD = (
    "flex:1 1 300px;min-width:0;max-width:100%;box-sizing:border-box;border-radius:4px;padding:6px 8px;background:#fff;"
    "color:#222;font-size:13px;line-height:1.5;overflow-wrap:anywhere;"
)


@dataclass(frozen=True)
class Siblings:
    """The episodes of one task that are known, by their number in the group."""

    id: str
    task: Task
    episodes: tuple[Trajectory, ...]
    scores: Mapping[int, TokenScores]
    """What an update made of an episode, by its number; those left out of the loss are missing."""
    version: int | None = None
    """Of the weights that the group was trained on; None if it has not been."""

    @property
    def rewards(self) -> list[float]:
        return [one.reward for one in self.episodes if one.scored]


def siblings_of(snapshot: RunSnapshot) -> tuple[Siblings, ...]:
    """The groups that a snapshot knows of, newest first."""
    episodes: dict[str, dict[int, Trajectory]] = {}
    trained = {one.group.id: one for one in snapshot.trained}
    for one in snapshot.trained:
        episodes[one.group.id] = {played.episode: played for played in one.group.trajectories}
    for played in snapshot.trajectories:
        episodes.setdefault(played.group_id, {})[played.episode] = played

    def newest(found: Mapping[int, Trajectory]) -> int:
        return max(one.end_ns for one in found.values())

    made = []
    for name, found in sorted(episodes.items(), key=lambda item: newest(item[1]), reverse=True):
        one = trained.get(name)
        pairs = zip(one.group.trajectories, one.scores, strict=True) if one else ()
        scores = {played.episode: score for played, score in pairs if score is not None}
        ordered = tuple(found[number] for number in sorted(found))
        made.append(Siblings(name, ordered[0].task, ordered, scores, one.version if one else None))
    return tuple(made)


def is_kept(one: Trajectory, kept: Kept, group: Siblings) -> bool:
    """Whether an episode is of this kind."""
    if kept == "failed":
        return one.failure is not None
    if kept == "timed out":
        late = one.failure is not None and not one.failure.traceback and "took longer than" in one.failure.error
        return late or one.truncation == "timeout"
    if kept == "cut short":
        return one.truncation is not None
    if kept == "reward 0":
        return one.scored and one.reward == 0
    return kept == "all" or one.episode in group.scores


def matching(groups: Sequence[Siblings], kept: Kept = "all", text: str = "") -> tuple[Siblings, ...]:
    """The groups with at least one episode of this kind and with this text in their task, whatever its case."""
    wanted = text.casefold().strip()
    return tuple(
        group
        for group in groups
        if wanted in f"{shown(group.task.id, str)}\n{group.task.prompt}".casefold()
        and any(is_kept(one, kept, group) for one in group.episodes)
    )


def group_title(group: Siblings) -> str:
    """A group in one line."""
    rewards = ", ".join(f"{reward:.3g}" for reward in group.rewards[:8]) + (", …" if len(group.rewards) > 8 else "")
    failed = sum(one.failure is not None for one in group.episodes)
    parts = [f"Task {shown(group.task.id, str):.40}", f"rewards {rewards}" if rewards else "no reward yet"]
    return " · ".join([*parts, f"{failed} failed"] if failed else parts)


def siblings_html(group: Siblings, tokenizer: Tokenizer | None, *, color: str = "loss mask", kept: Kept = "all") -> str:
    """A group as HTML, its episodes side by side where there is room; those of the kind have a frame.

    Raises:
        ConfigError: the colouring is unknown.
    """
    prompt = group.task.prompt
    cut = prompt if len(prompt) <= _MAX_PROMPT_CHARS else f"{prompt[:_MAX_PROMPT_CHARS]} …"
    trained = "not trained on yet" if group.version is None else f"trained on at policy version {group.version}"
    legend = Paint.of(group.episodes[0], color).legend()
    cards = "".join(
        _card(one, tokenizer, Paint.of(one, color, group.scores.get(one.episode)), framed=kept, group=group)
        for one in group.episodes
    )
    return (
        f'<div style="line-height:1.5;overflow-wrap:anywhere;max-width:100%">'
        f"<div><b>{escape(group_title(group))}</b> · {trained}</div>"
        f'<div style="white-space:pre-wrap;color:#555">{escape(cut)}</div><div>{legend}</div>'
        f'<div style="display:flex;flex-flow:row wrap;gap:6px;align-items:flex-start">{cards}</div></div>'
    )


def _card(one: Trajectory, tokenizer: Tokenizer | None, paint: Paint, *, framed: Kept, group: Siblings) -> str:
    marked = framed != "all" and is_kept(one, framed, group)
    border = "2px solid #a03000" if marked else "1px solid #ccc"
    told = "".join(f"<div>{line}</div>" for line in _facts(one, group))
    return f'<div style="{_CARD}border:{border}">{told}{_body(one, tokenizer, paint)}</div>'


def _facts(one: Trajectory, group: Siblings) -> list[str]:
    reward = f"{one.reward:.3g}" if math.isfinite(one.reward) else "none"
    lines = [f"<b>Episode {one.episode}: reward {reward}</b>"]
    if one.reward_parts:
        lines.append(escape(" · ".join(f"{name} {value:.3g}" for name, value in one.reward_parts.items())))
    lines.append(escape(f"{len(one.turns)} turns, {one.num_sampled} tokens sampled{_took(one)}"))
    if why := _why(one, group):
        lines.append(f'<span style="color:#a35200">{escape(why)}</span>')
    return lines


def _took(one: Trajectory) -> str:
    return f", {(one.end_ns - one.start_ns) / 1e9:.2f} s" if one.end_ns > one.start_ns else ""


def _why(one: Trajectory, group: Siblings) -> str:
    """Why the reward is what it is, or does not count."""
    if one.failure is not None:
        return f"failed in {one.failure.stage}: no reward"
    parts = [f"cut by {one.truncation}"] if one.truncation else []
    if group.version is not None and one.episode not in group.scores:
        alike = len(group.rewards) > 1 and len(set(group.rewards)) == 1
        parts.append("left out of the loss: " + ("all siblings earned the same" if alike else "it teaches nothing"))
    return " · ".join(parts)


def _body(one: Trajectory, tokenizer: Tokenizer | None, paint: Paint) -> str:
    if tokenizer is not None:
        return episode_html(one, decoder_of(tokenizer), paint)
    lines = (f"{message.get('role', '')}: {message.get('content', '')}" for message in one.messages)
    return f'<pre style="white-space:pre-wrap">{escape(chr(10).join(lines))}</pre>'


def as_text(groups: Sequence[Siblings]) -> str:
    """The groups where nothing but text can be shown."""
    return escaped("\n".join(group_title(group) for group in groups)) or "No episode matches."
