"""What a run is made of."""

import collections
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from agentlab.inference.base import Engine
from agentlab.rollout.conversations import ConversationFeed
from agentlab.rollout.evaluation import Evaluation
from agentlab.rollout.ledger import RunRecord, Schedule
from agentlab.rollout.meter import MeterThread
from agentlab.rollout.orchestrator import RolloutOrchestrator
from agentlab.rollout.sinks import Sink
from agentlab.types import Policy


@dataclass(frozen=True)
class Parts:
    """What a run is made of, built on the loop thread by the learner's front door."""

    engine: Engine
    orchestrator: RolloutOrchestrator | ConversationFeed
    learner: Any
    """Has `serve()` and `update(groups)`."""
    on_policy: Callable[[Policy], None]
    """Told of each new policy."""
    evaluate: Callable[[], Awaitable[Evaluation]] | None = None
    """Plays the held-out tasks with the weights the engine holds; None for no evaluation."""
    eval_every: int = 0
    """Updates between two evaluations; there is one before the first update and one after the last."""
    rewarded: bool = True
    """False where groups are demonstrations: then nothing is said of rewards and episodes."""
    record: RunRecord | None = None
    """What the run that is resumed had done."""
    schedule: Schedule | None = None
    """When to write checkpoints; None writes none."""
    sinks: tuple[Sink, ...] = ()
    """Where rows are written while the run goes on."""
    notes: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=8))
    """Of the learner and of the checkpoints, for the snapshot; appended to on the loop."""
    adapters: Any = None
    """Those that the run begins with, see `Policy.adapters`."""
    meter: MeterThread | None = None
    """Reads what the accelerator's runtime says of itself; None where it says nothing."""
