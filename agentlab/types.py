"""The records that travel between threads: all frozen, no behaviour beyond their own checks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentlab.errors import ConfigError
from agentlab.options import check_kwargs as check_kwargs
from agentlab.options import checked_id
from agentlab.options import checked_option as checked_option
from agentlab.options import config as config
from agentlab.options import option_types as option_types
from agentlab.schemas import tool_schema

Message = dict[str, Any]
"""One chat message: {"role": "system" | "user" | "assistant" | "tool", "content": str, …}."""

FinishReason = Literal["stop", "length", "context", "abort"]
"""Why a completion ended: a stop token or string; max_tokens; the slot is full; cancelled."""

Truncation = Literal["max_tokens", "context", "timeout", "max_turns"]
"""Why an episode ended before its environment said so."""

TruncationRule = Literal["train", "no_reward", "leave_out"]
"""What becomes of a truncated trajectory: trained with the reward it has; trained with reward 0; left
out of the loss and of its group's statistics."""

EpisodeStage = Literal["reset", "model", "agent", "step", "tool", "reward", "close", "episode"]
Outcome = Literal["trained", "stale", "filtered", "failed", "cancelled"]


TaskId = str | int | float | tuple["TaskId", ...]
"""What tells a task from others: valid text, a finite number, or a tuple of such. What equals one of these (NumPy's
scalars, members of enums that are text or numbers) is made plain when a run takes the task, and lists become
tuples; anything else is refused then. The id of a task that is given as a dictionary is the text of it."""


@dataclass(frozen=True)
class Task:
    """One prompt with its data. Never changed by anybody; many episodes share it."""

    id: TaskId
    prompt: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the environment and the reward need, e.g. {"answer": "42"}."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: {"type": "object", "properties": {...}, "required": [...]}. All three
    are always there, whatever was given; "properties" names every argument, and no reference leads nowhere
    or in a circle (see `schemas.tool_schema`)."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "parameters", tool_schema(self.parameters))
        except ConfigError as error:
            raise ConfigError(f"Tool {self.name!r}: {error}") from error

    def as_function(self) -> dict[str, Any]:
        """The form in which chat templates and model servers take tools."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolCall:
    """A call that the model made. `error` says what is wrong with it, for the model to read."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered, as the text that the model reads."""

    name: str
    text: str
    failed: bool = False
    duration_s: float = 0.0


@dataclass(frozen=True)
class Action:
    """What an agent wants from its environment: `value` is text, tool calls, or anything else."""

    value: Any


