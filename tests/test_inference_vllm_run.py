"""A whole run over vLLM servers: it trains, survives the loss of one server, and names the loss of the last."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_cases import needs_vllm, server_engine, small_model

import agentlab as al
from agentlab.errors import RunError
from agentlab.inference import VLLMServerEngine
from agentlab.models import Model

pytestmark = [pytest.mark.vllm, needs_vllm, pytest.mark.timeout(1200)]


def learner(model: Model, engine: VLLMServerEngine) -> al.GRPOLearner:
    tools = {"calculator": al.tools.Calculator}
    return al.GRPOLearner(
        model=model,
        engine=engine,
        agent_class=al.ToolAgent,
        agent_kwargs={"tool_map": tools, "tool_parser_name": "short"},
        env_class=al.ToolEnvironment,
        env_kwargs={"tool_map": tools, "reward_fn": lambda task, answer: float(len(answer) % 2), "max_turns": 2},
        config=al.GRPOConfig(
            group_size=4, groups_per_step=4, max_concurrency=32, max_tokens=12, tokens_per_slot=1024, learning_rate=1e-3
        ),
    )


def adds_up(run: al.Run) -> bool:
    counts = run.snapshot().counts
    ended = counts.trained + counts.stale + counts.filtered + counts.failed + counts.cancelled
    return counts.admitted == ended + counts.in_flight


def test_a_run_trains_over_servers_survives_the_loss_of_one_and_names_the_last():
    model = small_model()
    with server_engine(model, 1024, num_servers=2) as engine:
        trained = learner(model, engine)
        run = trained.train(al.tasks.arithmetic(seed=0), steps=3).wait()
        assert [row["step"] for row in run.metrics] == [1, 2, 3]
        assert run.metrics[0]["logprob_gap_mean"] < 5e-3  # the same weights sampled and scored
        assert adds_up(run)
        assert {"prefill", "decode", "queueing", "weight_sync"} <= {span.stage for span in al.tracing.spans()}
        assert "%" in str(run.diagnose())

        run = trained.train(al.tasks.arithmetic(seed=1), steps=4)
        wait_for(lambda: len(run.metrics) >= 1)
        kill(engine, 0)
        run.wait()
        assert len(run.metrics) == 4
        assert adds_up(run)

        run = trained.train(al.tasks.arithmetic(seed=2), steps=50)
        wait_for(lambda: len(run.metrics) >= 1)
        kill(engine, 1)
        began_s = time.monotonic()
        with pytest.raises(RunError, match="No vLLM server is left"):
            run.wait()
        assert time.monotonic() - began_s < 3


def kill(engine: VLLMServerEngine, index: int) -> None:
    """End a server and its workers as a crash would."""
    port = engine.urls[index].rpartition(":")[2]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_text().split("\0") if path.exists() else []
        if "vllm.entrypoints.openai.api_server" in words and port in words:
            os.killpg(os.getpgid(int(path.parent.name)), signal.SIGKILL)


def wait_for(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
