"""The dashboard's widgets: core ones only, so that they show wherever ipywidgets 7.7 or newer does."""

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets

SIZES = {"lanes": (400, 600), "curve": (290, 400)}
"""(wanted, greatest) width of each picture in CSS pixels; they stand side by side where there is room."""

_ICONS = {"Pause": "pause", "Resume": "play", "Stop": "stop"}


class Face:
    """Text, pictures and buttons; made on the main thread, assigned to by the thread that refreshes.

    Args:
        acts: What each button does, on the main thread; {} shows no buttons.
    """

    def __init__(self, acts: Mapping[str, Callable[[], Any]]):
        self.labels = {
            name: ipywidgets.HTML(layout=ipywidgets.Layout(width="auto", margin="0")) for name in ("head", "foot")
        }
        self.images = {name: _image(*size) for name, size in SIZES.items()}
        rows = [self.labels["head"], _flow(self.images.values()), self.labels["foot"]]
        self.buttons = {name: _button(name, act) for name, act in acts.items()}
        if self.buttons:
            rows.append(_flow(self.buttons.values()))
        self.root = ipywidgets.VBox(rows, layout=ipywidgets.Layout(width="auto", max_width="1080px"))

    def assign(self, html: Mapping[str, str], pngs: Mapping[str, bytes]) -> None:
        """Show these texts and pictures."""
        for name, label in self.labels.items():
            label.value = html[name]
        for name, image in self.images.items():
            image.value = pngs[name]

    def close(self) -> None:
        """Remove all widgets from the notebook's state."""
        parts = (*self.labels.values(), *self.images.values(), *self.buttons.values(), *self.root.children)
        for part in (*parts, self.root):
            part.close()


def _flow(children: Any) -> ipywidgets.Box:
    layout = ipywidgets.Layout(display="flex", flex_flow="row wrap", align_items="flex-start", width="auto")
    return ipywidgets.Box(tuple(children), layout=layout)


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
