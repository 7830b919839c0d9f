"""How the tokens of an episode are coloured: by who wrote them, or by a number that each sampled token has."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from agentlab.types import TokenRow, TokenScores, Trajectory, checked_option
from agentlab.viz.escaping import escape

Coloring = Literal["loss mask", "advantage", "log-probability", "log-probability gap"]
COLORINGS: tuple[Coloring, ...] = get_args(Coloring)

INK = "#222"
OTHERS = ("prompt, tool or environment", "#ffffff", "#6a6a6a")
KINDS = {
    "prompt": ("prompt", "#f0f0f0", "#555"),
    "sampled": ("sampled by the policy: trained on", "#cfe8f7", "#10394f"),
    "given": ("given by tool or environment", "#fdebc8", "#553a00"),
}
_RISING = ("#f2f2f2", "#fdeecf", "#f9cf85", "#efa75c", "#e58546")


@dataclass(frozen=True)
class Scale:
    """Colours of a number: `colors[i]` from `edges[i - 1]` up to below `edges[i]`."""

    name: str
    edges: tuple[float, ...]
    colors: tuple[str, ...]
    labels: tuple[str, ...]

    def color(self, value: float) -> str:
        return self.colors[bisect.bisect_right(self.edges, value)]


SCALES: dict[Coloring, Scale] = {
    "advantage": Scale(
        "advantage",
        (-1.0, -1e-9, 1e-9, 1.0),
        ("#e58546", "#f8d3bd", "#eeeeee", "#cfe3f3", "#85b9e2"),
        ("below -1", "-1 to 0", "0", "0 to 1", "1 and more"),
    ),
    "log-probability": Scale(
        "sampler's log-probability",
        (-5.0, -2.0, -0.7, -0.1),
        _RISING[::-1],
        ("below -5", "-5 to -2", "-2 to -0.7", "-0.7 to -0.1", "above -0.1"),
    ),
    "log-probability gap": Scale(
        "trainer's less sampler's log-probability, without its sign",
        (0.01, 0.05, 0.2, 1.0),
        _RISING,
        ("below 0.01", "0.01 to 0.05", "0.05 to 0.2", "0.2 to 1", "1 and more"),
    ),
}
"""In nats, where it is a log-probability."""


@dataclass(frozen=True)
class Paint:
    """The look of every token of one trajectory, and what a token tells when it is pointed at."""

    coloring: Coloring
    scores: TokenScores | None
    rows: tuple[TokenRow, ...]

    @classmethod
    def of(cls, trajectory: Trajectory, coloring: str = "loss mask", scores: TokenScores | None = None) -> "Paint":
        """Raises ConfigError: the colouring is unknown."""
        return cls(checked_option("color", coloring, Coloring), scores, trajectory.rows)

    @property
    def missing(self) -> str | None:
        """Why tokens have no colour; None where they have."""
        if self.coloring in ("advantage", "log-probability gap") and self.scores is None:
            return f"No {self.coloring}: only an update gives it, and none has counted this episode (yet)."
        return None

    def legend(self) -> str:
        """Which colour says what."""
        if self.coloring == "loss mask":
            shown = list(KINDS.values())
        else:
            scale = SCALES[self.coloring]
            pairs = zip(scale.labels, scale.colors, strict=True)
            shown = [*((label, back, INK) for label, back in pairs), OTHERS]
        chips = "".join(
            f'<span style="background:{back};color:{ink};padding:1px 5px;margin:0 6px 2px 0;display:inline-block">'
            f"{escape(label)}</span>"
            for label, back, ink in shown
        )
        return chips if self.coloring == "loss mask" else f"{escape(SCALES[self.coloring].name)}: {chips}"

    def row(self, number: int) -> tuple[Callable[[int], tuple[str, str]], Callable[[Sequence[int]], str]]:
        """For a row: (background, ink) of the token at a place, and what sampled tokens at places tell."""
        row = self.rows[number]
        before = sum(sum(earlier.loss_mask) for earlier in self.rows[:number])
        rank, count = [], before
        for mask in row.loss_mask:
            rank.append(count)
            count += mask

        def look(place: int) -> tuple[str, str]:
            if self.coloring == "loss mask":
                _, back, ink = KINDS[kind_of(row, place)]
                return back, ink
            value = self._value(row, rank, place)
            if not row.loss_mask[place] or value is None:
                return OTHERS[1:]
            return SCALES[self.coloring].color(value), INK

        def tell(places: Sequence[int]) -> str:
            logprobs = ", ".join(f"{row.logprobs[i]:.3f}" for i in places)
            told = f"log-probability {logprobs} · policy version {row.policy_versions[places[0]]}"
            if self.scores is None:
                return told
            theirs = ", ".join(f"{self.scores.logprobs[rank[i]]:.3f}" for i in places)
            return f"{told} · trainer's {theirs} · advantage {self.scores.advantages[rank[places[0]]]:.3g}"

        return look, tell

    def _value(self, row: TokenRow, rank: Sequence[int], place: int) -> float | None:
        if self.coloring == "log-probability":
            return row.logprobs[place]
        if self.scores is None or not row.loss_mask[place]:
            return None
        if self.coloring == "advantage":
            return self.scores.advantages[rank[place]]
        return abs(self.scores.logprobs[rank[place]] - row.logprobs[place])


def kind_of(row: TokenRow, place: int) -> str:
    """Who wrote a token: "prompt", "sampled" or "given"."""
    return "sampled" if row.loss_mask[place] else "prompt" if place < row.prompt_length else "given"
