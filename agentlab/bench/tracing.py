"""What tracing costs: a span, a training run, ten million spans in memory, a timeline, a redraw, an export.

A span: processor time of a `with span(...)` with one tag on one thread, the median over repeats.

A training run: a tiny model learns with the built-in engine and trainer, and tracing is switched on and
off between its updates, in pairs that begin either way, so that what else the machine does falls on both.
The ratio is that of the medians of the processor time of an update, which is what tracing takes away from a
machine that is busy; its standard error is told, so is that of the wall clock, and what the spans of an
update cost by the first figure. Without tracing the clock is still read where the engine needs it.

Memory: in a process of its own, growth of the resident memory while spans are recorded by one thread,
those that do not fit spilled to disk; and while a million spans are exported as they are generated.

A redraw: processor time of one tick of the dashboard, a second apart, with so many spans recorded in
each minute; the median of ticks, of those that draw the reward curve anew too, and what they assign to
the widgets. A timeline: processor time of its figure, made and drawn.
"""

import argparse
import contextlib
import functools
import itertools
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

from agentlab import tracing
from agentlab.bench.contract import Row
from agentlab.rollout.sinks import Sink
from agentlab.tracing import Reading, Span, record, separate, span
from agentlab.types import RunSnapshot

SECOND = 1_000_000_000
STATUS = Path("/proc/self/status")
STAGES = ("decode", "model_call", "step", "tool", "reward", "agent", "rollout", "queueing", "queue")
LENGTHS_S = {"tool": 0.3, "step": 0.32, "rollout": 2.0, "model_call": 0.5}


def run(arguments: Sequence[str]) -> list[Row]:
    """All rows; `--spans` and `--pairs` make it shorter or longer."""
    words = argparse.ArgumentParser(prog="python -m agentlab.bench tracing")
    words.add_argument("--spans", type=int, default=10_000_000, help="spans of the memory part")
    words.add_argument("--exported", type=int, default=1_000_000, help="spans of the export")
    words.add_argument("--pairs", type=int, default=600, help="pairs of updates of the training run")
    options = words.parse_args(arguments)
    return [
        Row.at_most("a span", 1e6 * span_s(), 2.0, "µs"),
        *redraw_rows(),
        Row.at_most("timeline of 100,000 spans", timeline_s(100_000), 0.5, "s"),
        *memory_rows(options.spans, options.exported),
        *training_rows(options.pairs),
    ]


def span_s(count: int = 20_000, repeats: int = 15) -> float:
    """Seconds of one span."""

    def one() -> None:
        with span("decode", turn=1):
            pass

    with separate():
        return statistics.median(timeit.repeat(one, timer=time.thread_time, number=count, repeat=repeats)) / count


# -- the dashboard -----------------------------------------------------------------------------------


