"""What the verdict predicts, against what the simulators then do; and reasons against arithmetic."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import tracing
from agentlab.agents import ModelAgent
from agentlab.bench import rollout
from agentlab.bench.rollout import ToolEnvironment, Training
from agentlab.bench.simulated import SimulatedDevice, SimulatedEngine, SimulatedLearner
from agentlab.concurrency import first_error, run_virtual
from agentlab.inference import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.run import Parts, Session
from agentlab.tracing import STAGES, Span, account, reasons
from agentlab.types import RunSnapshot
from agentlab.viz import diagnose
from agentlab.viz.replay import replay
from agentlab.viz.workload import workload_of

SECOND = 1_000_000_000


def s(stage: str, start: float, end: float, **tags) -> Span:
    return Span(stage, round(start * SECOND), round(end * SECOND), "t", tags)


def run_of(parts: Parts, updates: int):
    """(snapshot, spans, account) of a whole run on the virtual clock."""

    async def main():
        parts.orchestrator.gate.limit = updates * parts.orchestrator.config.groups_per_step
        session = Session("simulated", parts, rollout.numbered_tasks(), updates)
        await first_error(session.main)
        snapshot, spans = session.snapshot(), tracing.spans()
        return snapshot, spans, account(spans, 0, snapshot.now_ns)

    return main


def simulated(case: Training, tool_s=None):
    async def main():
        device = SimulatedDevice()
        engine = SimulatedEngine(
            lambda request: case.tokens, token_rate=rollout.TOKENS_PER_S, saturation=case.saturation, device=device
        )
        learner = SimulatedLearner(case.update_s, device=device if case.shared else None)
        orchestrator = rollout.orchestrator_of(
            engine,
            tool_s or rollout.exponential(case.tool_s),
            groups_per_step=case.groups_per_step,
            max_concurrency=case.in_flight,
            max_off_policy_steps=case.lead,
        )
        return await run_of(Parts(engine, orchestrator, learner, lambda policy: None), case.updates)()

    return run_virtual(main)


def agrees(predicted_idle: float, idle: float) -> bool:
    """Within 15 % of the share that then is idle; of a share below 13 %, within 2 points of the whole time."""
    return abs(predicted_idle - idle) <= max(0.15 * idle, 0.02)


@pytest.mark.parametrize("shared", [True, False], ids=["one device", "two devices"])
@pytest.mark.parametrize(
    ("draw", "lead", "then"),
    [("exponential", 0, (32, 0)), ("exponential", 1, (48, 1)), ("exponential", 4, (32, 4)), ("even", 0, (128, 2))],
)
def test_a_prediction_comes_true_within_15_percent(shared, draw, lead, then):
    """Where groups go stale and tools take exponential times, two draws of a short run differ by more than that."""
    case = Training(updates=8, groups_per_step=4, in_flight=16, tool_s=2.0, lead=lead, shared=shared)
    tool_s = (lambda roll: roll.uniform(1.5, 2.5)) if draw == "even" else None
    snapshot, spans, found = simulated(case, tool_s)
    load = workload_of(snapshot, spans, found)
    assert replay(load).duration_s == pytest.approx(found.duration_s, rel=0.01)
    assert replay(load).utilisation == pytest.approx(found.utilisation, abs=0.01)
    places, lead_then = then
    _, _, real = simulated(replace(case, in_flight=places, lead=lead_then), tool_s)
    predicted = replay(
        replace(load, max_concurrency=places, max_off_policy_steps=lead_then, num_slots=max(places, load.num_slots))
    )
    assert predicted.duration_s == pytest.approx(real.duration_s, rel=0.15)
    assert agrees(1 - predicted.utilisation, 1 - real.utilisation)


def test_the_verdict_advises_the_change_that_helps_and_says_how_much():
    case = Training(updates=8, groups_per_step=8, in_flight=8, tool_s=4.0, update_s=0.5, lead=1, shared=True)
    snapshot, spans, found = simulated(case)
    verdict = diagnose(snapshot, spans, found=found)
    best = verdict.predictions[-1]
    assert best.idle_now == pytest.approx(1 - found.utilisation)
    places = best.settings["max_concurrency"][1]
    lead = best.settings.get("max_off_policy_steps", (1, 1))[1]
    _, _, real = simulated(replace(case, in_flight=places, lead=lead))
    assert agrees(best.idle, 1 - real.utilisation)
    assert best.speedup == pytest.approx(found.duration_s / real.duration_s, rel=0.15)
    assert best.speedup > 2
    assert verdict.ceiling.speedup >= best.speedup * 0.99
    assert any(line.startswith(f"max_concurrency 8 -> {places}") for line in verdict.advice)
    assert any("too few episodes" in line for line in verdict.findings)
    assert any("asynchrony can reach" in line for line in verdict.findings)
    assert sum(verdict.reasons.values()) == pytest.approx(1 - verdict.utilisation)


def test_a_full_device_is_not_promised_more():
    case = Training(updates=4, groups_per_step=8, in_flight=256, tool_s=0.01, update_s=4.0, lead=4, shared=True)
    snapshot, spans, found = simulated(case)
    verdict = diagnose(snapshot, spans, found=found)
    assert found.utilisation > 0.95
    assert verdict.predictions == ()
    assert verdict.ceiling.speedup == pytest.approx(1.0, abs=0.1)


def scripted(places: int):
    async def main():
        engine = ScriptedEngine("." * 19, token_rate=20.0, num_slots=1000)
        orchestrator = RolloutOrchestrator(
            engine,
            agent_class=ModelAgent,
            env_class=ToolEnvironment,
            env_kwargs={"numbers": iter(range(10**6)), "tool_s": lambda draw: 3.0},
            config=RolloutConfig(group_size=4, groups_per_step=4, max_concurrency=places, max_off_policy_steps=1),
        )
        return await run_of(Parts(engine, orchestrator, SimulatedLearner(1.0), lambda policy: None), 4)()

    return run_virtual(main)


def test_the_scripted_engine_is_predicted_too():
    snapshot, spans, found = scripted(2)
    load = workload_of(snapshot, spans, found)
    _, _, real = scripted(8)
    predicted = replay(replace(load, max_concurrency=8))
    assert found.utilisation == pytest.approx(0.25, abs=0.02)  # 1 s of sampling, 3 s of waiting, in step
    assert predicted.duration_s == pytest.approx(real.duration_s, rel=0.15)
    assert agrees(1 - predicted.utilisation, 1 - real.utilisation)


def test_reasons_equal_arithmetic():
    schedule = [
        s("rollout", 0, 10, group="a", episode=0),
        s("rollout", 0, 6, group="a", episode=1),
        s("decode", 0, 1),
        s("step", 1, 4),
        s("tool", 1, 4, tool="search"),
        s("step", 1, 4),
        s("tool", 1, 4, tool="sql"),
        s("step", 6, 9),
        s("tool", 6, 9, tool="search"),
        s("decode", 4, 6),
        s("decode", 9, 10),
        s("train", 10, 13),
        s("forward_backward", 11, 13),
    ]
    found = reasons(schedule, max_concurrency=2)
    assert found == {
        "long tail": pytest.approx(3, abs=1e-6),
        "tool search": pytest.approx(1.5, abs=1e-6),
        "tool sql": pytest.approx(1.5, abs=1e-6),
        "policy": pytest.approx(1, abs=1e-6),
    }
    unknown = reasons(schedule)
    assert unknown["tool search"] == pytest.approx(4.5, abs=1e-6)


moments = st.integers(0, 2**40)
any_spans = st.lists(
    st.tuples(
        st.sampled_from(sorted(STAGES)),
        moments,
        moments,
        st.just(""),
        st.fixed_dictionaries({"tool": st.text(max_size=2)}),
    ),
    max_size=30,
)


@given(any_spans, st.integers(0, 5))
def test_reasons_sum_to_the_idle_time_of_the_account(rows, places):
    spans = [Span(*row) for row in rows]
    found = account(spans)
    told = reasons(spans, max_concurrency=places)
    assert all(seconds > 0 for seconds in told.values())
    assert sum(told.values()) == pytest.approx(sum(found.idle.values()), rel=1e-9, abs=1e-6)


def test_a_run_with_too_little_behind_it_is_not_predicted():
    settings = {"group_size": 2, "groups_per_step": 1, "max_off_policy_steps": 0, "max_concurrency": 2}

    early = RunSnapshot(
        name="r", status="running", step=0, steps=9, start_ns=0, now_ns=SECOND, settings=settings, max_concurrency=2
    )
    verdict = diagnose(early, [s("decode", 0, 1), s("tool", 1, 2, tool="t")])
    assert verdict.predictions == () and verdict.ceiling is None
    assert "No prediction: only 0 episodes and 0 updates have ended." in verdict.findings
