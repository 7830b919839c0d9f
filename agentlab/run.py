"""A run: what the notebook holds while rollouts and training go on in the background."""

import asyncio
import collections
import contextlib
import gc
import importlib
import math
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio

from agentlab import tracing
from agentlab.concurrency import BEAT_S, LoopThread, first_error, say
from agentlab.errors import RunActiveError, RunEnded, RunError
from agentlab.files import write_atomically
from agentlab.rollout.ledger import RunRecord
from agentlab.rollout.log import save_trajectories
from agentlab.rollout.measures import OF_REWARDS, batch_warnings, episode_measures
from agentlab.rollout.orchestrator import Tasks
from agentlab.rollout.parts import Parts as Parts
from agentlab.rollout.sinks import SinkThread, as_line, tell
from agentlab.tracing import now_ns
from agentlab.types import RunSnapshot, RunStatus, TrainedGroup, Trajectory, TrajectoryGroup

_LIVE = "_agentlab_live_run"
"""The attribute of `sys` that remembers the live run: it survives a re-run cell and a reloaded module."""


class Session:
    """The body of a run; owned by the loop."""

    def __init__(self, name: str, parts: Parts, tasks: Tasks, steps: int):
        self.name, self.parts, self.tasks, self.steps = name, parts, tasks, steps
        self.adapters = parts.adapters
        self.status: RunStatus = "starting"
        self._settings = asdict(parts.orchestrator.config)
        self.start_ns = now_ns()
        done = parts.record or RunRecord(version=0)
        self.metrics: list[Mapping[str, float]] = list(done.metrics)
        self.evaluations: list[Mapping[str, float]] = list(done.evaluations)
        self._before_s, self._waited_s = done.time_s, 0.0
        self._sinks = [SinkThread(sink, name, self.metrics, parts.notes.append) for sink in parts.sinks]
        self._warnings: collections.deque[str] = collections.deque(maxlen=5)
        self._trained: collections.deque[TrainedGroup] = collections.deque(maxlen=8)
        self.listeners: list[Callable[[RunSnapshot], None]] = []
        self._resumed = anyio.Event()
        self._resumed.set()
        self._doing: tuple[str, int] | None = None
        """What everybody may have to wait for, and since when."""

    async def main(self) -> None:
        """Serve engine and learner, produce groups, and train on them until the steps are done."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.parts.engine.serve)
                group.start_soon(self.parts.learner.serve)
                group.start_soon(self.parts.orchestrator.produce, self.tasks)
                group.start_soon(self._tell_listeners)
                for sink in (*self._sinks, *filter(None, [self.parts.meter])):
                    group.start_soon(sink.serve)
                self.status = "running"
                await self._train()
                if self.parts.schedule is not None:
                    await self.parts.learner.flush()
                group.cancel_scope.cancel()
            self.status = "finished"
        except asyncio.CancelledError:
            self.status = "stopped"
            raise
        except BaseException:  # whatever it was, the status must say so before it goes on
            self.status = "failed"
            raise
        finally:
            self.parts.orchestrator.finish()

    async def _train(self) -> None:
        await self._evaluate(last=False)
        while len(self.metrics) < self.steps and await self._update():
            await self._evaluate(last=len(self.metrics) == self.steps)

    async def _evaluate(self, *, last: bool) -> None:
        """Evaluate if it is time. No update is begun meanwhile, so that the weights stay the same."""
        every = self.parts.eval_every
        if self.parts.evaluate is None or not (last or len(self.metrics) % every == 0):
            return
        if self.evaluations and self.evaluations[-1]["step"] == len(self.metrics):
            return  # by the run that is resumed
        with self._at("the evaluation"):
            found = await self.parts.evaluate()
        row = {"step": len(self.metrics), "success": found.success, "low": found.low, "high": found.high}
        at_k = {"k": found.k, "pass_at_k": found.pass_at_k}
        self.evaluations.append(row | at_k | {"count": found.count, "mean_reward": found.mean_reward})

    async def _update(self) -> bool:
        """One update from the next batch; False when the tasks have ended."""
        orchestrator = self.parts.orchestrator
        await self._resumed.wait()
        began_ns = now_ns()
        batch = await orchestrator.next_batch(orchestrator.config.groups_per_step)
        await self._resumed.wait()
        if not batch:
            if orchestrator.gate.counts.failed and not self.metrics:
                why = f"and the tasks ended before the first of {self.steps} updates."
                raise RunError(orchestrator.failure_report(why))
            return False
        got_ns = now_ns()
        staleness = [orchestrator.staleness(group) for group in batch]
        with self._at(f"update {len(self.metrics) + 1} of the learner"):
            result = await self.parts.learner.update(batch)
        orchestrator.trained(batch)
        self.adapters = result.policy.adapters
        self.parts.on_policy(result.policy)
        self.parts.engine.update_policy(result.policy)
        orchestrator.advance(result.policy.version)
        row = self._row(batch, staleness, began_ns, got_ns) | orchestrator.gate.shares() | dict(result.metrics)
        self._warnings += result.notes
        self._trained += getattr(result, "trained", ())  # a learner may look at no token
        if self.parts.rewarded:
            self._warnings += batch_warnings(batch, row)
            tracing.counter("reward", row["reward_mean"])
            tracing.counter("staleness", row["staleness_mean"])
        else:
            row = {name: value for name, value in row.items() if name not in OF_REWARDS}
        self.metrics.append(row)
        for sink in self._sinks:
            sink.put(row)
        self._settle(result.policy.version)
        return True

    def _row(
        self, batch: Sequence[TrajectoryGroup], staleness: Sequence[int], began_ns: int, got_ns: int
    ) -> dict[str, float]:
        waited_s, self._waited_s = self._waited_s, self.parts.orchestrator.gate.closed_s
        return {
            "step": len(self.metrics) + 1,
            "time_s": self._elapsed_s,
            **episode_measures(batch, staleness),
            "wait_batch_s": (got_ns - began_ns) / 1e9,
            "wait_policy_s": self._waited_s - waited_s,
            "update_s": (now_ns() - got_ns) / 1e9,
            "compiled_late": self.parts.engine.stats().compilations,
            **self.parts.orchestrator.calls.measures(self.parts.engine.stats()),
        }

    @property
    def _elapsed_s(self) -> float:
        """Seconds that the run has taken, those before it was resumed included."""
        return self._before_s + (now_ns() - self.start_ns) / 1e9

    def _settle(self, version: int) -> None:
        """Give the learner what belongs to the newest weights, and say whether to write both now."""
        if self.parts.schedule is None:
            return
        so_far = {"metrics": tuple(self.metrics), "evaluations": tuple(self.evaluations), "time_s": self._elapsed_s}
        record = RunRecord(version=version, progress=self.parts.orchestrator.progress(), **so_far)
        self.parts.learner.settled(record, save=self.parts.schedule.due(len(self.metrics), now_ns() / 1e9))

    async def _tell_listeners(self) -> None:
        before, before_ns = self.parts.engine.stats().tokens_sampled, now_ns()
        while True:
            await anyio.sleep(1.0)
            sampled, moment_ns = self.parts.engine.stats().tokens_sampled, now_ns()
            tracing.counter("tokens_per_s", (sampled - before) / (moment_ns - before_ns) * 1e9)
            before, before_ns = sampled, moment_ns
            if self.listeners:
                tell(self.listeners, self.snapshot(), self._warnings)

    @contextlib.contextmanager
    def _at(self, what: str) -> Iterator[None]:
        self._doing = what, now_ns()
        try:
            yield
        finally:
            self._doing = None

    def _stalled(self) -> str | None:
        """That the learner or an evaluation has kept everybody waiting for `stall_after_s`; else None."""
        if self._doing is None:
            return None
        what, since_ns = self._doing
        since_s = (now_ns() - since_ns) / 1e9
        if since_s < self.parts.orchestrator.config.stall_after_s:
            return None
        depth = self.parts.orchestrator.queue_depth
        return f"{what.capitalize()} has been under way for {since_s:.0f} s; {depth} finished groups wait for it."

    def pause(self, paused: bool) -> None:
        if self.status in ("running", "paused"):
            self.status = "paused" if paused else "running"
            self.parts.orchestrator.gate.pause(paused)
            if paused and self._resumed.is_set():
                self._resumed = anyio.Event()
            elif not paused:
                self._resumed.set()

    def snapshot(self) -> RunSnapshot:
        orchestrator = self.parts.orchestrator
        unsaved = self.parts.learner.unsaved if self.parts.schedule is not None else None
        notes = [*orchestrator.notes, *orchestrator.warnings, *self.parts.notes, *self._warnings]
        notes += [unsaved] if unsaved else []
        if self.status == "running" and (stalled := orchestrator.stalled() or self._stalled()):
            notes.append(stalled)
        if orchestrator.num_hung:
            notes.append(f"{orchestrator.num_hung} worker threads still run a call whose deadline has passed.")
        return RunSnapshot(
            name=self.name,
            status=self.status,
            step=len(self.metrics),
            steps=self.steps,
            start_ns=self.start_ns,
            now_ns=now_ns(),
            metrics=tuple(self.metrics),
            evaluations=tuple(self.evaluations),
            trajectories=orchestrator.recent,
            trained=tuple(self._trained),
            counts=orchestrator.gate.counts,
            engine=self.parts.engine.stats(),
            episodes=orchestrator.in_flight(),
            queue_depth=orchestrator.queue_depth,
            max_concurrency=orchestrator.config.max_concurrency,
            settings=self._settings,
            failures=orchestrator.failures,
            unsaved=unsaved,
            notes=tuple(notes),
        )


class Run:
    """A training run in the background; used by the main thread.

    Displaying it shows the live dashboard. It holds no resource once it has ended.

    Raises:
        RunActiveError: another run lives in this process.
    """

    def __init__(self, name: str, build: Callable[[], Parts], tasks: Tasks, steps: int):
        live = current_run()
        if live is not None:
            raise RunActiveError(
                f"One run at a time: {live.name!r} is at step {live.last_known().step} of {live.steps}. "
                "Stop it first: al.current_run().stop(), or wait for it: al.current_run().wait()."
            )
        tracing.spill()
        self.name, self.steps = name, steps
        self._session: Session | None = None
        self._last = RunSnapshot(name=name, status="starting", step=0, steps=steps, start_ns=now_ns(), now_ns=now_ns())
        self._listeners: list[Callable[[RunSnapshot], None]] = []
        self._error: BaseException | None = None
        self._adapters: Any = None
        self.tokenizer: Any = None
        """A private copy of the model's, which turns token ids into text; None before the engine is built."""
        self._ended = False

        async def main() -> None:
            try:
                gc.collect()  # what earlier runs left in cycles, before a run sets aside what exists (calm_collector)
                self._session = Session(name, build(), tasks, steps)
                self.tokenizer = self._session.parts.orchestrator.chat.tokenizer
                self._session.listeners = self._listeners
                await first_error(self._session.main)
            except BaseException as error:  # kept for wait(), which raises it on the main thread
                self._error = error
                raise
            finally:
                self._finish()

        self._thread = LoopThread(main, on_exit=self._say_exit)
        setattr(sys, _LIVE, self)

    # -- its life ----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._thread.done

    @property
    def status(self) -> RunStatus:
        return self.snapshot().status

    def wait(self) -> "Run":
        """Wait for its end and return it. An interrupt ends the waiting, not the run.

        Raises:
            RunError: the engine, the learner or too many episodes failed.
            CheckpointError: its updates are done, but the last checkpoint could not be written.
        """
        try:
            self._thread.join()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Run {self.name!r} goes on in the background. Wait again: run.wait(); end it: run.stop()."
            ) from None
        return self._outcome()

    def __await__(self) -> Generator[Any, None, "Run"]:
        return self._awaited().__await__()

    def pause(self) -> None:
        """Admit no new groups and begin no update; episodes in flight play to their end.

        Raises:
            RunEnded: it has ended.
        """
        self._call(lambda session: session.pause(True))

    def resume(self) -> None:
        """Go on after `pause`.

        Raises:
            RunEnded: it has ended.
        """
        self._call(lambda session: session.pause(False))

    def stop(self, timeout_s: float = 30.0) -> "Run":
        """End it now: nothing is drained, every environment is closed. Does nothing to an ended run."""
        if not self.done:
            self._thread.cancel()
        if not self._thread.join(timeout_s):
            raise RunError(
                f"Run {self.name!r} did not end within {timeout_s} s; it is still ending. Call stop() again."
            )
        return self

    # -- what it has seen --------------------------------------------------------------------------

    @property
    def adapters(self) -> Any:
        """The newest trained adapters, an `agentlab.models.Adapters`, for `save_adapters`; kept after its end.

        None before the first update, and where all weights are trained.
        """
        session = self._session
        return self._adapters if session is None else session.adapters

    def snapshot(self) -> RunSnapshot:
        """Everything a display needs, taken at one moment.

        Raises:
            RunError: the loop is blocked and did not answer within 5 s.
        """
        session = self._session
        if not self._ended and session is not None:
            try:
                return self._thread.call(session.snapshot)
            except RunEnded:
                return self._last
        return self._last

    def last_known(self) -> RunSnapshot:
        """A snapshot if the run answers, else the newest there is."""
        try:
            return self.snapshot()
        except RunError:
            return self._last

    @property
    def metrics(self) -> list[dict[str, float]]:
        """One row per update."""
        return [dict(row) for row in self.snapshot().metrics]

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """One row per evaluation inside the run: step, success with its 95 % interval, count, mean_reward."""
        return [dict(row) for row in self.snapshot().evaluations]

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The newest trajectories, oldest first."""
        return self.snapshot().trajectories

    def spans(self) -> tuple[tracing.Span, ...]:
        """What was traced since the run began, until it ended, as far as it is in memory: the newest.

        While the run lives, spans that are under way are among them, as if they ended now.
        """
        return self._window().newest()

    def all_spans(self) -> Iterator[tracing.Span]:
        """What was traced since the run began, until it ended, by start; also what is kept on disk.

        Given one after the other, so that a run of many days needs little memory.
        """
        return self._window().everything()

    def save_metrics(self, path: str | Path) -> Path:
        """Write one JSON object per update and line; NaN becomes null."""
        return write_atomically(path, "".join(map(as_line, self.metrics)))

    def save_trajectories(self, path: str | Path) -> Path:
        """Write the newest trajectories, one JSON object per line; `rollout.load_trajectories` reads them again."""
        return save_trajectories(path, self.trajectories)

    def save_trace(self, path: str | Path) -> Path:
        """Write a trace that opens in ui.perfetto.dev."""
        window = self._window()
        return tracing.save_trace(path, window.everything(), window.counters())

    def add_listener(self, listener: Callable[[RunSnapshot], None]) -> None:
        """Call `listener(snapshot)` on the loop thread about once a second, and once at the end."""
        self._listeners.append(listener)
        if self._ended:
            listener(self._last)

    # -- displays: loaded when asked for -----------------------------------------------------------

    def timeline(self, start: float | None = None, stop: float | None = None, **options: Any) -> Any:
        """Matplotlib axes: what was busy when, from `start` to `stop` seconds after the run began."""
        return _viz().timeline(self.all_spans(), start=start, stop=stop, **options)

    def diagnose(self) -> Any:
        """What waited for what, in words and numbers, and what to change."""
        return _viz().diagnose(self.snapshot(), self.spans(), readings=self._window().counters())

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write one HTML file with curves, timeline, verdict, configuration and sample trajectories."""
        return _viz().report(self, path, **options)

    def dashboard(self, transport: str | None = None) -> Any:
        """The live dashboard of this run, by "background", "watch" or "iframe"; see `viz.dashboard`."""
        return _viz().dashboard(self, transport)

    def xprof(self, seconds: float = 2.0, folder: str | Path = "xprof") -> Path:
        """Profile the next seconds with the accelerator's profiler, under our stages' names; see `viz.xprof`."""
        return _viz().xprof(seconds, folder)

    def watch(self, **options: Any) -> None:
        """Refresh the dashboard from this cell until the run ends. An interrupt ends the watching only."""
        _viz().watch(self, **options)

    def _ipython_display_(self) -> None:
        self.dashboard().show()

    def __repr__(self) -> str:
        now = self.last_known()
        name = "reward_mean" if any("reward_mean" in row for row in now.metrics) else "loss"
        values = [row.get(name, math.nan) for row in now.metrics]
        reward = f", {name.partition('_')[0]} {values[0]:.3f} -> {values[-1]:.3f}" if values else ""
        return f"<Run {self.name!r}: {now.status}, step {now.step} of {now.steps}{reward}>"

    # -- inside ------------------------------------------------------------------------------------

    def _window(self) -> tracing.Window:
        last = self.snapshot()
        return tracing.Window(last.start_ns, last.now_ns, live=not self._ended)

    async def _awaited(self) -> "Run":
        while not self.done:
            await asyncio.sleep(BEAT_S)
        return self._outcome()

    def _outcome(self) -> "Run":
        if self._error is not None and self._last.status == "failed":
            raise self._error
        return self

    def _call(self, fn: Callable[[Session], None]) -> None:
        def on_loop() -> None:
            if self._session is not None:
                fn(self._session)

        if self._ended:
            raise RunEnded(f"Run {self.name!r} is {self._last.status}; it can be neither paused nor resumed.")
        self._thread.call(on_loop, timeout_s=60.0)  # it may still be building its engine

    def _say_exit(self) -> None:
        step = self.last_known().step
        say(f"run {self.name!r} was at step {step} of {self.steps} when the process ended; it is stopped.")

    def _finish(self) -> None:
        last = self._session.snapshot() if self._session is not None else replace(self._last, status="failed")
        text = f"{type(self._error).__name__}: {self._error}" if last.status == "failed" else None
        self._last, self._adapters = replace(last, error=text), self.adapters
        self._session, self._ended = None, True  # gives back the engine's memory
        if self._error is not None:
            traceback.clear_frames(self._error.__traceback__)
        if getattr(sys, _LIVE, None) is self:
            delattr(sys, _LIVE)
        tell(self._listeners, self._last, [])


def current_run() -> Run | None:
    """The live run of this process, or None."""
    live = getattr(sys, _LIVE, None)
    return live if live is not None and not live.done else None


def _viz() -> Any:
    return importlib.import_module("agentlab.viz")
