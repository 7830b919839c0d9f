"""Conversations as demonstrations: batches for a learner, as an orchestrator gives it batches of episodes."""

import collections
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab.chat import ChatFormat, Conversation, Demonstrator, Said, read_conversation
from agentlab.concurrency import Bell, WorkerPool
from agentlab.errors import ConfigError
from agentlab.options import checked_id
from agentlab.rollout.calls import ModelCalls
from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.ledger import Ledger, Progress, place_of
from agentlab.rollout.pacing import Gate
from agentlab.types import EpisodeInFlight, Task, Trajectory, TrajectoryGroup

BATCHES_AHEAD = 1
"""Batches that are encoded before the learner asks for them."""


class ConversationFeed:
    """Encodes conversations ahead of the learner that asks for them.

    Owned by the loop. A sequence of conversations is gone through again and again, in another
    order each time; any other iterable once, in its own order.

    Args:
        chat: How conversations become tokens.
        tool_parser_name: The syntax in which tools and calls are written; "auto" is the chat template's.
        per_step: Conversations in a batch.
        max_tokens: A longer conversation is left out, and counted as failed.
        seed: Of the order.
        limit: Conversations to give in all.
        progress: How far a run that is resumed had come.
    """

    def __init__(
        self,
        chat: ChatFormat,
        *,
        tool_parser_name: str = "auto",
        per_step: int,
        max_tokens: int,
        seed: int = 0,
        limit: int | None = None,
        progress: Progress | None = None,
    ):
        self.config = RolloutConfig(groups_per_step=per_step, group_size=1, max_concurrency=1)
        self.num_hung, self.queue_depth = 0, 0
        self.failures: Mapping[str, int] = {}
        self.notes: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self.gate = Gate(groups_per_step=per_step, max_off_policy_steps=BATCHES_AHEAD, limit=limit)
        self.calls = ModelCalls()
        self.ledger = Ledger(progress)
        self.gate.restore(self.ledger.before)
        self.chat, self._max_tokens, self._seed = chat, max_tokens, seed
        self._demonstrator = Demonstrator(chat, tool_parser_name)
        self._ready: collections.deque[TrajectoryGroup] = collections.deque()
        self._recent: collections.deque[Trajectory] = collections.deque(maxlen=64)
        self._changed = Bell()
        self._ended = False

    async def produce(self, conversations: Any) -> None:
        """Encode conversations ahead of the learner until they end or the limit is reached.

        Raises:
            ConfigError: a conversation is malformed, or there is none.
        """
        pool = WorkerPool(1)
        stream = enumerate(in_order(conversations, self._seed))
        seen = 0
        try:
            while await self.gate.opened() and (made := await pool.run(self._next, stream)) is not None:
                seen += 1
                if made.wanted:
                    self._take(made)
            self.ledger.check_ended(seen)
        finally:
            pool.close()
            self._ended = True
            self._changed.ring()

    async def next_batch(self, count: int) -> list[TrajectoryGroup]:
        """The next `count` demonstrations; fewer only when no more will come."""
        while len(self._ready) < count and not self._ended:
            await self._changed.wait()
        batch = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self.queue_depth = len(self._ready)
        return batch

    def staleness(self, group: TrajectoryGroup) -> int:
        """0: what is shown does not age."""
        return 0

    def trained(self, batch: Sequence[TrajectoryGroup]) -> None:
        """The learner has consumed these demonstrations."""
        self.gate.settle("trained", len(batch))
        for group in batch:
            self.ledger.ended(group.id)

    def advance(self, version: int) -> None:
        """One more update is done."""
        self.gate.advance(self.gate.version + 1)

    def progress(self) -> Progress:
        """How far it has come, for a checkpoint."""
        return self.ledger.progress(self.gate.counts, self.gate.version)

    def finish(self) -> None:
        """Nothing more will be consumed."""
        self._ready.clear()
        self.gate.settle("cancelled", self.gate.counts.in_flight)

    @property
    def recent(self) -> tuple[Trajectory, ...]:
        """The newest demonstrations, oldest first."""
        return tuple(self._recent)

    def in_flight(self) -> tuple[EpisodeInFlight, ...]:
        """Nothing: demonstrations are not played."""
        return ()

    def stalled(self) -> str | None:
        """None: nothing here waits for anybody."""
        return None

    def failure_report(self, why: str) -> str:
        """What was left out, under a sentence that says why it is told."""
        return f"{self.gate.counts.failed} conversations were longer than {self._max_tokens} tokens, {why}"

    def _next(self, stream: Iterator[tuple[int, Any]]) -> "Encoded | None":
        """The next conversation, encoded if it is wanted; None at the end. Runs on a worker."""
        index, conversation = next(stream, (0, _END))
        if conversation is _END:
            return None
        name = id_of(conversation, index)
        if not self.ledger.is_wanted(index, name):
            return Encoded(index, name, wanted=False)
        read = read_conversation(conversation, index)
        group = demonstration(self._demonstrator, read, f"{index}:{name}")
        fits = max(len(row.tokens) for row in group.trajectories[0].rows) <= self._max_tokens
        return Encoded(index, name, group if fits else None, notes=self._demonstrator.fallbacks(read))

    def _take(self, made: "Encoded") -> None:
        self.gate.admit()
        self.ledger.begin(made.index, made.name)
        self.notes = tuple(dict.fromkeys((*self.notes, *made.notes)))
        if made.group is None:
            self.gate.settle("failed")
            self.ledger.ended(f"{made.index}:{made.name}")
            self.failures = {"reset": self.gate.counts.failed}
            return
        self._ready.append(made.group)
        self.queue_depth = len(self._ready)
        self._recent.extend(made.group.trajectories)
        self._changed.ring()


