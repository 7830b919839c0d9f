"""One episode: reset, then model call, agent and step in turn, then close; every boundary has a deadline."""

import asyncio
import hashlib
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from agentlab.agents import ConversationAgentBase
from agentlab.chat import ChatFormat
from agentlab.concurrency import WorkerPool, as_error, is_interrupt
from agentlab.environments.parts import StepPart, watched
from agentlab.environments.place import Place, playing
from agentlab.errors import AgentError, EngineError, RewardError, ToolError
from agentlab.files import shown
from agentlab.inference.base import Engine
from agentlab.rewards import finite, judged_by
from agentlab.rollout.calls import ModelCalls
from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.deadline import Deadline, TimeLimit
from agentlab.rollout.judging import EngineJudge
from agentlab.rollout.opened import Begin, OpenEnvironment, reset_result, step_result
from agentlab.rollout.transcript import Transcript
from agentlab.tracing import now_ns, span, tagged
from agentlab.types import (
    Completion,
    EpisodeInFlight,
    EpisodeStage,
    Failure,
    GenerationRequest,
    Message,
    SamplingParams,
    Task,
    Trajectory,
    Truncation,
    TruncationRule,
    Turn,
)


@dataclass(frozen=True)
class World:
    """What all episodes of a run share."""

    engine: Engine
    chat: ChatFormat
    make_agent: Callable[[], ConversationAgentBase]
    make_environment: Callable[[Task], Any]
    config: RolloutConfig
    pool: WorkerPool
    calls: ModelCalls
    warn: Callable[[str], None] = lambda text: None
    """Told what a person should know of the episodes."""


MOST_HELD_S = 0.25
"""Seconds that an agent's plain method may hold the loop before a person is told."""


MADE_BY_BASE = ("messages", "_turn_begin")
"""Attributes of an agent that it lacks where its class forgot `super().__init__()`."""


class EpisodeFailed(Exception):
    """Ends an episode; carries what the trajectory will say about it."""

    def __init__(self, failure: Failure):
        super().__init__(failure.error)
        self.failure = failure


