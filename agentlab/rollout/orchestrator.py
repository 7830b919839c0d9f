"""Runs hundreds of episodes over one engine, forms groups, and hands them on with no barrier."""

import asyncio
import collections
import queue
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import anyio

from agentlab.agents import ConversationAgentBase, Taught, speaking_with
from agentlab.chat import ChatFormat
from agentlab.concurrency import BEAT_S, Bell, LoopThread, WorkerPool, calm_collector, first_error
from agentlab.environments import check_environment_options
from agentlab.errors import ConfigError, RunError
from agentlab.inference.base import Engine
from agentlab.rollout.calls import ModelCalls
from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.episode import Episode, World, stable_seed
from agentlab.rollout.ledger import Ledger, Progress, group_name, place_of
from agentlab.rollout.pacing import Gate
from agentlab.rollout.stall import stall_report
from agentlab.tracing import counter, now_ns, record, span
from agentlab.types import (
    EpisodeInFlight,
    Failure,
    Task,
    Trajectory,
    TrajectoryGroup,
    as_task,
    check_kwargs,
)

Tasks = Iterable[Any] | AsyncIterable[Any]


class RolloutOrchestrator:
    """Runs the episodes of a stream of tasks concurrently and yields finished groups.

    Owned by the loop it runs on. Use it alone (`async for group in orchestrator.stream(tasks)`),
    or under a learner, which takes batches with `next_batch` and reports updates with `advance`.

    Args:
        engine: Serves the model calls; somebody must run `engine.serve()`.
        agent_class: Called once per episode with `agent_kwargs`; a class or any callable.
        env_class: Called once per episode with the task and `env_kwargs`.
        config: How episodes are run.
        version: The policy version that the engine starts with.
        min_scored: Scored members that a group needs to be handed on; a smaller `group_size` lowers it.
        progress: How far a run that is resumed had come.
        chat: How messages become tokens; None reads it off the engine's tokenizer, as it is now.

    Raises:
        ConfigError: keyword arguments do not fit the class they are for.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        agent_class: Callable[..., Any],
        env_class: Callable[..., Any],
        agent_kwargs: Mapping[str, Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        config: RolloutConfig | None = None,
        version: int = 0,
        min_scored: int = 2,
        progress: Progress | None = None,
        chat: ChatFormat | None = None,
    ):
        self.config = RolloutConfig() if config is None else config
        if not isinstance(self.config, RolloutConfig):
            raise ConfigError(f"config must be a RolloutConfig, got {type(config).__name__}.")
        agent_options, env_options = agent_kwargs or {}, env_kwargs or {}
        check_roles(agent_class=agent_class, env_class=env_class, agent_kwargs=agent_options, env_kwargs=env_options)
        self._engine, self._min_scored = engine, min(min_scored, self.config.group_size)
        self.chat = chat or ChatFormat(engine.tokenizer, template_options=self.config.template_options)
        """How messages become tokens, by a tokenizer that is a private copy."""
        taught = Taught.of(engine.tokenizer)

        def make_agent() -> ConversationAgentBase:
            with speaking_with(taught):
                return agent_class(**agent_options)

        self._make_agent = make_agent
        self._make_environment = lambda task: env_class(task, **env_options)
        self._ready: collections.deque[tuple[TrajectoryGroup, int]] = collections.deque()
        self._changed = Bell()
        self._ended = self._producing = False
        self._taken = self._filtered_in_a_row = 0
        self._episodes: dict[int, Episode] = {}
        self._recent: collections.deque[Trajectory] = collections.deque(maxlen=64)
        self._failures: collections.Counter[str] = collections.Counter()
        self._first_failures: list[tuple[Task, Failure]] = []
        self.notes: tuple[str, ...] = ()
        """What a person should know of the episodes; each is said once."""
        self._last_progress_ns = now_ns()
        self._pool: WorkerPool | None = None
        self._reading_since_ns: int | None = None
        self.warnings: collections.deque[str] = collections.deque(maxlen=3)
        """The newest of what a person should know of the episodes."""
        self.calls = ModelCalls()
        self.ledger = Ledger(progress)
        self._version, self._first_version = version, version - self.ledger.before.steps
        self.gate = Gate(
            groups_per_step=self.config.groups_per_step,
            max_off_policy_steps=self.config.max_off_policy_steps,
            extra_groups=self.config.extra_groups,
        )
        self.gate.restore(self.ledger.before)

    async def stream(self, tasks: Tasks) -> AsyncIterator[TrajectoryGroup]:
        """Finished groups of `tasks`, in the order in which they finish, with no learner behind.

        Leaving the loop early ends the episodes in flight; close the stream to wait for that
        (`contextlib.aclosing`).

        Raises:
            RunError: more than `max_failed_groups` groups failed, or the stream of another call
                is still open.
        """
        if self._producing:
            raise RunError("This orchestrator is producing already; make another for a second stream.")
        self._ended = False
        # A task of its own, not a task group: a generator must not yield inside one.
        producer = asyncio.create_task(first_error(lambda: self.produce(tasks)))
        try:
            while batch := await self.next_batch(1):
                self._taken += 1
                self.trained(batch)
                self.gate.advance(self._taken // self.config.groups_per_step)
                yield batch[0]
            await producer
        finally:
            producer.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([producer])
            self.finish()

    def iterate(self, tasks: Tasks) -> Iterator[TrajectoryGroup]:
        """`stream` for code that is not async: serves the engine on a loop thread and yields groups.

        Leaving the loop early ends the episodes in flight.

        Raises:
            RunError: as `stream`.
        """
        groups: queue.SimpleQueue[TrajectoryGroup | None] = queue.SimpleQueue()

        async def main() -> None:
            try:
                async with anyio.create_task_group() as serving:
                    serving.start_soon(self._engine.serve)
                    async for group in self.stream(tasks):
                        groups.put(group)
                    serving.cancel_scope.cancel()
            finally:
                groups.put(None)

        thread = LoopThread(lambda: first_error(main))
        try:
            while (group := _next_in_beats(groups)) is not None:
                yield group
            thread.result()
        finally:
            thread.cancel()
            thread.join()

    async def produce(self, tasks: Tasks) -> None:
        """Run the episodes of `tasks` until they end or the gate's limit is reached.

        Raises:
            RunError: more than `max_failed_groups` groups failed.
            ConfigError: a task is neither a Task nor a dictionary with a prompt.
        """
        world = self._world()
        self._ended, self._producing = False, True
        places = anyio.Semaphore(self.config.max_concurrency)
        try:
            with calm_collector():
                async with anyio.create_task_group() as members:
                    await self._admit_all(tasks, world, places, members)
        finally:
            world.pool.close()
            self._ended, self._producing = True, False
            self._changed.ring()

    async def next_batch(self, count: int) -> list[TrajectoryGroup]:
        """The next `count` groups that are fresh enough, in the order of their tasks; fewer only when no
        more will come.

        A group older than `max_off_policy_steps` is dropped, counted, and its place given back.
        """
        batch: list[TrajectoryGroup] = []
        while len(batch) < count:
            if not self._ready:
                if self._ended:
                    break
                await self._changed.wait()
                continue
            group, since_ns = self._ready.popleft()
            record("queue", since_ns, now_ns(), group=group.id)
            counter("queue_depth", len(self._ready))
            if self.staleness(group) > self.config.max_off_policy_steps:
                self.gate.settle("stale")
                self.ledger.ended(group.id)
            else:
                batch.append(group)
        return sorted(batch, key=lambda group: place_of(group.id))

    def staleness(self, group: TrajectoryGroup) -> int:
        """Updates between the oldest token of a group and the weights now."""
        oldest = group.oldest_version
        return 0 if oldest is None else self._version - oldest

    def trained(self, batch: list[TrajectoryGroup]) -> None:
        """The learner has consumed these groups."""
        self.gate.settle("trained", len(batch))
        for group in batch:
            self.ledger.ended(group.id)

    def advance(self, version: int) -> None:
        """The weights are now at `version`: more groups may start."""
        self._version = version
        self.gate.advance(version - self._first_version)

    def progress(self) -> Progress:
        """How far the stream of tasks has been consumed, for a checkpoint."""
        return self.ledger.progress(self.gate.counts, self.gate.version)

    def finish(self) -> None:
        """Nothing more will be consumed: what is still in flight counts as cancelled."""
        self._ready.clear()
        self.gate.settle("cancelled", self.gate.counts.in_flight)

    @property
    def queue_depth(self) -> int:
        return len(self._ready)

    @property
    def num_hung(self) -> int:
        """Worker threads that still run a call whose deadline has passed."""
        return self._pool.num_hung if self._pool else 0

    @property
    def failures(self) -> Mapping[str, int]:
        """Failed episodes by stage."""
        return dict(self._failures)

    @property
    def recent(self) -> tuple[Trajectory, ...]:
        """The newest trajectories, oldest first."""
        return tuple(self._recent)

    def in_flight(self) -> tuple[EpisodeInFlight, ...]:
        """Every episode in flight: where it is and since when."""
        return tuple(episode.in_flight() for episode in self._episodes.values())

    def stalled(self) -> str | None:
        """Who waits for whom, when nothing has finished for `stall_after_s`; else None."""
        progress_ns, reading_ns = self._last_progress_ns, self._reading_since_ns
        return stall_report(self.in_flight(), progress_ns, reading_ns, self.config.stall_after_s)

    async def run_one(self, task: Any) -> Trajectory:
        """Play one task once, outside of all pacing."""
        world = self._world()
        whole = as_task(task, 0)
        try:
            seed = stable_seed(self.config.seed, whole.id, 0)
            return await Episode(world, whole, group_id=f"0:{whole.id}", index=0, seed=seed).run()
        finally:
            world.pool.close()

    # -- inside ------------------------------------------------------------------------------------

    def _world(self) -> World:
        self._pool = WorkerPool(self.config.max_workers)
        roles = self._make_agent, self._make_environment
        return World(self._engine, self.chat, *roles, self.config, self._pool, self.calls, self.warnings.append)

    async def _admit_all(self, tasks: Tasks, world: World, places: anyio.Semaphore, members: Any) -> None:
        index = 0
        source = _source(tasks, world.pool)
        while await self.gate.opened() and (given := await self._traced(source)) is not _END:
            task = as_task(given, index)
            if self.ledger.is_wanted(index, task.id):
                self.gate.admit()
                self.ledger.begin(index, task.id)
                await self._start_group(group_name(index, task), task, world, places, members)
            index += 1
        self.ledger.check_ended(index)
        if index == 0:
            raise ConfigError("The stream of tasks must hold at least one task, got none.")

    async def _traced(self, source: Callable[[], Awaitable[Any]]) -> Any:
        self._reading_since_ns = now_ns()
        with span("data"):
            given = await source()
        self._reading_since_ns = None
        return given

    async def _start_group(self, group_id: str, task: Task, world: World, places: anyio.Semaphore, tasks: Any) -> None:
        finished: list[Trajectory] = []
        for episode in range(self.config.group_size):
            await places.acquire()
            seed = stable_seed(self.config.seed, group_id, episode)
            make = partial(Episode, world, task, group_id=group_id, index=episode, seed=seed)
            tasks.start_soon(self._play, make, finished, places)

    async def _play(
        self, make_episode: Callable[[], Episode], finished: list[Trajectory], places: anyio.Semaphore
    ) -> None:
        try:
            for _ in range(1 + self.config.max_retries):
                trajectory = await self._play_once(make_episode())
                if trajectory.failure is None or trajectory.scored:
                    break
        finally:
            places.release()
        finished.append(trajectory)
        if len(finished) == self.config.group_size:
            self._finish_group(tuple(sorted(finished, key=lambda t: t.episode)))

    async def _play_once(self, episode: Episode) -> Trajectory:
        self._episodes[id(episode)] = episode
        counter("episodes_in_flight", len(self._episodes))
        try:
            trajectory = await episode.run()
        finally:
            del self._episodes[id(episode)]
        self._last_progress_ns = now_ns()
        self._recent.append(trajectory)
        if len(trajectory.rows) > 1 and not self.notes:
            self.notes = (forked_note(trajectory, self.chat.rewrites),)
        if trajectory.failure is not None:
            self._failures[trajectory.failure.stage] += 1
            if len(self._first_failures) < 5:
                self._first_failures.append((trajectory.task, trajectory.failure))
        return trajectory

    def _finish_group(self, members: tuple[Trajectory, ...]) -> None:
        rewards = {t.reward for t in members if t.scored}
        if sum(t.scored for t in members) < self._min_scored:
            self.ledger.ended(members[0].group_id)
            self._settle_failed()
        elif self.config.filter_equal_rewards and len(rewards) == 1:
            self.ledger.ended(members[0].group_id)
            self._settle_filtered()
        else:
            self._filtered_in_a_row = 0
            self._ready.append((TrajectoryGroup(members[0].group_id, members[0].task, members), now_ns()))
            counter("queue_depth", len(self._ready))
            self._changed.ring()

    def _settle_failed(self) -> None:
        self.gate.settle("failed")
        counts, limit = self.gate.counts, self.config.max_failed_groups
        finished = counts.admitted - counts.in_flight + len(self._ready)
        too_many = counts.failed > (limit if limit >= 1 or limit == 0 else limit * max(finished, 20))
        if too_many:
            why = f"more than max_failed_groups={limit}. Mend what raised, or raise max_failed_groups."
            raise RunError(self.failure_report(why))

    def _settle_filtered(self) -> None:
        self.gate.settle("filtered")
        self._filtered_in_a_row += 1
        if self._filtered_in_a_row > self.config.max_filtered_in_a_row:
            raise RunError(
                f"{self._filtered_in_a_row} groups in a row had equal rewards and were filtered, more than "
                f"max_filtered_in_a_row={self.config.max_filtered_in_a_row}: the tasks are all too hard or all too "
                "easy for the policy. Choose other tasks, a larger group_size, or filter_equal_rewards=False."
            )

    def failure_report(self, why: str) -> str:
        """The first failed episodes, under a sentence that says why they are told."""
        lines = [f"{self.gate.counts.failed} groups failed, {why} The first failures:"]
        for task, failure in self._first_failures:
            lines.append(f"- task {task.id!r}, turn {failure.turn}, in {failure.stage}: {failure.error}")
            lines.append(failure.traceback)
        return "\n".join(lines)


def check_roles(
    *,
    agent_class: Callable[..., Any],
    env_class: Callable[..., Any],
    agent_kwargs: Mapping[str, Any],
    env_kwargs: Mapping[str, Any],
) -> None:
    """Refuse an agent and an environment that could not be made.

    One agent is made and thrown away, so that its own checks speak now and not in every episode.

    Raises:
        ConfigError: keyword arguments do not fit the class they are for, or an option of an environment is impossible.
    """
    for role, given in (("agent_class", agent_class), ("env_class", env_class)):
        if not callable(given):
            raise ConfigError(f"{role} must be a class or another callable, got {given!r:.80}.")
    check_kwargs(agent_class, agent_kwargs, given_as="agent_kwargs")
    check_kwargs(env_class, env_kwargs, given_as="env_kwargs", reserved=1)
    check_environment_options(env_class, env_kwargs)
    agent = agent_class(**agent_kwargs)
    if not isinstance(agent, ConversationAgentBase):
        raise ConfigError(f"agent_class must make a ConversationAgentBase, got {type(agent).__name__}. Derive from it.")


def forked_note(trajectory: Trajectory, rewrites: str) -> str:
    """That a trajectory has several token rows, and why."""
    why = rewrites or "the agent changed messages that the model had seen"
    return (
        f"Episode {trajectory.group_id}/{trajectory.episode} has {len(trajectory.rows)} token rows: {why}. "
        "Each row is trained with exactly what the model read; every new row computes its whole prompt again."
    )


def _next_in_beats(groups: "queue.SimpleQueue[TrajectoryGroup | None]") -> TrajectoryGroup | None:
    while True:
        try:
            return groups.get(timeout=BEAT_S)
        except queue.Empty:
            continue


def check_tasks(tasks: Any) -> None:
    """Refuse what is no stream of tasks, or an empty list of them.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable | AsyncIterable):
        raise ConfigError(f"tasks must be an iterable of tasks, sync or async, got {type(tasks).__name__}.")
    if isinstance(tasks, list | tuple):
        if not tasks:
            raise ConfigError("tasks must hold at least one task, got none.")
        for index, task in enumerate(tasks):
            as_task(task, index)


def _source(tasks: Tasks, pool: WorkerPool) -> Callable[[], Awaitable[Any]]:
    """A function that gives the next task, or _END; a synchronous stream is read on a worker."""
    if isinstance(tasks, AsyncIterable):
        stream = aiter(tasks)

        async def from_stream() -> Any:
            return await anext(stream, _END)

        return from_stream
    check_tasks(tasks)
    iterator = iter(tasks)

    async def from_iterator() -> Any:
        return await pool.run(next, iterator, _END)

    return from_iterator


_END = object()
