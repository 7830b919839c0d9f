"""The verdict: true numbers in words, and advice that fits the cause."""

import subprocess
import sys

from agentlab.tracing import Span
from agentlab.types import Counts, EngineStats, RunSnapshot
from agentlab.viz import diagnose

SECOND = 1_000_000_000


def s(stage: str, start: float, end: float, **tags) -> Span:
    return Span(stage, round(start * SECOND), round(end * SECOND), "t", tags)


def snapshot(**fields) -> RunSnapshot:
    return RunSnapshot(name="run", status="running", step=1, steps=2, start_ns=0, now_ns=10 * SECOND, **fields)


def test_a_run_that_waits_for_a_tool_is_told_so_with_numbers_and_advice():
    spans = [s("decode", 0, 4), s("step", 4, 10), s("tool", 4, 10, tool="calculator")]
    verdict = diagnose(snapshot(max_concurrency=16), spans)
    assert verdict.utilisation == 0.4
    assert dict(verdict.causes) == {"tool": 0.6}
    assert verdict.sentence == ("The device was busy 40% of 10.0 s (sampling 40%); the rest it waited for tools (60%).")
    assert "Tool calculator: median 6.00 s, p95 6.00 s over 1 calls." in verdict.findings
    assert verdict.advice == ("Raise max_concurrency from 16 to about 40: other episodes can sample while these wait.",)
    assert str(verdict).splitlines()[0] == verdict.sentence
    assert repr(verdict) == str(verdict)


def test_a_busy_device_needs_no_change():
    verdict = diagnose(snapshot(), [s("decode", 0, 9), s("tool", 9, 10)])
    assert verdict.advice[0].startswith("Nothing: the device is the bottleneck")


def test_advice_looks_at_slots_before_episodes():
    engine = EngineStats(num_running=8, num_slots=8, num_waiting=5)
    verdict = diagnose(snapshot(max_concurrency=16, engine=engine), [s("decode", 0, 4), s("tool", 4, 10)])
    assert "raise num_slots" in verdict.advice[0]
    assert "Slots in use: 8 of 8, 5 requests waiting for one." in verdict.findings


def test_queueing_in_the_engine_and_the_use_of_its_cache_are_findings():
    engine = EngineStats(tokens_prefilled=250, tokens_cached=750, cache_used=0.4)
    spans = [s("decode", 0, 4), *(s("queueing", 0, 0.1 * n) for n in range(1, 11))]
    findings = diagnose(snapshot(engine=engine), spans).findings
    assert "Model calls queued in the engine: median 0.50 s, p95 1.00 s." in findings
    assert "Prompts: 75% of 1,000 tokens came from the engine's cache." in findings
    assert "The engine's cache is 40% in use." in findings


def test_an_engine_that_never_let_a_call_wait_and_tells_nothing_of_its_cache_is_not_spoken_of():
    findings = diagnose(snapshot(), [s("decode", 0, 4), s("queueing", 0, 0.001)]).findings
    assert not any("queued" in text or "cache" in text for text in findings)


def test_staleness_failures_and_notes_are_findings():
    counts = Counts(admitted=10, stale=3, trained=7)
    verdict = diagnose(snapshot(counts=counts, failures={"tool": 2}, notes=("hung",)), [s("decode", 0, 1)])
    assert "3 of 10 groups were dropped as stale." in verdict.findings
    assert "Failed episodes by stage: tool 2." in verdict.findings
    assert "hung" in verdict.findings


def test_causes_come_longest_first():
    spans = [s("decode", 0, 1), s("tool", 1, 3), s("train", 3, 6)]
    assert list(diagnose(snapshot(), spans).causes) == ["learner", "tool"]


def test_nothing_executed_is_said_plainly():
    assert str(diagnose(snapshot(), [])) == "Nothing has executed on the device yet."


def test_the_verdict_needs_no_plotting_library():
    code = "import sys; from agentlab.viz import diagnose; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_device_that_was_hardly_busy_is_told_without_empty_brackets():
    verdict = diagnose(snapshot(), [s("decode", 0, 0.01), s("tool", 0.01, 10)])
    assert verdict.sentence == "The device was busy 0% of 10.0 s; the rest it waited for tools (100%)."


def test_notes_that_say_the_same_of_several_updates_are_said_once():
    notes = (
        "Update 3: all equal.",
        "A thread hangs.",
        "Update 4: all equal.",
        "Update 5: all equal.",
        "Update 5: new.",
    )
    found = diagnose(snapshot(notes=notes), [s("decode", 0, 1)]).findings
    assert found[-3:] == ("Updates 3, 4 and 5: all equal.", "A thread hangs.", "Update 5: new.")
