"""An engine that answers from a script, with no model and no accelerator library."""

import inspect
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio

from agentlab.chat import ChatFormat
from agentlab.concurrency import Reply
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.base import Engine
from agentlab.inference.stopping import stop_string_end
from agentlab.tracing import now_ns, record
from agentlab.types import Completion, EngineStats, FinishReason, GenerationRequest, Policy

Answer = str | Sequence[int]
"""Text, to which the end-of-turn token is added; or the token ids exactly as sampled."""
Script = Callable[[GenerationRequest, str], Answer | Awaitable[Answer]]
"""From a request and the text of its prompt to the answer; plain or async."""


class ByteTokenizer:
    """Bytes as tokens, with ChatML turns: what agentlab uses of a transformers tokenizer, and no more."""

    special_tokens = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    chat_template = "ChatML"
    name_or_path = "bytes"
    bos_token = None
    bos_token_id = None
    unk_token_id = None
    eos_token = "<|im_end|>"
    pad_token = "<|endoftext|>"

    def __init__(self) -> None:
        self._ids = {text: 256 + index for index, text in enumerate(self.special_tokens)}
        self._texts = {id: text for text, id in self._ids.items()}
        self._split = re.compile("(" + "|".join(re.escape(text) for text in self.special_tokens) + ")")
        self.eos_token_id = self._ids[self.eos_token]
        self.pad_token_id = self._ids[self.pad_token]
        self.all_special_tokens = list(self.special_tokens)
        self.all_special_ids = list(self._texts)
        self.vocab_size = 256 + len(self._ids)

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; the texts of special tokens become these tokens. Nothing is added."""
        ids: list[int] = []
        for part in self._split.split(text):
            ids += [self._ids[part]] if part in self._ids else part.encode()
        return ids

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens)}

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        """Text of token ids; bytes that are no UTF-8 become replacement characters."""
        data = bytearray()
        for id in [token_ids] if isinstance(token_ids, int) else token_ids:
            if id < 256:
                data.append(id)
            elif not skip_special_tokens:
                data += self._texts[int(id)].encode()
        return data.decode(errors="replace")

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Ids of special tokens or single characters of one byte; None for any other text."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        data = tokens.encode()
        return self._ids.get(tokens, data[0] if len(data) == 1 else None)

    def apply_chat_template(
        self,
        conversation: Sequence[dict[str, Any]],
        tools: Any = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **_: Any,
    ) -> Any:
        """The conversation as ChatML text, or its token ids."""
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in conversation)
        text += "<|im_start|>assistant\n" if add_generation_prompt else ""
        return self.encode(text) if tokenize else text


class ScriptedEngine(Engine):
    """Answers from a script. Owned by the loop: it has no thread of its own.

    Args:
        script: One text for every request; a sequence of answers, used in turn and then over again;
            or a callable that gets the request and its prompt as text, plain or async.
        tokenizer: A `ByteTokenizer` when None.
        token_rate: Tokens per second of one sequence; None answers at once. Waits are
            `anyio.sleep`, so that a virtual clock works.
        latency_s: Seconds before the first token.
        num_slots: Most requests in progress; the others wait, first come first served.
        max_context: Most tokens that prompt and completion have together.
        logprob: The log-probability given for every token.
    """

    def __init__(
        self,
        script: Answer | Sequence[Answer] | Script,
        tokenizer: Any = None,
        *,
        token_rate: float | None = None,
        latency_s: float = 0.0,
        num_slots: int = 64,
        max_context: int = 4096,
        logprob: float = -1.0,
    ):
        if num_slots < 1:
            raise ConfigError(f"num_slots must be at least 1, got {num_slots}.")
        if token_rate is not None and token_rate <= 0:
            raise ConfigError(f"token_rate must be above 0 tokens per second, or None, got {token_rate}.")
        self.tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
        self.max_context = max_context
        self.requests: list[GenerationRequest] = []
        """Every request so far, in the order of arrival."""
        self.policies: list[Policy] = []
        """Every policy installed so far."""
        self.released: list[str] = []
        """Every session released so far."""
        self._script = script if callable(script) else _in_turn(script)
        self._token_s = 0.0 if token_rate is None else 1 / token_rate
        self._latency_s = latency_s
        self._logprob = logprob
        self._num_running = 0
        self._waiting: deque[Reply[None]] = deque()
        self._scopes: set[anyio.CancelScope] = set()
        self._death: Reply[None] | None = None
        self._error: BaseException | None = None
        self._cached: dict[str, tuple[int, ...]] = {}
        chat = ChatFormat(self.tokenizer)
        self._own_tokenizer, self._end_ids = chat.tokenizer, frozenset(chat.stop_token_ids)
        self._stats = EngineStats(num_slots=num_slots)

    async def serve(self) -> None:
        """See `Engine.serve`."""
        if self._error is not None:
            raise self._dead()
        self._death = Reply()
        self._admit()
        try:
            await self._death.wait()
            raise self._dead()
        finally:
            self._death = None
            self._fail_calls()

    def kill(self, error: BaseException | None = None) -> None:
        """Die: `serve` and every `generate`, now and later, raise EngineError, caused by `error`."""
        self._error = RuntimeError("The engine was killed by its script.") if error is None else error
        if self._death is not None:
            self._death.set(None)
        self._fail_calls()

    async def generate(self, request: GenerationRequest) -> Completion:
        """See `Engine.generate`."""
        if self._error is not None:
            raise self._dead()
        self.requests.append(request)
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        turn: Reply[None] = Reply()
        self._waiting.append(turn)
        self._admit()
        try:
            with scope:
                await turn.wait()
                return await self._answer(request)
        finally:
            self._scopes.remove(scope)
            self._leave(turn)
        raise self._dead()

    def update_policy(self, policy: Policy) -> None:
        """See `Engine.update_policy`."""
        if self._error is not None:
            raise self._dead()
        self.policies.append(policy)
        self._stats = replace(self._stats, policy_version=policy.version)

    def release(self, session: str) -> None:
        """See `Engine.release`."""
        self.released.append(session)
        self._cached.pop(session, None)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return replace(self._stats, num_running=self._num_running, num_waiting=len(self._waiting))

    def _admit(self) -> None:
        while self._death is not None and self._waiting and self._num_running < self._stats.num_slots:
            self._num_running += 1
            self._waiting.popleft().set(None)

    def _leave(self, turn: Reply[None]) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        else:
            self._num_running -= 1
            self._admit()

    async def _answer(self, request: GenerationRequest) -> Completion:
        room = self.max_context - len(request.prompt)
        if room < 1:
            return Completion(request.id, (), (), (), "context")
        answer = self._script(request, self._own_tokenizer.decode(list(request.prompt)))
        sampled, reason = self._cut(await answer if inspect.isawaitable(answer) else answer, request, room)
        started_s, started_ns = anyio.current_time(), now_ns()
        await anyio.sleep(self._latency_s)
        first_ns = now_ns()
        versions: list[int] = []
        for _ in sampled:
            if self._token_s:
                await anyio.sleep(self._token_s)
            versions.append(self._stats.policy_version)
        if self._latency_s:
            record("prefill", started_ns, first_ns, num_sequences=1, tokens=len(request.prompt))
        if self._token_s:
            record("decode", first_ns, now_ns(), num_sequences=1, tokens=len(sampled))
        num_prefilled = self._count(request, sampled)
        return Completion(
            request_id=request.id,
            tokens=sampled,
            logprobs=(self._logprob,) * len(sampled),
            policy_versions=tuple(versions),
            finish_reason=reason,
            num_prefilled=num_prefilled,
            prefill_s=self._latency_s,
            decode_s=anyio.current_time() - started_s - self._latency_s,
        )

    def _cut(self, answer: Answer, request: GenerationRequest, room: int) -> tuple[tuple[int, ...], FinishReason]:
        """The answer's tokens up to where sampling would have ended, and why it ended there."""
        sampling, tokenizer = request.sampling, self._own_tokenizer
        if isinstance(answer, str):
            answer = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        sampled = [int(token) for token in answer]
        limit = min(len(sampled), sampling.max_tokens, room)
        ends = self._end_ids.union(sampling.stop_token_ids)
        stopped = next((n + 1 for n, token in enumerate(sampled[:limit]) if token in ends), None)
        by_string = stop_string_end(sampled[:limit], sampling.stop, tokenizer)
        stops = [end for end in (stopped, by_string) if end is not None]
        if stops:
            return tuple(sampled[: min(stops)]), "stop"
        if limit < len(sampled) and room < sampling.max_tokens:
            return tuple(sampled[:limit]), "context"
        return tuple(sampled[:limit]), "length" if limit == sampling.max_tokens else "stop"

    def _count(self, request: GenerationRequest, sampled: tuple[int, ...]) -> int:
        before = self._cached.get(request.session, ())
        num_cached = len(before) if request.prompt[: len(before)] == before else 0
        self._cached[request.session] = request.prompt + sampled
        num_prefilled = len(request.prompt) - num_cached
        self._stats = replace(
            self._stats,
            tokens_sampled=self._stats.tokens_sampled + len(sampled),
            tokens_prefilled=self._stats.tokens_prefilled + num_prefilled,
            tokens_cached=self._stats.tokens_cached + num_cached,
        )
        return num_prefilled

    def _fail_calls(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    def _dead(self) -> EngineError:
        if self._error is None:
            return EngineError("The engine stopped serving before it answered; serve it again and repeat the request.")
        error = EngineError(f"The inference engine died: {type(self._error).__name__}: {self._error}")
        error.__cause__ = self._error
        return error


def _in_turn(answers: Answer | Sequence[Answer]) -> Script:
    """A script that gives these answers one after the other, and then over again."""
    if not isinstance(answers, str) and not len(answers):
        raise ConfigError("A scripted engine needs at least one answer, got an empty sequence.")
    many: Sequence[Any] = [answers] if isinstance(answers, str) or all(isinstance(a, int) for a in answers) else answers
    count = 0

    def script(request: GenerationRequest, prompt: str) -> Answer:
        nonlocal count
        count += 1
        return many[(count - 1) % len(many)]

    return script
