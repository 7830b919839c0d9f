"""Keeps a live dashboard and its static picture in a cell of classic Notebook, which loses both after "Run All".

When the kernel is first idle, ipywidgets 7 has loaded in the browser and renders anew every output that
holds a widget. One that was shown before stays empty then, as its model's id was taken away with its
first view; and display ids are forgotten, so that no update finds the output any more. So the
dashboard is put into its cell once more when the kernel has been idle, and its picture in the end.
Source: widgetsnbextension 3.6, manager.js and extension.js; nbclassic, notebook.js (`render_cell_output`).
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import ipywidgets
from IPython import get_ipython

from agentlab.platform.detect import platform_kind

IDLE_S = 2.0
"""Until the widgets of an idle kernel are surely rendered anew."""


class Cell:
    """The cell of classic Notebook that is executed now, whose output can be replaced at any time, from any thread.

    Front ends that hear nothing more of a cell that has ended, as JupyterLab, ignore it.
    """

    def __init__(self, shell: Any):
        self._publisher, self._parent = shell.display_pub, shell.display_pub.parent_header
        self._busy, self._idle_since_s = True, 0.0
        self._events = shell.events
        self._events.register("pre_run_cell", self._begin)
        self._events.register("post_run_cell", self._end)

    @property
    def rests(self) -> bool:
        """Whether no cell has been executed for a while."""
        return not self._busy and time.monotonic() > self._idle_since_s + IDLE_S

    def replace(self, bundle: Mapping[str, Any], display_id: str) -> None:
        """Put this in place of all that the cell has put out."""
        shown = {"data": dict(bundle), "metadata": {}, "transient": {"display_id": display_id}}
        for kind, content in {"clear_output": {"wait": False}, "display_data": shown}.items():
            to = self._publisher
            to.session.send(to.pub_socket, kind, content, parent=self._parent, ident=to.topic)

    def leave(self) -> None:
        """Hear no more of cells; for the main thread or when nothing is executed."""
        self._events.unregister("pre_run_cell", self._begin)
        self._events.unregister("post_run_cell", self._end)

    def _begin(self, *_: Any) -> None:
        self._busy = True

    def _end(self, *_: Any) -> None:
        self._busy, self._idle_since_s = False, time.monotonic()


def cell_of_now() -> Cell | None:
    """The cell; None where display ids hold: with ipywidgets 8, on Colab, and outside of a notebook."""
    if int(ipywidgets.__version__.partition(".")[0]) >= 8 or platform_kind(os.environ) == "colab":
        return None
    shell: Any = get_ipython()
    return Cell(shell) if getattr(getattr(shell, "display_pub", None), "parent_header", None) else None
