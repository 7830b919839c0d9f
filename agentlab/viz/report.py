"""A run as one HTML file that needs nothing else: curves, timeline, verdict, configuration, sample trajectories."""

import base64
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentlab.files import shown, write_atomically
from agentlab.tracing import Span
from agentlab.tracing.table import SpanTable
from agentlab.types import RunSnapshot, Trajectory
from agentlab.viz import facts
from agentlab.viz.episode import Tokenizer, show_trajectory
from agentlab.viz.escaping import escape
from agentlab.viz.lanes import lanes_of
from agentlab.viz.learning import curves
from agentlab.viz.timing import timeline
from agentlab.viz.verdict import Verdict, diagnose
from agentlab.viz.waits import episodes

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What the page may do: nothing but show its own pictures and styles. No script, no network."""
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:60em;margin:0 auto;padding:1em;"
    "overflow-wrap:anywhere}img{max-width:100%;height:auto;display:block;margin:.5em 0}"
    "table{border-collapse:collapse}td{padding:1px 1em 1px 0;vertical-align:top}pre{white-space:pre-wrap}"
)


class ReportedRun(Protocol):
    """What a report needs of a run."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...
    def snapshot(self) -> RunSnapshot: ...
    def spans(self) -> Iterable[Span]: ...
    def all_spans(self) -> Iterable[Span]: ...


def report(run: ReportedRun, path: str | Path, *, samples: int = 6) -> Path:
    """Write a report of a run, ended or not, and return its path.

    Everything that models, tools and people wrote is escaped, and the page forbids itself scripts
    and network.

    Args:
        run: The run.
        path: An HTML file, replaced whole.
        samples: Trajectories to show: the best, the worst, failed ones, then the newest.

    Raises:
        OSError: the file cannot be written.
    """
    snapshot = run.snapshot()
    table = SpanTable.of(run.all_spans())
    spans = tuple(run.spans())
    verdict = diagnose(snapshot, spans)
    parts = [
        f"<h1>{escape(snapshot.name)}</h1><p>{escape(snapshot.status)} · {escape(facts.headline(snapshot))}</p>",
        _error(snapshot),
        _verdict(verdict),
        "<h2>Learning</h2>",
        _picture(lambda ax: curves(snapshot.metrics, snapshot.evaluations, ax=ax), 3.4, "reward per update"),
        "<h2>Where time went</h2>",
        _picture(lambda ax: timeline(table, ax=ax), 1.2 + 0.36 * len(lanes_of(table)), "timeline"),
        _picture(lambda ax: episodes(spans, ax=ax), 4.5, "time of each episode"),
        "<h2>Configuration</h2>",
        _rows(snapshot.settings.items()),
        "<h2>Last update</h2>",
        _rows((snapshot.metrics[-1] if snapshot.metrics else {}).items()),
        "<h2>Trajectories</h2>",
        *(_trajectory(one, run.tokenizer) for one in chosen(snapshot.trajectories, samples)),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(snapshot.name)}</title><style>{_STYLE}</style>"
    )
    page = f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
    return write_atomically(path, page)


def chosen(trajectories: Sequence[Trajectory], count: int) -> tuple[Trajectory, ...]:
    """The best and the worst by reward, a failed one, then the newest; each once."""
    scored = sorted((t for t in trajectories if t.scored), key=lambda t: t.reward)
    failed = [t for t in trajectories if not t.scored]
    wanted = [*scored[-1:], *scored[:1], *failed[-1:], *reversed(trajectories)]
    return tuple({id(t): t for t in wanted}.values())[:count]


def _trajectory(trajectory: Trajectory, tokenizer: Tokenizer | None) -> str:
    reward = f"{trajectory.reward:.3g}" if math.isfinite(trajectory.reward) else "none"
    title = f"Task {shown(trajectory.task.id, str)}, episode {trajectory.episode}: reward {reward}"
    if tokenizer is not None:
        body = show_trajectory(trajectory, tokenizer).html
    else:
        lines = (f"{message.get('role', '')}: {message.get('content', '')}" for message in trajectory.messages)
        body = f"<pre>{escape(chr(10).join(lines))}</pre>"
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _verdict(verdict: Verdict) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in verdict.findings)
    changes = "".join(f"<li>{escape(line)}</li>" for line in verdict.advice)
    told = f"<p>{escape(verdict.sentence)}</p><ul>{lines}</ul>"
    return f"<h2>Verdict</h2>{told}" + (f"<p>What to change:</p><ul>{changes}</ul>" if changes else "")


def _error(snapshot: RunSnapshot) -> str:
    told = [*snapshot.notes, *([snapshot.error] if snapshot.error else [])]
    return "".join(f'<pre style="color:#a03000">{escape(text)}</pre>' for text in told)


def _rows(items: Iterable[tuple[str, Any]]) -> str:
    cells = "".join(
        f"<tr><td>{escape(shown(name, str))}</td><td>{escape(shown(value, _said))}</td></tr>" for name, value in items
    )
    return f"<table>{cells}</table>" if cells else "<p>None yet.</p>"


def _said(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{shown(name, str)} {shown(one, _said)}" for name, one in value.items())
    return str(value)


def _picture(draw: Callable[[Any], Any], height: float, name: str) -> str:
    figure = Figure(figsize=(7, height), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.subplots())
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=130)
    source = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{source}">'
