"""The live dashboard: assigned to core widgets while a run goes on, a static picture when it has ended."""

import base64
import contextvars
import math
import os
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from IPython import get_ipython
from IPython.display import publish_display_data

from agentlab.files import escaped
from agentlab.platform.detect import platform_kind
from agentlab.tracing import Reading, Span, follow_counters, follow_table, open_spans
from agentlab.tracing.table import SpanTable
from agentlab.types import RunSnapshot, checked_option
from agentlab.viz import facts
from agentlab.viz.browser import BrowsedRun, TrajectoryBrowser
from agentlab.viz.canvas import png
from agentlab.viz.chips import CHIP_COUNTERS, Chips
from agentlab.viz.classic import Cell, cell_of_now
from agentlab.viz.face import SIZES, Face
from agentlab.viz.minute import WINDOW_S, Minute, View
from agentlab.viz.pictures import CurvePicture, LanesPicture
from agentlab.viz.served import ServedFace
from agentlab.viz.served_page import trajectories_html
from agentlab.viz.verdict import sentence

_BEAT_S = 0.1
_PACE_S = 10.0
_CURVE_S = 3.0
"""The curve is drawn again no sooner than after this: with the lanes it costs twice as much."""
Transport = Literal["background", "watch", "iframe"]


class ObservedRun(Protocol):
    """What a dashboard needs of a run."""

    def snapshot(self) -> RunSnapshot: ...
    def add_listener(self, listener: Callable[[RunSnapshot], None], /) -> None: ...
    def pause(self) -> Any: ...
    def resume(self) -> Any: ...
    def stop(self) -> Any: ...