class Episode:
    """One run of an agent in an environment; owned by the loop."""

    def __init__(self, world: World, task: Task, *, group_id: str, index: int, seed: int):
        self._world, self._task, self._group_id, self._index, self._seed = world, task, group_id, index, seed
        self._session = f"{group_id}/{index}"
        self._environment = OpenEnvironment(lambda: world.make_environment(task), world.pool)
        self._transcript = Transcript(world.chat)
        self._agent: Any = None
        self._turns: list[Turn] = []
        self._reward_sum, self._parts = 0.0, dict[str, float]()
        self._truncation: Truncation | None = None
        self._failure: Failure | None = None
        limits: dict[StepPart, float] = {"tool": world.config.tool_timeout_s, "reward": world.config.reward_timeout_s}
        self._part_timeouts_s = limits
        self._now = Deadline("reset", world.config.reset_timeout_s, self._part_timeouts_s)

    def in_flight(self) -> EpisodeInFlight:
        """Where it is now, for displays and the watchdog."""
        now, part = self._now, self._now.part
        turn, where = len(self._turns), (self._group_id, self._index)
        if part is not None:
            return EpisodeInFlight(*where, turn, part.kind, part.since_ns, part.name)
        return EpisodeInFlight(*where, turn, now.stage, now.since_ns, "" if now.begun else "waiting for a worker")

    async def run(self) -> Trajectory:
        """Play it to its end. Never raises for what belongs to the episode: that is in the record.

        Raises:
            EngineError: the engine died; the whole run ends.
        """
        start_ns, self._player = now_ns(), asyncio.current_task()
        judge = EngineJudge(self._world.engine, self._world.chat, self._session, seed=self._seed)
        place = Place(id(self._world), self._group_id, self._index)
        with tagged(group=self._group_id, episode=self._index), playing(place), judged_by(judge), span("rollout"):
            limit_s = self._world.config.episode_timeout_s
            limit = TimeLimit(limit_s, self._world.engine.prepared_s)
            try:
                with limit.scope:
                    limit.begin()
                    await self._play()
                if limit.scope.cancel_called:
                    self._truncation = "timeout"
                    what = f"The episode took longer than {limit_s} s; it was in {self._now.stage}."
                    self._failure = Failure("episode", what, "", len(self._turns))
            except EpisodeFailed as ended:
                self._failure = ended.failure
            finally:
                limit.end()
                self._world.engine.release(self._session)
                await self._close()
        return self._record(start_ns)

    async def _play(self) -> None:
        config = self._world.config
        self._agent = self._guarded("agent", self._world.make_agent)
        reset = await self._bounded("reset", config.reset_timeout_s, self._environment.reset)
        observation, info = self._guarded("reset", reset_result, reset)
        await self._ask_agent("update_from_env", observation, 0.0, False, info)
        for _ in range(config.max_turns):
            prompt = self._guarded("agent", lambda: self._transcript.prompt(self._agent.messages))
            completion = await self._sample(prompt)
            if not completion.tokens:
                self._truncation = "context"
                return
            if await self._act(completion, self._world.chat.response(prompt, completion.tokens)):
                return
            if completion.finish_reason == "context":
                self._truncation = "context"
                return
        self._truncation = "max_turns"

    async def _sample(self, prompt: tuple[int, ...]) -> Completion:
        turn = len(self._turns)
        request = GenerationRequest(f"{self._session}/{turn}", self._session, prompt, self._sampling(turn))
        completion = await self._bounded(
            "model", self._world.config.model_timeout_s, lambda begin: self._generate(begin, request)
        )
        self._transcript.sampled(completion)
        return completion

    async def _ask_agent(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the agent by its name, plain or async, on the loop that owns it.

        A plain one cannot be cut short; how long it held the loop is told if that was long.
        """
        began_ns = now_ns()
        with span("agent", turn=len(self._turns)):
            result, waits = self._guarded("agent", lambda: _called(getattr(self._agent, method), *args, **kwargs))
        if (held_s := (now_ns() - began_ns) / 1e9) > MOST_HELD_S:
            self._world.warn(
                f"An agent's {method} held the loop for {held_s:.1f} s, and all episodes with it. Make "
                "it async, or move what blocks into the environment or a tool, which run on threads."
            )
        if not waits:
            return result
        return await self._bounded("agent", self._world.config.step_timeout_s, partial(_begun, result))

    async def _generate(self, begin: Begin, request: GenerationRequest) -> Completion:
        begin()
        found = await self._world.engine.generate(request)
        self._world.calls.add(request, found)
        parts = {"queued_s": found.queued_s, "prefill_s": found.prefill_s, "decode_s": found.decode_s}
        self._timed.tag(tokens=len(found.tokens), prefilled=found.num_prefilled, **parts)
        return found

    async def _act(self, completion: Completion, response: str) -> bool:
        model_s = (now_ns() - self._now.since_ns) / 1e9
        action = await self._ask_agent("update_from_model", response, finish_reason=completion.finish_reason)
        self._guarded("agent", lambda: self._agent.record_response(response))
        step = partial(self._environment.step, action=action)
        result = await self._bounded("step", self._world.config.step_timeout_s, step)
        step_s = (now_ns() - self._now.since_ns) / 1e9
        result = self._guarded("step", step_result, result)
        turn = Turn(
            response=response,
            action=action,
            observation=result.observation,
            reward=result.reward,
            finish_reason=completion.finish_reason,
            num_sampled=len(completion.tokens),
            model_s=model_s,
            step_s=step_s,
            info=result.info,
        )
        self._guarded("reward", self._count, turn)
        self._turns.append(turn)
        await self._ask_agent("update_from_env", result.observation, result.reward, result.done, dict(result.info))
        if result.done:
            cut = "max_tokens" if completion.finish_reason == "length" else None
            self._truncation = result.info.get("truncation", cut)
        return result.done

    def _count(self, turn: Turn) -> None:
        """Add the turn's reward and its parts to those before; the sums must be rewards, too."""
        total = finite(self._reward_sum + turn.reward, "the episode so far")
        for name, part in turn.info.get("reward_parts", {}).items():
            self._parts[name] = finite(self._parts.get(name, 0.0) + part, f"part {name!r} of the episode so far")
        self._reward_sum = total

    def _sampling(self, turn: int) -> SamplingParams:
        config = self._world.config
        return SamplingParams(
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            min_p=config.min_p,
            stop=tuple(config.stop),
            seed=stable_seed(self._seed, turn),
        )

    async def _close(self) -> None:
        """Close the environment, also when the run is being cancelled."""
        with anyio.CancelScope(shield=True):
            try:
                await self._bounded("close", self._world.config.close_timeout_s, self._environment.close)
            except EpisodeFailed as failed:
                self._failure = self._failure or failed.failure

    async def _bounded(self, stage: EpisodeStage, timeout_s: float, call: Callable[[Begin], Awaitable[Any]]) -> Any:
        """Await `call(begin)` with a deadline from `begin()` on; what goes wrong ends the episode with its stage."""
        prepared_s = self._world.engine.prepared_s
        self._now = now = Deadline(stage, timeout_s, self._part_timeouts_s, prepared_s if stage == "model" else None)
        try:
            with now.scope, watched(now.watch), span(_SPANS[stage], turn=len(self._turns)) as self._timed:
                result = await call(now.begin)
                await anyio.lowlevel.checkpoint_if_cancelled()  # user code may have swallowed it: then this is late
                return result
        except EngineError as error:
            if stage == "model":
                raise
            raise self._failed(stage, error) from error  # of another engine, in user code
        except BaseException as error:  # user code may raise anything: it ends this episode, not the run
            if is_interrupt(error) or self._is_ending(error):
                raise
            raise self._failed(stage, as_error(error)) from error
        finally:
            now.end()
        late, what = now.late()
        raise EpisodeFailed(Failure(late, what, "", len(self._turns)))

    def _guarded(self, stage: EpisodeStage, fn: Callable[..., Any], *args: Any) -> Any:
        try:
            return fn(*args)
        except BaseException as error:  # user code, as above; nobody cancels what does not wait
            if is_interrupt(error):
                raise
            raise self._failed(stage, as_error(error)) from error

    def _is_ending(self, error: BaseException) -> bool:
        """Whether this task is cancelled, or its coroutine closed, and no user code raised the like by itself."""
        if isinstance(error, GeneratorExit):
            return asyncio.current_task() is not self._player
        return isinstance(error, asyncio.CancelledError) and anyio.get_current_task().has_pending_cancellation()

    def _failed(self, stage: EpisodeStage, error: BaseException) -> EpisodeFailed:
        for kind, named in _STAGES.items():
            stage = named if isinstance(error, kind) else stage
        text = shown(error, lambda raised: "".join(traceback.format_exception(raised)))
        lines = [line for line in text.splitlines() if line.strip()]
        return EpisodeFailed(Failure(stage, f"{lines[-1]}{self._hint(error)}", text, len(self._turns)))

    def _hint(self, error: BaseException) -> str:
        """What to do where an agent lacks what its base class would have made."""
        if not isinstance(error, AttributeError) or error.obj is not self._agent or error.name not in MADE_BY_BASE:
            return ""
        return f". Call super().__init__() in the __init__ of {type(self._agent).__name__}."

    def _reward(self) -> float:
        """The reward that counts, by the rule for how the episode was cut."""
        rule = _rule(self._world.config, self._truncation)
        if rule == "leave_out":
            return math.nan
        return 0.0 if rule == "no_reward" else math.fsum(turn.reward for turn in self._turns)

    def _messages(self) -> tuple[Message, ...]:
        """What was said, as far as the agent can tell; where it cannot, the episode has failed."""
        try:
            return self._guarded("agent", lambda: tuple(dict(m) for m in self._agent.messages if isinstance(m, dict)))
        except EpisodeFailed as ended:
            self._failure = self._failure or ended.failure
            return ()

    def _record(self, start_ns: int) -> Trajectory:
        messages = () if self._agent is None else self._messages()
        failed = self._failure is not None and self._failure.stage not in ("close", "episode")
        return Trajectory(
            task=self._task,
            group_id=self._group_id,
            episode=self._index,
            rows=self._transcript.rows(),
            turns=tuple(self._turns),
            messages=messages,
            reward=math.nan if failed else self._reward(),
            reward_parts=dict(self._parts),
            truncation=self._truncation,
            failure=self._failure,
            start_ns=start_ns,
            end_ns=now_ns(),
        )


def _called(method: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, bool]:
    """What a call gives, and whether it must be awaited."""
    result = method(*args, **kwargs)
    return result, inspect.isawaitable(result)


async def _begun(awaitable: Awaitable[Any], begin: Begin) -> Any:
    begin()
    return await awaitable


def _rule(config: RolloutConfig, truncation: Truncation | None) -> TruncationRule:
    rules: dict[Truncation, TruncationRule] = {
        "max_tokens": config.on_max_tokens,
        "context": config.on_context,
        "timeout": config.on_timeout,
        "max_turns": config.on_max_turns,
    }
    return "train" if truncation is None else rules[truncation]


_SPANS: dict[EpisodeStage, Any] = {
    "reset": "reset",
    "agent": "agent",
    "model": "model_call",
    "step": "step",
    "close": "close",
}
_STAGES: dict[type[Exception], EpisodeStage] = {
    RewardError: "reward",
    ToolError: "tool",
    AgentError: "agent",
}


def stable_seed(*parts: Any) -> int:
    """A 31-bit seed that depends on the parts alone, in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