@dataclass(frozen=True)
class EnvStepResult:
    """What an environment answers to an action."""

    observation: Any
    reward: float
    done: bool
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why an episode has no reward: the boundary that was crossed, and what was raised there."""

    stage: EpisodeStage
    error: str
    traceback: str
    turn: int = 0


@dataclass(frozen=True)
class Turn:
    """One model call and its consequence."""

    response: str
    action: Any = None
    observation: Any = None
    reward: float = 0.0
    finish_reason: FinishReason = "stop"
    num_sampled: int = 0
    model_s: float = 0.0
    step_s: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenRow:
    """One token sequence as the policy saw it: never text encoded again.

    The first four fields have the same length. `logprobs` is 0.0 and `policy_versions` is -1 where
    `loss_mask` is 0.
    """

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    weights: tuple[float, ...] = ()
    """What each token counts in the loss, above 0 where `loss_mask` is 1; empty where all of them count 1."""

    def __post_init__(self) -> None:
        lengths = {len(self.tokens), len(self.loss_mask), len(self.logprobs), len(self.policy_versions)}
        lengths |= {len(self.weights)} if self.weights else set()
        assert len(lengths) == 1, f"a token row's fields differ in length: {lengths}"

    @property
    def prompt_length(self) -> int:
        """Tokens before the first sampled one (all of them if none was sampled)."""
        return self.loss_mask.index(1) if 1 in self.loss_mask else len(self.tokens)


EMPTY_ROW = TokenRow((), (), (), ())


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The record of one episode."""

    task: Task
    group_id: str
    episode: int
    """Index within the group."""
    rows: tuple[TokenRow, ...] = ()
    """One row, or more where the chat template rewrote history (each fork begins a new one)."""
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()
    reward: float = math.nan
    """Sum of the rewards; NaN when the episode failed."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    truncation: Truncation | None = None
    failure: Failure | None = None
    start_ns: int = 0
    end_ns: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.rows[-1].tokens if self.rows else ()

    @property
    def loss_mask(self) -> tuple[int, ...]:
        return self.rows[-1].loss_mask if self.rows else ()

    @property
    def logprobs(self) -> tuple[float, ...]:
        return self.rows[-1].logprobs if self.rows else ()

    @property
    def policy_versions(self) -> tuple[int, ...]:
        return self.rows[-1].policy_versions if self.rows else ()

    @property
    def num_sampled(self) -> int:
        return sum(sum(row.loss_mask) for row in self.rows)

    @property
    def scored(self) -> bool:
        """Whether the reward exists and counts in the group's statistics."""
        return math.isfinite(self.reward)

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version that sampled a token of it; None if nothing was sampled."""
        versions = [v for row in self.rows for v, m in zip(row.policy_versions, row.loss_mask, strict=True) if m]
        return min(versions, default=None)


@dataclass(frozen=True)
class TrajectoryGroup:
    """The trajectories of one task."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(t.reward for t in self.trajectories)

    @property
    def oldest_version(self) -> int | None:
        versions = [t.oldest_version for t in self.trajectories]
        return min((v for v in versions if v is not None), default=None)


@dataclass(frozen=True)
class TokenScores:
    """What an update made of a trajectory's sampled tokens: one entry each, in their order over all its rows."""

    advantages: tuple[float, ...]
    logprobs: tuple[float, ...]
    """Under the weights that the update began with, by the trainer's own arithmetic."""


@dataclass(frozen=True)
class TrainedGroup:
    """A group that an update consumed, with what the update made of its tokens."""

    group: TrajectoryGroup
    version: int
    """Of the weights that the update began with."""
    scores: tuple[TokenScores | None, ...]
    """By trajectory; None where it was left out of the loss: without a reward, or no better than the others."""


# -- the inference engine -------------------------------------------------------------------------