class Replayed:
    """A run that does nothing but tell its clock and its rewards."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.rewards: list[dict[str, float]] = []

    def snapshot(self) -> RunSnapshot:
        step = len(self.rewards)
        fields: dict[str, Any] = {"name": "bench", "status": "running", "step": step, "steps": 1000, "start_ns": 0}
        return RunSnapshot(**fields, now_ns=self.now_ns, metrics=tuple(self.rewards))

    def add_listener(self, listener: Callable[[RunSnapshot], None], /) -> None:
        """Nobody is told: the bench ticks itself."""

    def pause(self) -> None:
        """Nothing to pause."""

    resume = stop = pause


def redraw_rows(counts: Sequence[int] = (1_000, 10_000, 100_000), ticks: int = 100) -> list[Row]:
    """Rows of the dashboard."""
    rows = []
    for count in counts:
        plain, with_curve, size_bytes = redraw(count, ticks)
        rows.append(Row.at_most(f"redraw, {count:,} spans a minute", 1e3 * plain, 20.0, "ms"))
        rows.append(Row.at_most(f"redraw with curve, {count:,} spans a minute", 1e3 * with_curve, 20.0, "ms"))
        rows.append(Row.at_most(f"core taken, {count:,} spans a minute", 100 * max(plain, with_curve), 3.0, "%"))
        rows.append(Row.at_most(f"assigned, {count:,} spans a minute", size_bytes / 1e3, 100.0, "kB/s"))
    return rows


def redraw(per_minute: int, ticks: int) -> tuple[float, float, float]:
    """(seconds of a tick, of one that draws the curve, bytes assigned per second), after the first minute."""
    from agentlab.viz.face import Face
    from agentlab.viz.live import Dashboard

    observed, draw = Replayed(), random.Random(0)
    plain, with_curve, sizes = [], [], []
    with separate(clock=lambda: observed.now_ns):
        view = Dashboard(observed)
        face = view.face
        assert isinstance(face, Face), "the default transport assigns to widgets"
        images = face.images
        before = dict.fromkeys(images, b"")
        for tick in range(ticks):
            _trace_a_second(observed.now_ns, per_minute // 60)
            observed.now_ns += SECOND
            observed.rewards.append({"step": tick, "reward_mean": draw.random(), "time_s": float(tick)})
            snapshot = observed.snapshot()
            began_s = time.thread_time()
            view.tick(snapshot)
            took_s = time.thread_time() - began_s
            changed = [name for name, image in images.items() if image.value != before[name]]
            before = {name: image.value for name, image in images.items()}
            if tick >= 60:
                (with_curve if "curve" in changed else plain).append(took_s)
                sizes.append(sum(len(before[name]) for name in changed))
        view.face.close()
    return statistics.median(plain), statistics.median(with_curve), statistics.mean(sizes)


def _trace_a_second(now_ns: int, count: int) -> None:
    for index in range(count):
        stage: Any = STAGES[index % len(STAGES)]
        end_ns = now_ns + index * SECOND // count
        length_ns = round(LENGTHS_S.get(stage, 4 / count if stage == "decode" else 0.01) * SECOND)
        record(stage, max(0, end_ns - length_ns), end_ns, group=f"{index}", episode=index, turn=1)


def timeline_s(count: int, repeats: int = 5) -> float:
    """Seconds of a timeline, its figure drawn."""
    from agentlab.viz import timeline

    some = tuple(made_spans(count))

    def draw() -> None:
        timeline(some).figure.canvas.draw()

    draw()
    return statistics.median(timeit.repeat(draw, timer=time.thread_time, number=1, repeat=repeats))


def made_spans(count: int) -> Iterator[Span]:
    """Spans by start, up to 32 of a stage at once, as a run has them."""
    draw = random.Random(0)
    for index in range(count):
        stage = STAGES[index % len(STAGES)]
        start_ns = index * 100_000
        length_ns = round(draw.expovariate(1.0) * 3e6)
        tags = {"group": f"{index // 64}:t", "episode": index % 8, "turn": index % 4}
        yield Span(stage, start_ns, start_ns + length_ns, "agentlab-loop", tags)


# -- memory ------------------------------------------------------------------------------------------


def memory_rows(recorded: int, exported: int) -> list[Row]:
    """Rows of two processes of their own."""
    grown_mb, recorded_s, kept = _told(f"record_many({recorded})")
    export_mb, exported_s, size_mb = _told(f"export_many({exported})")
    return [
        Row.at_most(f"{recorded:,} spans: memory", grown_mb, 200.0, "MB"),
        Row.at_least(f"{recorded:,} spans: kept", kept, recorded, "spans"),
        Row(f"{recorded:,} spans: per span, spilled and all", 1e6 * recorded_s / recorded, unit="µs"),
        Row.at_most(f"Perfetto, {exported:,} spans: memory", export_mb, 100.0, "MB"),
        Row(f"Perfetto, {exported:,} spans", exported_s, unit="s"),
        Row(f"Perfetto, {exported:,} spans: file", size_mb, unit="MB"),
    ]


def _told(call: str) -> list[float]:
    code = f"from agentlab.bench import tracing as bench; print(*bench.{call})"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(word) for word in asked.stdout.split()]


def peak_mb() -> float:
    """Most memory that this process ever had, in MB."""
    if STATUS.exists():  # what the system counts for getrusage includes the process that started this one
        (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def record_many(count: int) -> tuple[float, float, int]:
    """(growth in MB, seconds, spans that are kept in memory and on disk) of recording spans."""
    tracing.spill()
    before_mb, began_s = peak_mb(), time.perf_counter()
    for index in range(count):
        with span("decode", turn=index):
            pass
    spilled = tracing.spilled()
    assert spilled is not None
    spilled.flush()
    took_s = time.perf_counter() - began_s
    return peak_mb() - before_mb, took_s, spilled.num_records + len(tracing.spans())


def export_many(count: int) -> tuple[float, float, float]:
    """(growth in MB, seconds, size of the file in MB) of an export."""
    readings = (Reading("queue_depth", index * 1_000_000, index % 7) for index in itertools.count())
    with tempfile.TemporaryDirectory() as folder:
        tracing.save_trace(Path(folder) / "warm", made_spans(2_000))
        before_mb, began_s = peak_mb(), time.perf_counter()
        counters = itertools.islice(readings, count // 10)
        path = tracing.save_trace(Path(folder) / "trace", made_spans(count), counters)
        return peak_mb() - before_mb, time.perf_counter() - began_s, path.stat().st_size / 1e6


# -- a training run ----------------------------------------------------------------------------------


def training_rows(pairs: int) -> list[Row]:
    """Rows of one run in whose updates tracing is on and off."""
    switch = Switch(2 * pairs)
    began_ns = tracing.now_ns()
    trainer(switch.num_updates)(sinks=switch).wait()
    spans = len(tracing.spans(began_ns)) / (switch.num_updates / 2)
    on, off = (statistics.median(switch.cpu_s[traced]) for traced in (True, False))
    wall_on, wall_off = (statistics.median(switch.wall_s[traced]) for traced in (True, False))
    ratios = [a / b for a, b in zip(switch.cpu_s[True], switch.cpu_s[False], strict=True)]
    error = math.sqrt(math.pi / 2) * statistics.stdev(ratios) / math.sqrt(len(ratios))  # of a median
    return [
        Row.at_most("training: throughput lost, by processor time", 100 * (1 - off / on), 1.0, "%"),
        Row("training: standard error of that", 100 * error, unit="%"),
        Row("training: throughput lost, by the wall clock", 100 * (1 - wall_off / wall_on), unit="%"),
        Row("training: spans of an update times the cost of a span", 100 * spans * span_s() / on, unit="%"),
        Row("training: an update", wall_on, unit="s"),
    ]


@final
class Switch(Sink):
    """Switches tracing on and off between updates, in pairs that begin either way, and notes what each update took.

    Owned by its sink's thread while the run lasts.
    """

    WARM = 10
    """Updates before the first that counts."""

    def __init__(self, count: int):
        self.num_updates = self.WARM + count
        self.cpu_s: dict[bool, list[float]] = {True: [], False: []}
        self.wall_s: dict[bool, list[float]] = {True: [], False: []}
        self._written, self._traced = 0, True
        self._off = contextlib.ExitStack()
        self._before = time.process_time(), time.perf_counter()

    def open(self, name: str, before: Sequence[Any]) -> None:
        """Nothing to open: the rows that come are the clock."""

    def write(self, row: Any) -> None:
        now = time.process_time(), time.perf_counter()
        if self._written >= self.WARM:
            self.cpu_s[self._traced].append(now[0] - self._before[0])
            self.wall_s[self._traced].append(now[1] - self._before[1])
        self._written += 1
        self._traced = self._written % 4 in (0, 3)
        self._off.close()
        if not self._traced:
            self._off.enter_context(tracing.disabled())
        self._before = time.process_time(), time.perf_counter()

    def close(self) -> None:
        self._off.close()


def trainer(steps: int) -> Callable[..., Any]:
    """A function that begins a run in which a tiny model trains on products."""
    import agentlab as al

    def reward(task: al.Task, answer: str) -> float:
        return float(len(answer) % 5) / 4

    learner = al.GRPOLearner(
        model=al.tiny_model(),
        agent_class=al.ModelAgent,
        env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": reward},
        config=al.GRPOConfig(group_size=4, groups_per_step=4, max_concurrency=16, max_tokens=48, tokens_per_slot=256),
    )
    tasks = [{"prompt": f"What is {n} times {n}?"} for n in range(steps * 4 + 8)]
    return functools.partial(learner.train, tasks, steps=steps)
