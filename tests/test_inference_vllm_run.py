"""Whole runs over vLLM servers: they train as over the built-in engine, survive the loss of one, name the last."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from vllm_cases import kill_server, needs_vllm, server_engine, small_model

import agentlab as al
from agentlab.errors import RunError
from agentlab.inference import Engine, JaxEngine, VLLMServerEngine
from agentlab.inference.vllm_client import read_counters
from agentlab.models import Model, load_model
from agentlab.viz import facts

pytestmark = [pytest.mark.vllm, needs_vllm, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def model() -> Model:
    return small_model()


@pytest.fixture(scope="module")
def servers(model: Model) -> Iterator[VLLMServerEngine]:
    with server_engine(model, 1024, num_servers=2) as engine:
        yield engine


class Talk(al.BaseTaskEnv):
    """Three turns, whatever is said, after a prompt of some blocks of vLLM's cache; the reward is a coin."""

    def _initial_observation(self) -> str:
        return f"{self.task.prompt} {'Think well. ' * 30}"

    def _step_impl(self, action: Any) -> al.EnvStepResult:
        return al.EnvStepResult("Go on.", float(len(action.value) % 2), self.turn == 2, {})


def learner(model: Model, engine: Engine, **config: Any) -> al.GRPOLearner:
    tools = {"calculator": al.tools.Calculator}
    return al.GRPOLearner(
        model=model,
        engine=engine,
        agent_class=al.ToolAgent,
        agent_kwargs={"tool_map": tools, "tool_parser_name": "short"},
        env_class=al.ToolEnvironment,
        env_kwargs={"tool_map": tools, "reward_fn": lambda task, answer: float(len(answer) % 7), "max_turns": 2},
        config=al.GRPOConfig(
            **{
                **{"group_size": 4, "groups_per_step": 4, "max_concurrency": 32, "max_tokens": 12},
                **{"tokens_per_slot": 1024, "learning_rate": 1e-3, **config},
            }
        ),
    )


def adds_up(run: al.Run) -> bool:
    counts = run.snapshot().counts
    ended = counts.trained + counts.stale + counts.filtered + counts.failed + counts.cancelled
    return counts.admitted == ended + counts.in_flight


def left_in(engine: VLLMServerEngine) -> list[float]:
    """Requests that the servers still hold, by their own counters."""
    pages = [read_counters(httpx.get(f"{url}/metrics", trust_env=False).text) for url in engine.urls]
    return [page["num_requests_running"] + page["num_requests_waiting"] for page in pages]


def test_thirty_two_conversations_at_once_go_on_through_updates_and_leave_nothing_behind(model, servers):
    config = al.GRPOConfig(
        group_size=4, groups_per_step=4, max_concurrency=32, max_tokens=24, tokens_per_slot=1024, learning_rate=1e-3
    )
    trained = al.GRPOLearner(
        model=model, engine=servers, agent_class=al.ModelAgent, env_class=Talk, env_kwargs={}, config=config
    )
    began_ns = al.tracing.now_ns()
    run = trained.train(al.tasks.arithmetic(seed=0), steps=5)
    while not run.done:
        assert adds_up(run)
        time.sleep(0.05)
    run.wait()
    assert adds_up(run)
    assert len(run.metrics) == 5
    assert max(r.value for r in al.tracing.counters(began_ns) if r.name == "episodes_in_flight") == 32
    assert all(row["turns_mean"] == 3 and row["failed_share"] == 0 for row in run.metrics)
    assert all(row["logprob_gap_mean"] < 5e-3 for row in run.metrics if row["staleness_max"] == 0)
    assert any(row["prompt_cached_share"] > 0 for row in run.metrics)
    sampled_under = {v for t in run.trajectories for row in t.rows for v in row.policy_versions if v >= 0}
    assert len(sampled_under) > 1
    wait_for(lambda: not any(left_in(servers)), timeout_s=5)


def test_a_run_trains_over_servers_survives_the_loss_of_one_and_names_the_last(model, servers):
    trained = learner(model, servers)
    run = trained.train(al.tasks.arithmetic(seed=0), steps=3).wait()
    assert [row["step"] for row in run.metrics] == [1, 2, 3]
    assert run.metrics[0]["logprob_gap_mean"] < 5e-3  # the same weights sampled and scored
    assert adds_up(run)
    assert {"prefill", "decode", "queueing", "weight_sync"} <= {span.stage for span in al.tracing.spans()}
    assert "%" in str(run.diagnose())

    run = trained.train(al.tasks.arithmetic(seed=1), steps=4)
    wait_for(lambda: len(run.metrics) >= 1)
    kill_server(servers.urls[0])
    run.wait()
    assert len(run.metrics) == 4
    assert adds_up(run)

    run = trained.train(al.tasks.arithmetic(seed=2), steps=50)
    wait_for(lambda: len(run.metrics) >= 1)
    kill_server(servers.urls[1])
    began_s = time.monotonic()
    with pytest.raises(RunError, match=f"No vLLM server is left; the last was {servers.urls[1]}"):
        run.wait()
    assert time.monotonic() - began_s < 2


@pytest.mark.slow
@pytest.mark.model
def test_a_run_of_smollm2_shows_the_same_over_a_server_as_over_the_built_in_engine():
    model = load_model("HuggingFaceTB/SmolLM2-135M-Instruct")
    config = {"groups_per_step": 2, "max_concurrency": 8, "max_tokens": 16, "tokens_per_slot": 512}
    runs = {}
    with server_engine(model, 512) as engine:
        for name, used in {"vllm": engine, "jax": JaxEngine(model, num_slots=8, tokens_per_slot=512)}.items():
            run = learner(model, used, **config, learning_rate=1e-6).train(al.tasks.arithmetic(seed=0), steps=2)
            runs[name] = run.wait()
    ours, theirs = runs["jax"], runs["vllm"]
    for run in (ours, theirs):
        assert [row["step"] for row in run.metrics] == [1, 2]
        assert run.metrics[0]["logprob_gap_mean"] < 5e-3
        assert adds_up(run)
    assert set(theirs.metrics[0]) == set(ours.metrics[0])
    assert {s.stage for s in theirs.spans()} >= {s.stage for s in ours.spans()} - {"compile", "load"}
    shown, wanted = ([name for name, _ in facts.numbers(run.snapshot(), 0.0)] for run in (theirs, ours))
    assert [name for name in shown if name != "cache in use"] == wanted
    assert "cache in use" in shown
    assert set(theirs.dashboard("background").bundle()) == set(ours.dashboard("background").bundle())
    assert len(theirs.timeline().get_yticklabels()) >= 8


def wait_for(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
