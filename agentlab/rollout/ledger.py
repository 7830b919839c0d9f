"""Which tasks of a stream have begun and which have ended, so that a resumed run repeats none and skips none."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agentlab.errors import ConfigError
from agentlab.options import id_of_json
from agentlab.types import Counts, Task, TaskId


@dataclass(frozen=True)
class Progress:
    """How far a run has come through its stream of tasks."""

    task_ids: tuple[TaskId, ...] = ()
    """Of every task that was begun, in the order of the stream: the cursor is their number."""
    open: tuple[int, ...] = ()
    """Places in the stream of those that have not ended: in flight, or waiting for the learner."""
    counts: Counts = field(default_factory=Counts)
    steps: int = 0
    """Updates done."""


@dataclass(frozen=True)
class RunRecord:
    """What a run has done so far, as a checkpoint keeps it beside the weights."""

    version: int
    """Of the weights that belong to it."""
    progress: Progress = Progress()
    metrics: tuple[Mapping[str, Any], ...] = ()
    evaluations: tuple[Mapping[str, Any], ...] = ()
    time_s: float = 0.0
    """Seconds that the run has taken."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, NaN included; NumPy's numbers become Python's."""
        rows = {name: [_plain_row(row) for row in getattr(self, name)] for name in ("metrics", "evaluations")}
        return {
            "version": self.version,
            "progress": asdict(self.progress),
            **rows,
            "time_s": self.time_s,
            "extra": dict(self.extra),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RunRecord":
        """The record that `as_json` wrote."""
        told = data["progress"]
        ids = tuple(map(id_of_json, told["task_ids"]))
        progress = Progress(ids, tuple(told["open"]), Counts(**told["counts"]), told["steps"])
        rows = {name: tuple(data[name]) for name in ("metrics", "evaluations")}
        return cls(data["version"], progress, **rows, time_s=data["time_s"], extra=data["extra"])


class Schedule:
    """When a checkpoint is due; owned by the loop.

    Args:
        every: Updates from one checkpoint to the next.
        every_s: Seconds after which one is written even if fewer updates were done.
        step: Updates done when the run begins.
        now_s: The time then.
    """

    def __init__(self, every: int, every_s: float, *, step: int, now_s: float):
        self.every, self.every_s = every, every_s
        self._step, self._s = step, now_s

    def due(self, step: int, now_s: float) -> bool:
        """Whether to write one after `step` updates; then the next one is counted from here."""
        if step - self._step < self.every and now_s - self._s < self.every_s:
            return False
        self._step, self._s = step, now_s
        return True


class Ledger:
    """Counts the tasks of one stream by their places in it; owned by the loop.

    Args:
        progress: How far a run that is resumed had come: its ended tasks are passed over, its open
            ones are begun again.
    """

    def __init__(self, progress: Progress | None = None):
        self.before = progress or Progress()
        self._ids = list(self.before.task_ids)
        self._open = set(self.before.open)
        self._again = frozenset(self.before.open)

    def is_wanted(self, index: int, task_id: TaskId) -> bool:
        """Whether the task at this place of the stream has yet to be begun, now or again. Changes nothing.

        Raises:
            ConfigError: the run that is resumed had another task there.
        """
        if index >= len(self.before.task_ids):
            return True
        if task_id != self.before.task_ids[index]:
            raise ConfigError(
                f"A resumed run must be given the same tasks in the same order, but task {index} was "
                f"{self.before.task_ids[index]!r} and is {task_id!r} now. Give the tasks that it was begun with, or "
                "start a new run with resume=False and another checkpoint_dir."
            )
        return index in self._again

    def begin(self, index: int, task_id: TaskId) -> None:
        """The task is being played."""
        if index >= len(self._ids):
            self._ids.append(task_id)
        self._open.add(index)

    def ended(self, group_id: str) -> None:
        """Its group was trained, dropped, filtered or failed: it will not be played again."""
        self._open.discard(place_of(group_id))

    def check_ended(self, seen: int) -> None:
        """The stream has ended after `seen` tasks; it must not have ended before the place that was reached.

        Raises:
            ConfigError: it has.
        """
        if seen < len(self.before.task_ids):
            raise ConfigError(
                f"A resumed run must be given the same tasks, but it had begun {len(self.before.task_ids)} of them "
                f"and there are only {seen} now. Give the tasks that it was begun with."
            )

    def progress(self, counts: Counts, steps: int) -> Progress:
        """How far the run has come; groups that are still in flight are open, and not counted."""
        ended = Counts(
            admitted=counts.trained + counts.stale + counts.filtered + counts.failed,
            trained=counts.trained,
            stale=counts.stale,
            filtered=counts.filtered,
            failed=counts.failed,
        )
        return Progress(tuple(self._ids), tuple(sorted(self._open)), ended, steps)


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}


def group_name(index: int, task: Task) -> str:
    """The id of the group that plays a task at this place of the stream."""
    return f"{index}:{task.id}"


def place_of(group_id: str) -> int:
    """The place in the stream of the task that a group plays."""
    return int(group_id.partition(":")[0])
