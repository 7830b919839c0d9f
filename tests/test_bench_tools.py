"""The bench of tools measures what it says."""

from agentlab.bench import written
from agentlab.bench.tools import TURNS, added_ms, echo, played, speed_of
from agentlab.chat.syntaxes import PARSERS
from agentlab.tools import SandboxPool, Slow


def test_the_time_of_tool_and_model_is_not_counted_as_added():
    (quick,) = played(echo, 1, concurrency=1)
    (slow,) = played(Slow(echo, 0.02), 1, concurrency=1)
    assert sum(turn.info.get("tool_calls", 0) for turn in quick.turns) == TURNS
    assert (slow.end_ns - slow.start_ns) / 1e9 > TURNS * 0.02
    assert 0 < added_ms(quick) < 20 and 0 < added_ms(slow) < 20


def test_sandbox_calls_are_counted_and_checked():
    with SandboxPool(2, walls="subprocess") as pool:
        speed, alone_ms = speed_of(pool, "python", "print(6 * 7)", 4)
    assert speed > 0 and alone_ms > 0


def test_the_row_of_calls_read_back_counts_texts_of_every_format():
    seen = {form for form, _, _ in written.samples(len(written.TEMPLATES))}
    assert seen == set(written.TEMPLATES)
    assert written.NUM_TEXTS >= 10_000
    assert {syntax for syntax, _, _ in written.TEMPLATES.values()} == set(PARSERS)