@config
class SamplingParams:
    """How one completion is sampled. Log-probabilities are those of the distribution sampled from."""

    max_tokens: int = 256
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    """Drops tokens less likely than this share of the likeliest one's probability; 0 drops none."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """In addition to the model's own end-of-turn tokens."""
    seed: int = 0
    """A request's tokens depend on its seed alone, not on who shared its batch."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}.")
        if not self.temperature >= 0:
            raise ConfigError(f"temperature must be 0 or more, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p}.")
        if self.top_k < 0:
            raise ConfigError(f"top_k must be 0 (all) or more, got {self.top_k}.")
        if not 0 <= self.min_p < 1:
            raise ConfigError(f"min_p must lie in [0, 1), got {self.min_p}.")


@dataclass(frozen=True)
class GenerationRequest:
    """One model call. Requests of one `session` continue the same conversation."""

    id: str
    session: str
    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True)
class Completion:
    """What the engine sampled; the three tuples have one entry per token.

    The stop token, if one ended it, is the last of `tokens`: the policy sampled it.
    """

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    finish_reason: FinishReason
    num_prefilled: int = 0
    """Prompt tokens that were computed, not found in the cache."""
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class Policy:
    """Weights at a version. `params` and `adapters` are never donated or changed once published."""

    version: int
    params: Any
    """Without adapters, which are merged into them."""
    adapters: Any = None
    """An `agentlab.models.Adapters`, of which `params` are the sum with the base model; None where all weights are
    trained, or none has been yet."""


@dataclass(frozen=True)
class EngineStats:
    """Counters of an engine since its start, and what it holds now."""

    policy_version: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 0
    tokens_sampled: int = 0
    tokens_prefilled: int = 0
    tokens_cached: int = 0
    """Prompt tokens found in the cache."""
    cache_used: float | None = None
    """Share of the cache that running requests hold now, in [0, 1]; None where the engine does not tell."""
    busy_s: float = 0.0
    compilations: int = 0
    """Programs compiled after warm-up; anything above 0 is a fault."""
    num_programs: int = 0
    """Programs that warm-up compiles; 0 where there is none."""
    num_compiled: int = 0
    """How many of them it has compiled so far."""


# -- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpisodeInFlight:
    """Who waits for what; `detail` names the tool or reward, or says what the stage waits for to begin."""

    group_id: str
    episode: int
    turn: int
    stage: EpisodeStage
    since_ns: int
    detail: str = ""


@dataclass(frozen=True)
class Counts:
    """Groups by where they are. `admitted` is always the sum of all the others."""

    admitted: int = 0
    in_flight: int = 0
    trained: int = 0
    stale: int = 0
    filtered: int = 0
    failed: int = 0
    cancelled: int = 0


RunStatus = Literal["starting", "running", "paused", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class RunSnapshot:
    """Everything a display needs, taken at one moment on the loop thread."""

    name: str
    status: RunStatus
    step: int
    steps: int
    start_ns: int
    now_ns: int
    metrics: tuple[Mapping[str, float], ...] = ()
    """One row per update."""
    evaluations: tuple[Mapping[str, float], ...] = ()
    """{"step", "success", "low", "high", "count"} per evaluation."""
    trajectories: tuple[Trajectory, ...] = ()
    """The newest ones, oldest first; bounded."""
    trained: tuple[TrainedGroup, ...] = ()
    """The newest groups that were consumed, oldest first; bounded."""
    counts: Counts = Counts()
    engine: EngineStats = EngineStats()
    episodes: tuple[EpisodeInFlight, ...] = ()
    queue_depth: int = 0
    """Finished groups that wait for the learner."""
    max_concurrency: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the run by its name."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed episodes by stage."""
    error: str | None = None
    unsaved: str | None = None
    """Why the newest checkpoint could not be written, as it is told in `notes`; None once one is written."""
    notes: tuple[str, ...] = ()
    """Warnings for a person: stalls, hung threads, alarms."""


def as_tasks(tasks: Iterable[Any]) -> Iterable[Task]:
    """Tasks as given by a person: `Task` objects, or dictionaries with a "prompt" or "question"."""
    return (as_task(task, index) for index, task in enumerate(tasks))


def as_task(task: Any, index: int) -> Task:
    """One task as given by a person; its id made plain, see `TaskId`.

    Raises:
        ConfigError: it is neither a Task nor a dictionary with a "prompt" or "question", or its id is none.
    """
    if isinstance(task, Task):
        plain = checked_id(task.id, f"task {index}")
        return task if plain is task.id else replace(task, id=plain)
    if isinstance(task, Mapping):
        prompt = task.get("prompt", task.get("question"))
        if isinstance(prompt, str):
            given = task.get("id")
            name = index if given is None else checked_id(given, f"task {index}")
            return Task(str(name), prompt, dict(task))
    raise ConfigError(
        f'Task {index} must be an agentlab.Task or a dictionary with a text under "prompt" or '
        f'"question", got {type(task).__name__}: {task!r:.80}.'
    )


def interval(successes: int, count: int) -> tuple[float, float]:
    """95 % Wilson score interval of a share.

    Source: Wilson 1927, equation 1, z = 1.96.
    """
    if count == 0:
        return 0.0, 1.0
    z, share = 1.96, successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean(values: Sequence[float]) -> float:
    """The mean, NaN of nothing."""
    return sum(values) / len(values) if values else math.nan
