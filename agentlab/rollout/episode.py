"""One episode: reset, then model call, agent and step in turn, then close; every boundary has a deadline."""

import asyncio
import hashlib
import inspect
import math
import numbers
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from agentlab.agents import ConversationAgentBase
from agentlab.chat import ChatFormat
from agentlab.concurrency import WorkerCall, WorkerPool
from agentlab.errors import AgentError, EngineError, EnvironmentError_, RewardError, ToolError
from agentlab.inference.base import Engine
from agentlab.rollout.config import RolloutConfig
from agentlab.rollout.transcript import Transcript
from agentlab.tracing import now_ns, span, tagged
from agentlab.types import (
    Completion,
    EnvStepResult,
    EpisodeInFlight,
    EpisodeStage,
    Failure,
    GenerationRequest,
    SamplingParams,
    Task,
    Trajectory,
    Truncation,
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


class EpisodeFailed(Exception):
    """Ends an episode; carries what the trajectory will say about it."""

    def __init__(self, failure: Failure):
        super().__init__(failure.error)
        self.failure = failure


class OpenEnvironment:
    """One environment: one call at a time, closed exactly once; owned by the loop.

    A synchronous call runs on a worker. If its deadline passes, nobody else touches the
    environment: the worker closes it when the call comes back.
    """

    def __init__(self, make: Callable[[], Any], pool: WorkerPool):
        self._make, self._pool = make, pool
        self._environment: Any = None
        self._call: WorkerCall[Any] | None = None
        self._closed = False

    async def reset(self) -> Any:
        """Make the environment and reset it."""
        await self._invoke(self._build)
        return await self._invoke(self._environment.reset)

    async def step(self, action: Any) -> Any:
        return await self._invoke(self._environment.step, action)

    async def close(self) -> None:
        """Close it, unless a late call still holds it: then the worker does."""
        late = self._call is not None and self._call.abandoned
        if self._closed or late or self._environment is None:
            return
        self._closed = True
        await self._invoke(self._environment.close)

    async def _invoke(self, fn: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(fn):
            return await fn(*args)
        self._call = self._pool.prepare(fn, *args, on_late=self._close_late)
        result = await self._call.wait()
        return await result if inspect.isawaitable(result) else result

    def _build(self) -> None:
        self._environment = self._make()

    def _close_late(self) -> None:
        if self._environment is None or self._closed:
            return
        self._closed = True
        closing = self._environment.close()
        if inspect.isawaitable(closing):
            asyncio.run(_awaited(closing))


class Episode:
    """One run of an agent in an environment; owned by the loop."""

    def __init__(self, world: World, task: Task, *, group_id: str, index: int, seed: int):
        self._world, self._task, self._group_id, self._index, self._seed = world, task, group_id, index, seed
        self._session = f"{group_id}/{index}"
        self._environment = OpenEnvironment(lambda: world.make_environment(task), world.pool)
        self._transcript = Transcript(world.chat)
        self._agent: Any = None
        self._turns: list[Turn] = []
        self._truncation: Truncation | None = None
        self._failure: Failure | None = None
        self._stage: EpisodeStage = "reset"
        self._since_ns = now_ns()

    def in_flight(self) -> EpisodeInFlight:
        """Where it is now, for displays and the watchdog."""
        return EpisodeInFlight(self._group_id, self._index, len(self._turns), self._stage, self._since_ns)

    async def run(self) -> Trajectory:
        """Play it to its end. Never raises for what belongs to the episode: that is in the record.

        Raises:
            EngineError: the engine died; the whole run ends.
        """
        start_ns = now_ns()
        with tagged(group=self._group_id, episode=self._index), span("rollout"):
            try:
                with anyio.move_on_after(self._world.config.episode_timeout_s) as deadline:
                    await self._play()
                if deadline.cancelled_caught:
                    self._truncation = "timeout"
            except EpisodeFailed as ended:
                self._failure = ended.failure
            finally:
                self._world.engine.release(self._session)
                await self._close()
        return self._record(start_ns)

    async def _play(self) -> None:
        config = self._world.config
        self._agent = self._guarded("agent", self._world.make_agent)
        reset = await self._bounded("reset", config.reset_timeout_s, self._environment.reset)
        observation, info = self._guarded("reset", _reset_result, reset)
        self._guarded("agent", self._agent.update_from_env, observation, 0.0, False, info)
        for _ in range(config.max_turns):
            completion = await self._sample()
            if not completion.tokens:
                self._truncation = "context"
                return
            if await self._act(completion):
                return
            if completion.finish_reason == "context":
                self._truncation = "context"
                return
        self._truncation = "max_turns"

    async def _sample(self) -> Completion:
        turn = len(self._turns)
        prompt = self._guarded("agent", self._transcript.prompt, self._agent.messages)
        request = GenerationRequest(f"{self._session}/{turn}", self._session, prompt, self._sampling(turn))
        completion = await self._bounded(
            "model", self._world.config.model_timeout_s, lambda: self._world.engine.generate(request)
        )
        self._transcript.sampled(completion)
        return completion

    async def _act(self, completion: Completion) -> bool:
        model_s = (now_ns() - self._since_ns) / 1e9
        response = self._world.chat.decode(completion.tokens)
        action = self._guarded("agent", self._agent.update_from_model, response)
        self._guarded("agent", self._agent.record_response, response)
        step = lambda: self._environment.step(action)  # noqa: E731
        result = await self._bounded("step", self._world.config.step_timeout_s, step)
        step_s = (now_ns() - self._since_ns) / 1e9
        result = self._guarded("step", _step_result, result)
        reward = self._guarded("reward", _finite_reward, result.reward)
        turn = Turn(
            response=response,
            action=action,
            observation=result.observation,
            reward=reward,
            finish_reason=completion.finish_reason,
            num_sampled=len(completion.tokens),
            model_s=model_s,
            step_s=step_s,
            info=dict(result.info),
        )
        self._turns.append(turn)
        self._guarded("agent", self._agent.update_from_env, result.observation, reward, result.done, result.info)
        if result.done:
            cut = "max_tokens" if completion.finish_reason == "length" else None
            self._truncation = result.info.get("truncation", cut)
        return result.done

    def _sampling(self, turn: int) -> SamplingParams:
        config = self._world.config
        return SamplingParams(
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
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

    async def _bounded(self, stage: EpisodeStage, timeout_s: float, call: Callable[[], Awaitable[Any]]) -> Any:
        """Await `call()` with a deadline; what goes wrong ends the episode with its stage."""
        self._stage, self._since_ns = stage, now_ns()
        try:
            with anyio.move_on_after(timeout_s), span(_SPANS[stage], turn=len(self._turns)):
                return await call()
        except EngineError:
            raise
        except Exception as error:  # user code: whatever it raises is this episode's end, not the run's
            raise self._failed(stage, error) from error
        raise EpisodeFailed(Failure(stage, f"{stage} took longer than {timeout_s} s", "", len(self._turns)))

    def _guarded(self, stage: EpisodeStage, fn: Callable[..., Any], *args: Any) -> Any:
        try:
            return fn(*args)
        except Exception as error:  # user code, as above
            raise self._failed(stage, error) from error

    def _failed(self, stage: EpisodeStage, error: Exception) -> EpisodeFailed:
        typed: EpisodeStage = next((s for kind, s in _STAGES.items() if isinstance(error, kind)), stage)
        text = "".join(traceback.format_exception(error))
        return EpisodeFailed(Failure(typed, f"{type(error).__name__}: {error}", text, len(self._turns)))

    def _record(self, start_ns: int) -> Trajectory:
        lost = (self._failure is not None and self._failure.stage != "close") or self._truncation == "timeout"
        parts: dict[str, float] = {}
        for turn in self._turns:
            for name, value in turn.info.get("reward_parts", {}).items():
                parts[name] = parts.get(name, 0.0) + value
        return Trajectory(
            task=self._task,
            group_id=self._group_id,
            episode=self._index,
            rows=self._transcript.rows(),
            turns=tuple(self._turns),
            messages=tuple(dict(m) for m in self._agent.messages) if self._agent is not None else (),
            reward=math.nan if lost else math.fsum(turn.reward for turn in self._turns),
            reward_parts=parts,
            truncation=self._truncation,
            failure=self._failure,
            start_ns=start_ns,
            end_ns=now_ns(),
        )


_SPANS: dict[EpisodeStage, Any] = {"reset": "reset", "model": "model_call", "step": "step", "close": "close"}
_STAGES: dict[type[Exception], EpisodeStage] = {
    RewardError: "reward",
    ToolError: "tool",
    AgentError: "agent",
    EnvironmentError_: "step",
}


def stable_seed(*parts: Any) -> int:
    """A 31-bit seed that depends on the parts alone, in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _reset_result(result: Any) -> tuple[Any, Any]:
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    raise EnvironmentError_(f"reset() must return (observation, info dictionary), got {result!r:.80}.")


def _step_result(result: Any) -> EnvStepResult:
    if isinstance(result, EnvStepResult):
        return result
    raise EnvironmentError_(f"step() must return an EnvStepResult, got {type(result).__name__}: {result!r:.80}.")


def _finite_reward(reward: Any) -> float:
    if isinstance(reward, numbers.Real) and math.isfinite(reward):
        return float(reward)
    raise RewardError(f"A reward must be a finite number, got {reward!r:.80}; return 0.0 for no reward.")
