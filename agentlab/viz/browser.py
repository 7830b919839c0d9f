"""The trajectory browser: which group, which episodes of it, and what their tokens are coloured by."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import ipywidgets
from IPython import get_ipython
from IPython.display import publish_display_data

from agentlab.types import RunSnapshot, checked_option
from agentlab.viz.episode import Tokenizer
from agentlab.viz.paint import COLORINGS, Coloring
from agentlab.viz.siblings import KINDS, Kept, Siblings, as_text, group_title, matching, siblings_html, siblings_of

_WIDGET = "application/vnd.jupyter.widget-view+json"
_NOTHING = '<div style="color:#777">No episode matches.</div>'


@runtime_checkable
class BrowsedRun(Protocol):
    """A run, or anything else that has trajectories and the tokenizer of their tokens."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...
    def snapshot(self) -> RunSnapshot: ...


class TrajectoryBrowser:
    """The newest groups of a run, one at a time; used by the main thread, which takes a snapshot when asked to.

    Only `tell` may be called by the thread that refreshes a dashboard: it assigns one text.
    """

    def __init__(self, run: BrowsedRun, *, show: Kept = "all", text: str = "", color: Coloring = "loss mask"):
        self._run = run
        self._groups: tuple[Siblings, ...] = ()
        self._matching: tuple[Siblings, ...] = ()
        self._newest_ns = 0
        wide = ipywidgets.Layout(width="auto", flex="1 1 150px", min_width="0", max_width="260px")
        self.text = ipywidgets.Text(value=text, placeholder="text of the task", continuous_update=False, layout=wide)
        self.show = ipywidgets.Dropdown(options=KINDS, value=checked_option("show", show, Kept), layout=wide)
        self.color = ipywidgets.Dropdown(options=COLORINGS, value=checked_option("color", color, Coloring), layout=wide)
        group = ipywidgets.Layout(width="auto", flex="2 1 240px", min_width="0", max_width="640px")
        self.group = ipywidgets.Dropdown(options=(), layout=group)
        self.newer, self.older = (_button(name, name) for name in ("Newer", "Older"))
        self.refresh = _button("Refresh", "Look at the newest episodes")
        self.note, self.page = (ipywidgets.HTML(layout=ipywidgets.Layout(width="auto", margin="0")) for _ in range(2))
        rows = [flow([self.show, self.text, self.color]), flow([self.group, self.newer, self.older, self.refresh])]
        self.root = ipywidgets.VBox([*rows, self.note, self.page], layout=ipywidgets.Layout(width="auto"))
        self.look()
        for widget in (self.show, self.text):
            widget.observe(lambda _: self._choose(), "value")
        for widget in (self.group, self.color):
            widget.observe(lambda _: self._draw(), "value")
        self.refresh.on_click(lambda _: self.look())
        self.newer.on_click(lambda _: self._move(-1))
        self.older.on_click(lambda _: self._move(1))

    def look(self) -> None:
        """Take what the run has now; the chosen group stays chosen while it is there."""
        snapshot = self._run.snapshot()
        self._groups = siblings_of(snapshot)
        self._newest_ns = _newest_ns(snapshot)
        self.note.value = ""
        self._choose()

    def tell(self, snapshot: RunSnapshot) -> None:
        """Say how many episodes have ended since the last look; from any one thread."""
        later = sum(one.end_ns > self._newest_ns for one in snapshot.trajectories)
        self.note.value = f'<span style="color:#777">{later} newer: press Refresh</span>' if later else ""

    @property
    def html(self) -> str:
        """What is shown now."""
        return self.page.value

    def close(self) -> None:
        """Remove its widgets from the notebook's state."""
        for row in self.root.children:
            for widget in (*getattr(row, "children", ()), row):
                widget.close()
        self.root.close()

    def _choose(self) -> None:
        self._matching = matching(self._groups, checked_option("show", self.show.value, Kept), self.text.value)
        names = [group.id for group in self._matching]
        chosen = self.group.value if self.group.value in names else next(iter(names), None)
        self.group.options = _options(self._matching)
        self.group.value = chosen
        self._draw()

    def _move(self, by: int) -> None:
        names = [group.id for group in self._matching]
        if self.group.value in names:
            self.group.value = names[min(max(names.index(self.group.value) + by, 0), len(names) - 1)]

    def _draw(self) -> None:
        group = next((group for group in self._matching if group.id == self.group.value), None)
        options: dict[str, Any] = {"color": self.color.value, "kept": self.show.value}
        self.page.value = siblings_html(group, self._run.tokenizer, **options) if group else _NOTHING

    def _ipython_display_(self) -> None:
        data: dict[str, Any] = {"text/plain": repr(self), "text/html": self.html}
        if getattr(get_ipython(), "kernel", None) is not None:
            data[_WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": self.root.model_id}
        publish_display_data(data)

    def __repr__(self) -> str:
        return as_text(self._matching)


def trajectories(
    run: BrowsedRun, *, show: Kept = "all", text: str = "", color: Coloring = "loss mask"
) -> TrajectoryBrowser:
    """Look through the newest groups of a run, ended or not.

    Siblings stand side by side, with rewards, their parts, calls and answers of tools folded. In a saved
    notebook the group that was shown first remains to be seen.

    Args:
        run: The run.
        show: Groups with at least one such episode: "all", "failed", "timed out", "cut short" (by a limit),
            "reward 0", "trained on".
        text: What a task's id or prompt must contain.
        color: What sampled tokens are coloured by: "loss mask", "advantage", "log-probability" (the
            sampler's), "log-probability gap" (trainer's less sampler's; known once an update has used the episode).

    Raises:
        ConfigError: an option is unknown.
    """
    return TrajectoryBrowser(run, show=show, text=text, color=color)


def _newest_ns(snapshot: RunSnapshot) -> int:
    return max((one.end_ns for one in snapshot.trajectories), default=0)


def _options(groups: Sequence[Siblings]) -> list[tuple[str, str]]:
    """(label, group id); labels differ, as a drop-down needs."""
    return [(f"{place}. {group_title(group)}", group.id) for place, group in enumerate(groups, 1)]


def flow(children: Iterable[Any]) -> ipywidgets.Box:
    """Widgets side by side, as many as there is room for."""
    layout = ipywidgets.Layout(display="flex", flex_flow="row wrap", align_items="flex-start", width="auto")
    return ipywidgets.Box(tuple(children), layout=layout)


def _button(name: str, told: str) -> ipywidgets.Button:
    layout = ipywidgets.Layout(width="auto", min_width="74px")
    return ipywidgets.Button(description=name, tooltip=told, layout=layout)