class Dashboard:
    """A run's picture, numbers and verdict.

    Made and shown on the main thread; refreshed by one thread, the one that calls `tick`. Background
    code only assigns traits, and publishes once, when the run has ended.

    Args:
        run: The run.
        transport: How it reaches the person, see `dashboard`.
    """

    def __init__(self, run: ObservedRun, *, transport: Transport = "background"):
        self._run, self.transport = run, transport
        snapshot = run.snapshot()
        self._new_spans = follow_table(max(snapshot.start_ns, snapshot.now_ns - round(WINDOW_S * 1e9)))
        self._new_readings = follow_counters(max(snapshot.start_ns, snapshot.now_ns - round(WINDOW_S * 1e9)))
        self._readings: deque[Reading] = deque()
        """Of the chips, of the last minute."""
        self._tokens: deque[tuple[int, int]] = deque()
        self._lanes, self._curve = LanesPicture(), CurvePicture()
        self._minute = Minute(self._lanes.columns, snapshot.start_ns)
        self._saved_ns = 0
        """When the newest checkpoint was written; 0 for none."""
        self._curve_of: tuple[int, int] | None = None
        self._curve_ns = snapshot.now_ns - round(_CURVE_S * 1e9)
        self._pngs: dict[str, bytes] = {"lanes": b"", "curve": b""}
        self._images: dict[str, np.ndarray] = {}
        self._html = {"head": "", "foot": ""}
        self._text = escaped(f"{snapshot.name}: {snapshot.status}")
        self._trouble: tuple[str, ...] = ()
        self._display_id = f"agentlab-{uuid.uuid4().hex}"
        self._context: contextvars.Context | None = None
        self._cell: Cell | None = None
        """Where it is shown, if an update could miss it."""
        self._settled = False
        """Whether it was put into that cell once more."""
        self._face: Face | ServedFace | None = None
        self.frozen = False
        """Whether it is a static picture now."""
        self.tick(snapshot)

    # -- what the run's thread calls ---------------------------------------------------------------

    def tick(self, snapshot: RunSnapshot) -> None:
        """Take in what was traced since the last call and redraw; freezes when the run has ended."""
        if self.frozen:
            return
        try:
            under_way = SpanTable.of(open_spans())
            new = self._new_spans()
            self._saved_ns = int(new.only("checkpoint").end_ns.max(initial=self._saved_ns))
            self._keep_readings(snapshot.now_ns)
            self._redraw(snapshot, self._minute.take(new, under_way, snapshot.now_ns))
        except Exception as error:  # a display that cannot be drawn must not end the run
            self._trouble = (f"The dashboard could not be redrawn: {type(error).__name__}: {error}",)
        if snapshot.status in facts.ENDED:
            self.freeze()

    def refresh(self, snapshot: RunSnapshot, spans: Iterable[Span] | SpanTable) -> None:
        """Draw the last minute of these spans and assign the result to the widgets, if there are any."""
        minute = Minute(self._lanes.columns, snapshot.start_ns)
        self._curve_ns = snapshot.now_ns - round(_CURVE_S * 1e9)
        self._redraw(snapshot, minute.take(SpanTable.of(spans), SpanTable.of(()), snapshot.now_ns))

    def _redraw(self, snapshot: RunSnapshot, view: View) -> None:
        found, pace = view.found, self._tokens_per_s(snapshot)
        chips = Chips.of(self._readings)
        verdict = f"{sentence(found)} {chips.sentence}".rstrip()
        self._set_picture("lanes", self._lanes.draw(view.flight, found, chips.duty))
        counted = len(snapshot.metrics), len(snapshot.evaluations)
        since_s = (snapshot.now_ns - self._curve_ns) / 1e9
        if self._curve_of != counted and (since_s >= _CURVE_S or snapshot.status in facts.ENDED):
            self._curve_of, self._curve_ns = counted, snapshot.now_ns
            self._set_picture("curve", self._curve.render(snapshot.metrics, snapshot.evaluations, snapshot.steps))
        age_s = (snapshot.now_ns - self._saved_ns) / 1e9 if self._saved_ns else math.nan
        self._html["head"] = facts.head_html(snapshot, pace, age_s, chips.numbers)
        self._html["foot"] = facts.foot_html(snapshot, found, verdict, self._trouble)
        self._text = facts.as_text(snapshot, pace, verdict, self._trouble, age_s)
        if self._face is not None:
            self._in_newest_cell(partial(self._assign, self._face, snapshot))

    def _keep_readings(self, now_ns: int) -> None:
        self._readings += (reading for reading in self._new_readings() if reading.name in CHIP_COUNTERS)
        while self._readings and self._readings[0].time_ns < now_ns - WINDOW_S * 1e9:
            self._readings.popleft()

    def freeze(self) -> None:
        """Replace the widgets, wherever they are shown, by a picture and text that need no kernel."""
        if self.frozen:
            return
        self.frozen = True
        if self._context is not None:
            self._in_newest_cell(self._replace)

    # -- what the main thread calls ----------------------------------------------------------------

    def show(self) -> None:
        """Show it in the current cell: live in a notebook, as text otherwise.

        With the transport "watch" it refreshes itself here until the run ends.
        """
        if self.transport == "watch" and not self.frozen:
            self.watch()
        else:
            self._publish()

    def watch(self, refresh_s: float = 1.0) -> None:
        """Show it and refresh it from this cell until the run ends; an interrupt ends the watching only."""
        self._publish()
        try:
            while not self.frozen:
                _sleep(refresh_s)
                self.tick(self._run.snapshot())
        except KeyboardInterrupt:
            self.freeze()
        if not self.live:
            self._publish()

    def _publish(self) -> None:
        if self.frozen or getattr(get_ipython(), "kernel", None) is None:
            publish_display_data(self.bundle())
            return
        view = self.face.view()
        self._context = contextvars.copy_context()
        self._cell = cell_of_now() if self.transport == "background" else None
        self._settled = False
        publish_display_data({**view, "text/plain": self._text}, transient={"display_id": self._display_id})
        if self.frozen:  # the run ended meanwhile
            self._in_newest_cell(self._replace)

    def bundle(self) -> dict[str, Any]:
        """The static form: text, HTML with the pictures inside, and one PNG of both pictures."""
        data: dict[str, Any] = {"text/plain": self._text}
        if self._images:
            data["text/html"] = self._static_html()
            data["image/png"] = base64.b64encode(png(_side_by_side(list(self._images.values())))).decode()
        return data

    @property
    def live(self) -> bool:
        """Whether it has widgets."""
        return self._face is not None

    @property
    def face(self) -> Face | ServedFace:
        """The live form; made on the main thread when first asked for."""
        if self._face is None:
            self._face = self._made_face()
            self._face.assign(self._html, self._pngs)
        return self._face

    def _made_face(self) -> Face | ServedFace:
        run = self._run
        acts = {"Pause": run.pause, "Resume": run.resume, "Stop": run.stop}
        browsed = run if isinstance(run, BrowsedRun) else None
        if self.transport == "iframe":
            return ServedFace(acts, {"trajectories": partial(trajectories_html, browsed)} if browsed else {})
        if self.transport == "watch":  # the cell is busy, so that no button would act
            return Face({})
        return Face(acts, partial(TrajectoryBrowser, browsed) if browsed else None)

    def _ipython_display_(self) -> None:
        self.show()

    def __repr__(self) -> str:
        return self._text

    # -- inside ------------------------------------------------------------------------------------

    def _in_newest_cell(self, publish: Callable[[], None]) -> None:
        """Publish as output of the newest cell: a runner without a browser hears of no other."""
        try:
            contextvars.Context().run(publish)
        except LookupError:  # ipykernel 7.0 publishes in the context of a cell only
            (self._context or contextvars.copy_context()).copy().run(publish)

    def _assign(self, face: Face | ServedFace, snapshot: RunSnapshot) -> None:
        face.assign(self._html, self._pngs)
        face.tell(snapshot)
        if self._cell is not None and not self._settled and self._cell.rests:
            self._settled = True
            self._cell.replace({**face.view(), "text/plain": self._text}, self._display_id)

    def _tokens_per_s(self, snapshot: RunSnapshot) -> float:
        self._tokens.append((snapshot.now_ns, snapshot.engine.tokens_sampled))
        while len(self._tokens) > 2 and self._tokens[0][0] < snapshot.now_ns - _PACE_S * 1e9:
            self._tokens.popleft()
        (old_ns, old), (new_ns, new) = self._tokens[0], self._tokens[-1]
        return max(0.0, (new - old) / (new_ns - old_ns) * 1e9) if new_ns > old_ns else 0.0

    def _set_picture(self, name: str, image: np.ndarray) -> None:
        self._images[name] = image
        self._pngs[name] = png(image)

    def _replace(self) -> None:
        publish_display_data(self.bundle(), transient={"display_id": self._display_id}, update=True)
        self.face.close()
        if self._cell is not None:
            self._cell.replace(self.bundle(), self._display_id)
            self._cell.leave()

    def _static_html(self) -> str:
        pictures = "".join(
            f'<img alt="{name}" style="flex:1 1 {size}px;min-width:0;max-width:{most}px;height:auto" '
            f'src="data:image/png;base64,{base64.b64encode(self._pngs[name]).decode()}">'
            for name, (size, most) in SIZES.items()
            if self._pngs[name]
        )
        flow = f'<div style="display:flex;flex-flow:row wrap;align-items:flex-start">{pictures}</div>'
        return f'<div style="max-width:1080px">{self._html["head"]}{flow}{self._html["foot"]}</div>'


