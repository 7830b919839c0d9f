"""A whole run over users' own objects at their worst: it trains on what is sound, and writes all it is asked for."""

import itertools
import math

import agentlab as al
from agentlab.rollout import load_trajectories


class Mute:
    def __repr__(self):
        raise OSError("no text")

    __str__ = __repr__


class Mixed:
    """Every fourth episode earns a huge reward, every fourth says what cannot be shown."""

    numbers = itertools.count()

    def __init__(self, task):
        self.task, self.number = task, next(self.numbers)

    def reset(self):
        return self.task.prompt, {}

    def step(self, action):
        reward = 1e300 if self.number % 4 == 3 else float(self.number % 2)
        info = {"odd": Mute(), "half": "\ud800", "reward_parts": {"\ud800": reward / 2}} if self.number % 4 == 2 else {}
        with al.tracing.span("tool", tool=Mute(), half="\ud800"):
            return al.EnvStepResult(None, reward, True, info)

    def close(self):
        pass


def test_a_run_ends_and_is_reported_whatever_its_episodes_hold(tmp_path):
    learner = al.GRPOLearner(
        model=al.tiny_model(seed=1),
        agent_class=al.ModelAgent,
        env_class=Mixed,
        config=al.GRPOConfig(group_size=4, groups_per_step=2, max_tokens=6, tokens_per_slot=128, max_failed_groups=8),
    )
    tasks = [{"id": f"t{number}", "prompt": f"Say {number} \ud800."} for number in range(8)]
    run = learner.train(tasks, steps=3, sinks=[al.sinks.JsonLines(tmp_path / "m.jsonl")]).wait()
    assert run.status == "finished" and len(run.metrics) == 3
    assert run.snapshot().failures["reward"] >= 6 and not any(row["nonfinite"] for row in run.metrics)
    assert all(math.isfinite(row["reward_mean"]) and math.isfinite(row["reward_std"]) for row in run.metrics)
    assert any(math.isfinite(row.get("reward/\\ud800", math.nan)) for row in run.metrics)
    assert "\\ud800" in run.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(list(load_trajectories(run.save_trajectories(tmp_path / "t.jsonl")))) == len(run.trajectories)
    assert run.save_trace(tmp_path / "trace").stat().st_size > 1000
    run.save_metrics(tmp_path / "metrics.jsonl")
    assert str(run.diagnose()).encode() and repr(run).encode()
    for trajectory in run.trajectories:
        assert al.viz.show_trajectory(trajectory, run.tokenizer).html.encode()
