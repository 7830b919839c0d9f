"""A preview as HTML and as text."""

import math
from collections.abc import Mapping, Sequence

from agentlab.viz.colors import GREEN, VERMILION
from agentlab.viz.escaping import escape

_BOX = "background:#fff;color:#222;border:1px solid #ccc;border-radius:4px;padding:8px 10px;font-size:13px"
_CELL = "padding:1px 12px 1px 0;text-align:left;color:#222;background:#fff;font-size:13px"


def page(
    warnings: Sequence[str],
    memory_bytes: Mapping[str, int],
    times_s: Mapping[str, float],
    rewards: Sequence[Mapping[str, float]],
    episodes: Sequence[str],
) -> str:
    """The preview as HTML; `episodes` are HTML already, all else is escaped."""
    parts = [
        *(f'<div style="color:{VERMILION}">⚠ {escape(warning)}</div>' for warning in warnings),
        "" if warnings else f'<div style="color:{GREEN}">Nothing looks wrong.</div>',
        _table("Reward and its parts", _reward_lines(rewards)),
        _table("Memory of a run", _memory_lines(memory_bytes)),
        _table("One update, at most", _time_lines(times_s)),
    ]
    return f'<div style="{_BOX}">{"".join(parts)}</div>' + "".join(episodes)


def page_as_text(
    warnings: Sequence[str],
    memory_bytes: Mapping[str, int],
    times_s: Mapping[str, float],
    rewards: Sequence[Mapping[str, float]],
    episodes: Sequence[str],
) -> str:
    """The same as text."""
    lines = [f"! {warning}" for warning in warnings] or ["Nothing looks wrong."]
    for title, rows in (
        ("Reward and its parts", _reward_lines(rewards)),
        ("Memory of a run", _memory_lines(memory_bytes)),
        ("One update, at most", _time_lines(times_s)),
    ):
        lines += [f"{title}:", *(f"  {name}: {' | '.join(values)}" for name, *values in rows)]
    return "\n".join([*lines, *episodes])


def _reward_lines(rewards: Sequence[Mapping[str, float]]) -> list[tuple[str, ...]]:
    names = dict.fromkeys(name for row in rewards for name in row)
    return [(name, *(_number(row[name]) if name in row else "none" for row in rewards)) for name in names]


def _memory_lines(memory_bytes: Mapping[str, int]) -> list[tuple[str, ...]]:
    lines = [(name, _size(size_bytes)) for name, size_bytes in memory_bytes.items()]
    return [*lines, ("together", _size(sum(memory_bytes.values())))]


def _time_lines(times_s: Mapping[str, float]) -> list[tuple[str, ...]]:
    lines = [(name, _number(seconds, " s")) for name, seconds in times_s.items()]
    return [*lines, ("together", _number(sum(times_s.values()), " s"))]


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"


def _number(value: float, unit: str = "") -> str:
    return f"{value:.3g}{unit}" if math.isfinite(value) else "not measured"


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f'<div style="margin-top:6px"><b>{escape(title)}</b></div><table>{body}</table>'
