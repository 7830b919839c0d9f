"""Pictures and words about a run: timelines, curves, episodes, a live dashboard, a verdict.

Names are loaded when they are used, so that `diagnose` needs no plotting library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentlab.viz.browser import TrajectoryBrowser, trajectories
    from agentlab.viz.capture import xprof
    from agentlab.viz.episode import show_trajectory
    from agentlab.viz.learning import compare, curves
    from agentlab.viz.live import Dashboard, dashboard, watch
    from agentlab.viz.previews import Preview, preview
    from agentlab.viz.report import report
    from agentlab.viz.timing import timeline, timelines
    from agentlab.viz.verdict import Verdict, diagnose
    from agentlab.viz.waits import episodes

__all__ = [
    "Dashboard",
    "Preview",
    "TrajectoryBrowser",
    "Verdict",
    "compare",
    "curves",
    "dashboard",
    "diagnose",
    "preview",
    "episodes",
    "report",
    "show_trajectory",
    "timeline",
    "timelines",
    "trajectories",
    "watch",
    "xprof",
]

_HOMES = {
    "Dashboard": "live",
    "Verdict": "verdict",
    "compare": "learning",
    "curves": "learning",
    "dashboard": "live",
    "Preview": "previews",
    "diagnose": "verdict",
    "preview": "previews",
    "episodes": "waits",
    "report": "report",
    "show_trajectory": "episode",
    "timeline": "timing",
    "timelines": "timing",
    "TrajectoryBrowser": "browser",
    "trajectories": "browser",
    "watch": "live",
    "xprof": "capture",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
