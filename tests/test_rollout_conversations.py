"""Demonstrations: what the assistant says is to be learned, token by token as the engine would sample it."""

import asyncio
import itertools

import pytest

from agentlab.chat import ChatFormat, Demonstrator, read_conversation
from agentlab.errors import ConfigError
from agentlab.inference.scripted import ByteTokenizer
from agentlab.rollout.conversations import ConversationFeed, check_conversations, demonstration, in_order
from agentlab.rollout.ledger import Progress
from agentlab.rollout.transcript import Transcript
from agentlab.types import Completion


@pytest.fixture(scope="module")
def chat():
    return ChatFormat(ByteTokenizer())


def message(role, content):
    return {"role": role, "content": content}


def shown(chat, row, syntax="auto"):
    """The rows of a demonstration."""
    return demonstration(Demonstrator(chat, syntax), read_conversation(row, 0), "0:x").trajectories[0].rows


TALK = [
    message("system", "Be brief."),
    message("user", "2+2?"),
    message("assistant", "c(2+2)"),
    message("tool", "4"),
    message("assistant", "4 <|im_end|>"),
    message("user", "Thanks."),
]


def test_only_what_the_assistant_says_and_the_end_of_its_turns_is_learned(chat):
    (row,) = shown(chat, TALK)
    learned = [token for token, said in zip(row.tokens, row.loss_mask, strict=True) if said]
    end = ByteTokenizer().eos_token_id
    assert learned == [*b"c(2+2)", end, *b"4 <|im_end|>", end], "a special token that is spelled out stays text"
    assert "Thanks" not in ByteTokenizer().decode(row.tokens)


def test_it_is_the_row_that_a_rollout_of_the_same_words_would_record(chat):
    transcript = Transcript(chat)
    for place in (2, 4):
        transcript.prompt(TALK[:place])
        said = chat.turn(TALK[place]["content"])
        transcript.sampled(Completion("r", said, (0.0,) * len(said), (0,) * len(said), "stop"))
    (played,) = transcript.rows()
    (row,) = shown(chat, TALK)
    assert (row.tokens, row.loss_mask) == (played.tokens, played.loss_mask)


def test_a_turn_with_weight_0_is_shown_and_not_learned_and_others_carry_their_weight(chat):
    turns = [
        {**m, "weight": w} if m["role"] == "assistant" else m for m, w in zip(TALK, [0, 0, 0, 0, 0.5, 0], strict=True)
    ]
    (row,), (plain,) = shown(chat, turns), shown(chat, TALK)
    end = ByteTokenizer().eos_token_id
    assert row.tokens == plain.tokens and plain.weights == ()
    assert [t for t, said in zip(row.tokens, row.loss_mask, strict=True) if said] == [*b"4 <|im_end|>", end]
    assert row.weights == tuple(0.5 * said for said in row.loss_mask)


def test_what_the_template_does_not_know_is_told_in_a_note(chat):
    call = {"name": "calculator", "arguments": {"expression": "2+2"}}
    talk = [message("user", "2+2?"), {"role": "assistant", "content": None, "tool_calls": [call]}, message("tool", "4")]

    async def main(syntax):
        feed = ConversationFeed(chat, tool_parser_name=syntax, per_step=1, max_tokens=1000)
        await feed.produce(iter([talk]))
        return feed.notes

    assert any(
        "written as a ToolAgent with the syntax 'hermes' reads them" in note for note in asyncio.run(main("auto"))
    )
    assert not any("syntax" in note for note in asyncio.run(main("json")))


@pytest.mark.parametrize("wrong", [[message("user", "a")], [message("user", "a"), message("assistant", None)]])
def test_a_list_is_refused_before_it_is_begun_wherever_it_has_a_malformed_one(wrong):
    with pytest.raises(ConfigError, match="Conversation 2"):
        check_conversations([TALK, TALK, wrong])


def test_no_conversations_are_refused():
    for wrong, reason in (([], "at least one"), ("x", "iterable"), (None, "iterable"), ([[]], "Conversation 0")):
        with pytest.raises(ConfigError, match=reason):
            check_conversations(wrong)


def test_a_list_is_gone_through_again_in_another_order_and_anything_else_once():
    first = list(itertools.islice(in_order(list(range(20)), seed=1), 60))
    assert [sorted(first[start : start + 20]) for start in (0, 20, 40)] == [list(range(20))] * 3
    assert first[:20] != first[20:40] and first == list(itertools.islice(in_order(list(range(20)), seed=1), 60))
    assert list(in_order(iter(range(5)), seed=1)) == [0, 1, 2, 3, 4]


def consume(chat, conversations, batches, progress=None, max_tokens=1000):
    async def main():
        feed = ConversationFeed(chat, per_step=2, max_tokens=max_tokens, progress=progress)
        producing = asyncio.ensure_future(feed.produce(conversations))
        seen = []
        for _ in range(batches):
            batch = await feed.next_batch(2)
            feed.trained(batch)
            feed.advance(0)
            seen.append([group.task.id for group in batch])
        told = feed.progress()
        producing.cancel()
        await asyncio.wait([producing])
        feed.finish()
        return seen, told, feed.gate.counts

    return asyncio.run(main())


def conversations(count):
    return [
        {"id": f"c{n}", "messages": [message("user", "?" * n), message("assistant", "x" * n)]} for n in range(count)
    ]


def test_a_resumed_feed_gives_what_the_unbroken_one_would_have_given(chat):
    whole, _, _ = consume(chat, conversations(5), 7)
    before, progress, _ = consume(chat, conversations(5), 3)
    after, _, counts = consume(chat, conversations(5), 4, progress=progress)
    assert before + after == whole and counts.trained == 14


def test_too_long_ones_are_left_out_and_counted(chat):
    seen, _, counts = consume(chat, iter(conversations(9)), 4, max_tokens=32)
    assert sum(map(len, seen)) == counts.trained == 7 and counts.failed == 2


def test_a_finite_stream_ends_with_what_is_left(chat):
    seen, progress, _ = consume(chat, iter(conversations(5)), 4)
    assert seen == [["c0", "c1"], ["c2", "c3"], ["c4"], []] and progress == Progress(
        task_ids=("c0", "c1", "c2", "c3", "c4"), open=(), counts=progress.counts, steps=4
    )
