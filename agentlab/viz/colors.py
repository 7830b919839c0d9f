"""One palette for timeline, dashboard and episodes; its hues stay apart for colour-blind readers.

Source: Okabe and Ito 2008, "Color Universal Design", with lighter and darker shades of its hues.
"""

from agentlab.tracing import Stage
from agentlab.tracing.accounting import Cause

BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE, YELLOW, INK, GREY = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#E3CE1B",
    "#222222",
    "#9A9A9A",
)
PAPER = "#FFFFFF"
FAINT = "#E8E8E8"

STAGE_COLORS: dict[Stage, str] = {
    "decode": SKY,
    "prefill": BLUE,
    "forward_backward": VERMILION,
    "optimizer": ORANGE,
    "weight_sync": PURPLE,
    "model_call": "#3A6EA5",
    "queueing": "#A9C4DE",
    "tool": GREEN,
    "step": "#66B59A",
    "reset": "#9CCFBD",
    "close": "#C5E3D9",
    "reward": YELLOW,
    "agent": "#B8A20E",
    "queue": "#8C6BB1",
    "train": "#A34700",
    "advantage": "#C47A45",
    "pack": "#DDA77B",
    "rollout": "#7A7A7A",
    "evaluation": "#5B5B5B",
    "checkpoint": "#8A5A83",
    "data": "#B0B0B0",
    "load": "#C8C8C8",
    "compile": INK,
}

CAUSE_COLORS: dict[Cause, str] = {
    "compile": STAGE_COLORS["compile"],
    "load": STAGE_COLORS["load"],
    "checkpoint": STAGE_COLORS["checkpoint"],
    "engine": STAGE_COLORS["model_call"],
    "learner": STAGE_COLORS["train"],
    "tool": STAGE_COLORS["tool"],
    "environment": STAGE_COLORS["step"],
    "reset": STAGE_COLORS["reset"],
    "reward": STAGE_COLORS["reward"],
    "agent": STAGE_COLORS["agent"],
    "queue": STAGE_COLORS["queue"],
    "data": STAGE_COLORS["data"],
    "nothing": "#DDDDDD",
}

EPISODE_COLORS: dict[str, str] = {
    "slot": STAGE_COLORS["queueing"],
    "prefill": STAGE_COLORS["prefill"],
    "decode": STAGE_COLORS["decode"],
    "engine": STAGE_COLORS["model_call"],
    "tool": STAGE_COLORS["tool"],
    "environment": STAGE_COLORS["step"],
    "reward": STAGE_COLORS["reward"],
    "agent": STAGE_COLORS["agent"],
    "other": "#DDDDDD",
}
"""What an episode's time goes into; slot is the wait for one."""

RUN_COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK, GREY)
"""Of runs that are compared, in their order."""
