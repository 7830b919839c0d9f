"""The rollout bench: its ideals and statistics against arithmetic, and every part once at a tiny size."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.bench import blocking, rollout
from agentlab.bench.rollout import GROUP_SIZE, TURNS, Load, Pipeline, Training
from agentlab.concurrency import run_virtual
from agentlab.errors import ConfigError


def test_the_ideal_of_the_stated_pipeline_is_one_wave_and_then_a_busy_consumer():
    assert Pipeline().ideal_s == pytest.approx(0.8 + 24 * 0.2)


def test_the_ideal_of_a_fast_consumer_is_the_waves_and_one_group():
    assert Pipeline(post_s=0.01).ideal_s == pytest.approx(6 * 0.8 + 4 * 0.01)


@given(
    lengths_s=st.lists(st.floats(0.1, 9.0), min_size=GROUP_SIZE, max_size=GROUP_SIZE * 4).map(
        lambda lengths: lengths[: len(lengths) // GROUP_SIZE * GROUP_SIZE]
    ),
    places=st.integers(1, 40),
    post_s=st.floats(0.0, 2.0),
)
def test_no_ideal_beats_what_places_consumer_and_longest_episode_allow(lengths_s, places, post_s):
    ideal_s = rollout.ideal_makespan_s(lengths_s, places, post_s)
    groups = len(lengths_s) // GROUP_SIZE
    assert ideal_s >= max(sum(lengths_s) / places, max(lengths_s), groups * post_s) - 1e-9
    assert ideal_s <= sum(lengths_s) + groups * post_s + 1e-9


def test_the_pipeline_takes_its_ideal_on_a_virtual_clock():
    pipeline = Pipeline(groups=6, in_flight=16)
    assert run_virtual(lambda: rollout.drain(pipeline)) == pytest.approx(pipeline.ideal_s, rel=0.01)


def test_the_pipeline_is_run_on_the_real_clock_too():
    pipeline = Pipeline(groups=2, in_flight=16, model_s=0.01, tool_s=0.01, post_s=0.01)
    ideal, virtual, real = rollout.makespan_rows(pipeline, repeats=1)
    assert ideal.value == pytest.approx(0.08 + 2 * 0.01)
    assert virtual.value == pytest.approx(1.0, rel=0.01)
    assert real.value >= 1.0 - 1e-3 and math.isfinite(real.value)


def test_a_synchronous_run_takes_batch_and_update_in_turn():
    training = Training(updates=3, tool_s=1e-9)
    trained = rollout.simulated(training)
    decode_s = TURNS * training.tokens / rollout.TOKENS_PER_S
    assert trained.took_s == pytest.approx(3 * (decode_s + training.update_s), rel=1e-6)
    assert trained.unused_percent == pytest.approx(100 / 3, rel=1e-6)
    assert training.least_s == pytest.approx(3 * decode_s)


def test_a_shared_device_is_needed_for_decoding_and_training():
    apart, shared = Training(updates=5), Training(updates=5, shared=True)
    assert shared.least_s == pytest.approx(apart.least_s + 5 * apart.update_s)


def test_asynchrony_gains_and_a_simulation_repeats_itself():
    sync, lead = Training(updates=6), Training(updates=6, lead=4)
    first = rollout.simulated(lead)
    assert first == rollout.simulated(lead)
    assert rollout.simulated(sync).took_s > 1.5 * first.took_s
    assert first.took_s > lead.least_s


def test_the_synchronous_run_is_the_same_on_one_device_as_on_two():
    apart = rollout.simulated(Training(updates=3))
    assert rollout.simulated(Training(updates=3, shared=True)).took_s == pytest.approx(apart.took_s)


def test_the_load_part_measures_every_stretch():
    rows = {row.figure: row for row in rollout.load_rows(Load(400, 64, (1, 2), 0.01, trace_records=10))}
    lag, cpu, memory, in_flight = rows.values()
    assert 0 < cpu.value < 50 and cpu.unit == "ms"
    assert 0 <= lag.value < 5_000
    assert memory.figure.startswith("400 episodes")
    assert 0 <= in_flight.value <= 64


def test_too_few_episodes_for_the_stretches_are_refused():
    with pytest.raises(ConfigError, match="at least 80"):
        Load(episodes=79)


def test_a_tool_time_is_drawn_from_an_exponential():
    draw, tool_s = random.Random(0), rollout.exponential(2.0)
    times_s = [tool_s(draw) for _ in range(20_000)]
    assert sum(times_s) / len(times_s) == pytest.approx(2.0, rel=0.05)
    assert sum(time > 4.0 for time in times_s) / len(times_s) == pytest.approx(math.exp(-2), rel=0.1)


def test_statistics_agree_with_arithmetic():
    assert rollout.quantile(range(1, 101), 0.99) == 99
    assert rollout.quantile([5.0], 0.99) == 5.0
    assert math.isnan(rollout.quantile([], 0.99))
    assert rollout.slope([1.0, 3.0, 5.0]) == pytest.approx(2.0)


def test_a_lead_gains_at_most_one_batch_time_per_version_it_allows():
    sync, ahead = Training(updates=6, tool_s=2.0), Training(updates=6, tool_s=2.0, lead=1)
    assert 1.5 < rollout.simulated(sync).took_s / rollout.simulated(ahead).took_s <= 2.0


def test_draws_of_the_tool_times_differ_and_each_repeats_itself():
    first, second = (rollout.simulated(Training(updates=2, draw=draw)) for draw in (0, 1))
    assert first != second and second == rollout.simulated(Training(updates=2, draw=1))


def test_the_rows_of_a_case_are_medians_over_its_draws_with_the_issues_goals():
    rows = rollout.asynchrony_rows(Training(updates=10, groups_per_step=1, tokens=2), draws=1)
    assert [row.goal for row in rows if row.goal] == ["≥ 2.3", "≤ 5", "≥ 1.6", "≤ 5", "≥ 3.7", "≤ 5", "≥ 2.9", "≤ 5"]
    assert rollout.ratio([4.0, 9.0, 8.0], [rollout.Trained(2.0, 0.0, 0.0)] * 3) == 4.0


def test_blocking_steps_and_a_blocking_learner_are_measured_on_the_real_clock():
    steps, lag = blocking.blocking_rows(repeats=1, update_s=0.1, steps=4)
    assert 0.2 <= steps.value < 5.0 and steps.goal == "≤ 0.3"
    assert 0 <= lag.value < 5_000 and lag.goal == "≤ 100"
