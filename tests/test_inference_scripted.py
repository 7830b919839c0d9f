"""The scripted engine and its byte tokenizer: what only they do."""

import anyio
import pytest

from agentlab.chat import ChatFormat
from agentlab.errors import ConfigError, EngineError
from agentlab.inference.scripted import ByteTokenizer, ScriptedEngine
from agentlab.types import GenerationRequest, SamplingParams


def ask(id: str = "a", prompt: tuple[int, ...] = (1, 2, 3), **sampling: object) -> GenerationRequest:
    return GenerationRequest(id, id, prompt, SamplingParams(**sampling))


def answer_of(engine: ScriptedEngine, request: GenerationRequest):
    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            completion = await engine.generate(request)
            group.cancel_scope.cancel()
        return completion

    return anyio.run(main)


def test_text_is_answered_with_an_end_of_turn():
    completion = answer_of(ScriptedEngine("hé"), ask())
    assert completion.tokens == (*"hé".encode(), 257)
    assert completion.finish_reason == "stop"


def test_answers_are_used_in_turn_and_then_over_again():
    engine = ScriptedEngine(["x", [1, 2]])
    assert [answer_of(engine, ask()).tokens for _ in range(3)] == [(120, 257), (1, 2), (120, 257)]


def test_a_script_reads_the_prompt_and_may_be_async():
    async def script(request: GenerationRequest, prompt: str) -> str:
        await anyio.lowlevel.checkpoint()
        return prompt.upper()

    assert answer_of(ScriptedEngine(script), ask(prompt=tuple(b"hi"))).tokens == (72, 73, 257)


def test_a_script_that_raises_is_heard_by_its_caller_alone():
    def script(request: GenerationRequest, prompt: str) -> str:
        raise ValueError("no answer")

    with pytest.raises(BaseExceptionGroup) as caught:
        answer_of(ScriptedEngine(script), ask())
    assert caught.group_contains(ValueError, match="no answer")


def test_being_killed_reaches_serve_waiters_and_late_comers():
    engine = ScriptedEngine("hello", latency_s=60.0)
    heard: list[EngineError] = []

    async def waiter() -> None:
        with pytest.raises(EngineError, match="MemoryError: too small") as caught:
            await engine.generate(ask())
        heard.append(caught.value)

    async def serving() -> None:
        with pytest.raises(EngineError, match="died"):
            await engine.serve()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(serving)
            group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            engine.kill(MemoryError("too small"))
        await waiter()

    anyio.run(main)
    assert [type(error.__cause__) for error in heard] == [MemoryError, MemoryError]


@pytest.mark.parametrize("options", [{"num_slots": 0}, {"token_rate": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match="must be"):
        ScriptedEngine("x", **options)
    with pytest.raises(ConfigError, match="at least one answer"):
        ScriptedEngine([])


def test_the_byte_tokenizer_round_trips_text_and_works_with_chat_format():
    tokenizer = ByteTokenizer()
    text = "<|im_start|>user\nüñí<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([104, 105, 257], skip_special_tokens=True) == "hi"
    form = ChatFormat(tokenizer)
    prompt = form.start([{"role": "user", "content": "hi"}])
    sampled = (*b"yes", tokenizer.eos_token_id)
    both = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "?"},
    ]
    whole = prompt + sampled + form.extend(sampled, [both[-1]])
    assert tokenizer.decode(whole) == tokenizer.apply_chat_template(both, tokenize=False, add_generation_prompt=True)
