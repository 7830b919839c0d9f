"""Where the rows of a run are written while it goes on: files, TensorBoard, Weights & Biases.

Each sink has a thread of its own, so that a slow disk or a dead network can neither stall nor end a run.
"""

import abc
import asyncio
import importlib
import importlib.util
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, final

import anyio

from agentlab.concurrency import Closed, Inbox, post, run_thread
from agentlab.errors import ConfigError
from agentlab.files import shown, target_of, write_atomically
from agentlab.rollout.tfevents import file_header, scalars_record
from agentlab.types import RunSnapshot

Row = Mapping[str, Any]
GRACE_S = 5.0
"""Seconds that the end of a run waits for a sink to write what it has."""


class Sink(abc.ABC):
    """Writes rows somewhere. Made on the main thread; used by a thread of its own from `open` on."""

    @abc.abstractmethod
    def open(self, name: str, before: Sequence[Row]) -> None:
        """The run begins.

        Args:
            name: Of the run.
            before: Rows that were written by the run that is resumed; newer ones were lost with it.
        """

    @abc.abstractmethod
    def write(self, row: Row) -> None:
        """One row, to be where it belongs when this returns: the process may be killed next."""

    @abc.abstractmethod
    def close(self) -> None:
        """The run has ended, in whatever way."""


@final
class JsonLines(Sink):
    """One JSON object per update and line; NaN becomes null.

    Args:
        path: The file. What it held is replaced when a run begins, and gone on with when it is resumed.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = target_of(path)
        self._file: BinaryIO | None = None

    def open(self, name: str, before: Sequence[Row]) -> None:
        """Begin the file anew with the rows that still count."""
        write_atomically(self.path, "".join(map(as_line, before)))
        self._file = self.path.open("ab", buffering=0)

    def write(self, row: Row) -> None:
        assert self._file is not None
        self._file.write(as_line(row).encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@final
class TensorBoard(Sink):
    """Event files that TensorBoard reads; written here, so that neither it nor TensorFlow is needed.

    Args:
        folder: Of the event files, as in `tensorboard --logdir folder`.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = target_of(folder)
        self._file: BinaryIO | None = None

    def open(self, name: str, before: Sequence[Row]) -> None:
        """Begin a file; TensorBoard drops what older ones hold of the steps that are done again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{uuid.uuid4().hex[:12]}"
        self._file = path.open("ab", buffering=0)
        self._file.write(file_header(time.time(), first_step=len(before) + 1))

    def write(self, row: Row) -> None:
        assert self._file is not None
        values = {name: float(value) for name, value in row.items() if name != "step" and _is_number(value)}
        self._file.write(scalars_record(time.time(), int(row["step"]), values))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@final
class WandB(Sink):
    """A run of Weights & Biases.

    Args:
        project: Its project.
        **options: More for `wandb.init`, e.g. `mode="offline"`; with `id=…` and `resume="allow"` a resumed
            run goes on in the same place.

    Raises:
        ConfigError: wandb is not installed.
    """

    def __init__(self, project: str, **options: Any):
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError("WandB needs the package wandb. Install it: pip install wandb.")
        self.project, self.options = project, options
        self._run: Any = None

    def open(self, name: str, before: Sequence[Row]) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(**{"project": self.project, "name": name, **self.options})

    def write(self, row: Row) -> None:
        self._run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


class SinkThread:
    """One sink on the thread "agentlab-sink"; its methods are called on the loop.

    Args:
        sink: Where rows go.
        name: Of the run.
        before: See `Sink.open`.
        on_note: Told on the loop, in a sentence, when the sink fails; then it gets no more rows.
    """

    def __init__(self, sink: Sink, name: str, before: Sequence[Row], on_note: Callable[[str], None]):
        self._sink, self._name, self._before, self._on_note = sink, name, tuple(before), on_note
        self._inbox: Inbox[Row] = Inbox()

    def put(self, row: Row) -> None:
        """Have a row written; returns at once."""
        self._inbox.put(row)

    async def serve(self) -> None:
        """Run the thread until this call is cancelled; then what waits is written, for up to GRACE_S."""
        loop = asyncio.get_running_loop()
        await run_thread(lambda: self._main(loop), self._inbox, name="agentlab-sink", grace_s=GRACE_S, kind="worker")
        await anyio.sleep_forever()  # a sink that failed must not end the run

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        kind = type(self._sink).__name__
        try:
            try:
                self._sink.open(self._name, self._before)
                while True:
                    self._sink.write(self._inbox.get())
            except Closed:
                pass
            finally:
                self._sink.close()
        except (Exception, SystemExit) as error:  # a full disk or a dead network must not end a run
            text = f"{kind} failed and gets no more rows: {type(error).__name__}: {shown(error, str)}"
            post(loop, self._on_note, text)


def check_sinks(sinks: Any) -> tuple[Sink, ...]:
    """The sinks, if they are some.

    Raises:
        ConfigError: they are not.
    """
    if isinstance(sinks, Sink):
        return (sinks,)
    if not isinstance(sinks, list | tuple) or not all(isinstance(sink, Sink) for sink in sinks):
        raise ConfigError(f"sinks must be a list of sinks, e.g. [al.sinks.TensorBoard(folder)], got {sinks!r:.80}.")
    return tuple(sinks)


def as_line(row: Row) -> str:
    """A row as a line of JSON."""
    plain = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}
    return json.dumps(plain) + "\n"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def tell(listeners: Sequence[Callable[[RunSnapshot], None]], snapshot: RunSnapshot, warnings: Any) -> None:
    """Call every listener; one that raises ends neither the run nor the others, and is warned of."""
    for listener in tuple(listeners):
        try:
            listener(snapshot)
        except (Exception, SystemExit) as error:  # a display must not end a run
            warnings.append(f"A listener failed: {type(error).__name__}: {shown(error, str)}")