_dashboards: "weakref.WeakValueDictionary[tuple[int, str], Dashboard]" = weakref.WeakValueDictionary()
"""By the id of their run, which each keeps alive, and transport."""


def dashboard(run: ObservedRun, transport: Transport | None = None) -> Dashboard:
    """The dashboard of a run: the same one each time, refreshed until the run ends.

    Args:
        run: The run.
        transport: "background": widgets that the run's thread refreshes, while cells run and when none does.
            "watch": displaying it refreshes it from the executing cell until the run ends; interrupting
            the cell ends the watching, not the run. "iframe": a page of a server on 127.0.0.1, whose buttons
            act while a cell is busy, too; the browser must reach the kernel's machine. None takes "watch" on
            Colab, where updates after the end of a cell are lost, and "background" elsewhere.

    Raises:
        ConfigError: the transport is unknown.
    """
    chosen = _default_transport() if transport is None else checked_option("transport", transport, Transport)
    made = _dashboards.get((id(run), chosen))
    if made is None:
        made = _dashboards[id(run), chosen] = Dashboard(run, transport=chosen)
        if chosen != "watch":
            run.add_listener(made.tick)
    return made


def watch(run: ObservedRun, refresh_s: float = 1.0) -> None:
    """Show a dashboard that this cell refreshes, until the run ends.

    Interrupting the cell ends the watching, not the run. Where there are no widgets, the state is
    told at the beginning and at the end.
    """
    Dashboard(run, transport="watch").watch(refresh_s)


def _default_transport() -> Transport:
    return "watch" if platform_kind(os.environ) == "colab" else "background"


def _sleep(seconds: float) -> None:
    """Sleep in beats, so that an interrupt acts at once."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _BEAT_S))


def _side_by_side(images: list[np.ndarray]) -> np.ndarray:
    height = max(image.shape[0] for image in images)
    padded = [np.pad(im, ((0, height - im.shape[0]), (0, 0), (0, 0)), constant_values=255) for im in images]
    return np.concatenate(padded, axis=1)