@dataclass(frozen=True)
class Encoded:
    """One conversation of the stream."""

    index: int
    name: str
    group: TrajectoryGroup | None = None
    """None where it is too long, or not wanted."""
    wanted: bool = True
    notes: tuple[str, ...] = ()
    """What is written otherwise than by the chat template."""


_END = object()


def in_order(conversations: Iterable[Any], seed: int) -> Iterator[Any]:
    """A sequence's items over and over, each time in another order; another iterable's as they come."""
    if not isinstance(conversations, Sequence):
        yield from conversations
        return
    epoch = 0
    while conversations:
        order = list(range(len(conversations)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        yield from (conversations[place] for place in order)
        epoch += 1


def check_conversations(conversations: Any) -> None:
    """Refuse what is no stream of conversations, an empty list of them, or a list with one that is malformed.

    Raises:
        ConfigError: it is none; see `read_conversation`.
    """
    if isinstance(conversations, str | bytes | Mapping) or not isinstance(conversations, Iterable):
        raise ConfigError(f"conversations must be an iterable of them, got {type(conversations).__name__}.")
    if isinstance(conversations, Sequence):
        if not len(conversations):
            raise ConfigError("conversations must hold at least one, got none.")
        for index, conversation in enumerate(conversations):
            read_conversation(conversation, index)


def id_of(conversation: Any, index: int) -> str:
    """The conversation's "id" where it has one, else its place in the stream."""
    given = conversation.get("id") if isinstance(conversation, Mapping) else None
    return str(index if given is None else checked_id(given, f"conversation {index}"))


def demonstration(demonstrator: Demonstrator, conversation: Conversation, group_id: str) -> TrajectoryGroup:
    """A conversation as a group of one trajectory, tokenised as a rollout would be; see `Demonstrator`.

    What comes after the last turn of the assistant is left out.

    Raises:
        ConfigError: the chat template cannot show the conversation as it is.
    """
    messages = [
        message.as_message() if isinstance(message, Said) else message
        for message in conversation.messages[: conversation.said_at[-1] + 1]
    ]
    task = Task(group_id.partition(":")[2], str(messages[0]["content"]))
    rows = demonstrator.rows(conversation, place_of(group_id))
    shown = Trajectory(task=task, group_id=group_id, episode=0, rows=rows, messages=tuple(messages), reward=1.0)
    return TrajectoryGroup(group_id, task, (shown,))
