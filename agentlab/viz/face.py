"""The dashboard's widgets: core ones only, so that they show wherever ipywidgets 7.7 or newer does."""

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets

from agentlab.types import RunSnapshot
from agentlab.viz.browser import TrajectoryBrowser, flow

VIEW = "application/vnd.jupyter.widget-view+json"
SIZES = {"lanes": (400, 600), "curve": (290, 400)}
"""(wanted, greatest) width of each picture in CSS pixels; they stand side by side where there is room."""

_ICONS = {"Pause": "pause", "Resume": "play", "Stop": "stop", "Trajectories": "list"}


class Face:
    """Text, pictures and buttons; made on the main thread, assigned to by the thread that refreshes.

    Args:
        acts: What each button does, on the main thread; {} shows no buttons.
        browse: Makes a browser of trajectories, which a button opens and closes; None shows no such button.
    """

    def __init__(self, acts: Mapping[str, Callable[[], Any]], browse: Callable[[], TrajectoryBrowser] | None = None):
        self.labels = {
            name: ipywidgets.HTML(layout=ipywidgets.Layout(width="auto", margin="0")) for name in ("head", "foot")
        }
        self.images = {name: _image(*size) for name, size in SIZES.items()}
        rows = [self.labels["head"], flow(self.images.values()), self.labels["foot"]]
        self.buttons = {name: _button(name, act) for name, act in acts.items()}
        self.browser: TrajectoryBrowser | None = None
        self.opener = _button("Trajectories", lambda: self._toggle(browse)) if browse else None
        shown = (*self.buttons.values(), *([self.opener] if self.opener else []))
        if shown:
            rows.append(flow(shown))
        self.root = ipywidgets.VBox(rows, layout=ipywidgets.Layout(width="auto", max_width="1080px"))

    def assign(self, html: Mapping[str, str], pngs: Mapping[str, bytes]) -> None:
        """Show these texts and pictures."""
        for name, label in self.labels.items():
            label.value = html[name]
        for name, image in self.images.items():
            image.value = pngs[name]

    def view(self) -> dict[str, Any]:
        """What a cell publishes to show it."""
        return {VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.root.model_id}}

    def tell(self, snapshot: RunSnapshot) -> None:
        """Tell an open browser of trajectories what there is by now."""
        if (browser := self.browser) is not None:
            browser.tell(snapshot)

    def close(self) -> None:
        """Remove all widgets from the notebook's state."""
        if self.browser is not None:
            self.browser.close()
        parts = (*self.labels.values(), *self.images.values(), *self.buttons.values(), *self.root.children)
        for part in (*parts, *filter(None, [self.opener]), self.root):
            part.close()

    def _toggle(self, browse: Callable[[], TrajectoryBrowser]) -> None:
        if self.browser is None:
            self.browser = browse()
            self.root.children = (*self.root.children, self.browser.root)
        else:
            browser, self.browser = self.browser, None
            self.root.children = self.root.children[:-1]
            browser.close()


def _image(wanted: int, most: int) -> ipywidgets.Image:
    layout = ipywidgets.Layout(
        flex=f"1 1 {wanted}px", min_width="0", max_width=f"{most}px", width="auto", height="auto", margin="0"
    )
    return ipywidgets.Image(format="png", layout=layout)


def _button(name: str, act: Callable[[], Any]) -> ipywidgets.Button:
    layout = ipywidgets.Layout(width="auto", min_width="84px")
    button = ipywidgets.Button(description=name, icon=_ICONS[name], layout=layout)
    button.on_click(lambda _: act())
    return button
