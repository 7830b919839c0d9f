"""Engine and trainer on devices of their own: the run that one device gives, and nothing lies where it should not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agentlab as al
from agentlab.errors import ConfigError

SCRIPT = """
import json, sys
import jax, numpy as np
import agentlab as al
from agentlab.learner.placing import Placing
from agentlab.models.sharding import lay_out
from agentlab.platform import Device, Platform, plan
from agentlab.rollout.episode import stable_seed
from dataclasses import replace

seen = set()

def paid_by_text(task, answer):
    seen.update(frozenset(device.id for device in x.sharding.device_set) for x in jax.live_arrays())
    return stable_seed(task.id, answer) / 2**31

def learner(model, lead=0, **options):
    config = al.GRPOConfig(
        group_size=2, groups_per_step=4, max_concurrency=8, num_slots=1, max_tokens=6, tokens_per_slot=128,
        row_tokens=128, micro_batch_tokens=128, logit_chunk_tokens=16, lora_rank=4, learning_rate=1e-2,
        entropy_bonus=0.1, max_off_policy_steps=lead,
    )
    return al.GRPOLearner(
        model=model, agent_class=al.ModelAgent, env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": paid_by_text}, config=config, **options,
    )

def told(one, run):
    return {
        "plan": str(one.plan),
        "notes": list(run.snapshot().notes),
        "status": run.status,
        "tokens": {f"{t.group_id}/{t.episode}": [list(row.tokens) for row in t.rows] for t in run.trajectories},
        "metrics": [dict(row) for row in run.metrics],
        "compilations": run.snapshot().engine.compilations,
        "weights": np.concatenate([np.ravel(x) for x in jax.tree.leaves(one.policy.params)]).tolist(),
        "published": sorted({d.id for x in jax.tree.leaves(one.policy.params) for d in x.devices()}),
        "seen": sorted(map(sorted, seen)),
    }

model, report, tasks = al.tiny_model(num_layers=1, model_type="qwen2"), {}, al.tasks.arithmetic(seed=0)
report["start"] = np.concatenate([np.ravel(x) for x in jax.tree.leaves(model.params)]).tolist()
for name, options in json.loads(sys.argv[1]).items():
    given, steps, saved = model, options.pop("steps"), {}
    if options.pop("mesh", False):
        given = replace(model, params=lay_out(model.config, model.params, jax.devices()[:2]))
    if options.pop("saved", False):
        saved = {"checkpoint_dir": sys.argv[2], "resume": True}
    one = learner(given, **options)
    seen.clear()
    report[name] = told(one, one.train(tasks, steps=steps, **saved).wait())
eight = Platform("kaggle", "3.12", "linux", 8, None, (Device("tpu", "TPU v5e", 2**34),) * 8)
together = plan(model.config, al.GRPOConfig(), machine=eight, mode="colocated")
report["shared"] = [
    len(jax.tree.leaves(Placing("colocated", None, own_engine=own).shared(together, model).params)[0].devices())
    for own in (False, True)
]
print(json.dumps(report))
"""
pytestmark = pytest.mark.timeout(600)
SPLIT = {"placement": "disaggregated"}
CASES = {
    "one": {"steps": 3},
    "halves": SPLIT | {"steps": 2, "saved": True},
    "uneven": SPLIT | {"steps": 3, "saved": True, "engine_devices": 2},  # goes on where "halves" ended
    "ahead": SPLIT | {"steps": 4, "lead": 1},
    "mesh": {"steps": 1, "mesh": True},
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What short runs of a tiny model on 8 virtual devices gave."""
    flags = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    )
    paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(CASES), str(tmp_path_factory.mktemp("checkpoints"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(found[name]["status"] == "finished" for name in CASES)
    return found


def largest(values, others):
    return max(abs(a - b) for a, b in zip(values, others, strict=True))


@pytest.mark.parametrize("name", ["halves", "uneven", "mesh"])
def test_a_run_on_other_devices_is_that_of_one(report, name):
    one, other = report["one"], report[name]
    assert other["tokens"] and all(one["tokens"][key] == rows for key, rows in other["tokens"].items())
    for mine, theirs in zip(one["metrics"], other["metrics"], strict=False):
        assert mine["grad_norm"] > 0
        for figure in ("loss", "grad_norm", "entropy", "reward_mean", "ratio_mean", "micro_batches", "staleness_max"):
            assert abs(mine[figure] - theirs[figure]) <= 1e-4 * abs(mine[figure]) + 1e-5, figure
    assert one["compilations"] == other["compilations"] == 0
    assert max(row["logprob_gap_max"] for row in other["metrics"]) < 1e-3


def test_weights_are_those_of_one_device_also_after_going_on_with_another_split(report):
    change = largest(report["one"]["weights"], report["start"])
    assert len(report["one"]["metrics"]) == len(report["uneven"]["metrics"]) == 3
    assert change > 1e-3 and largest(report["one"]["weights"], report["uneven"]["weights"]) < 1e-3 * change + 1e-5


@pytest.mark.parametrize(("name", "num_sampling"), [("halves", 4), ("uneven", 2), ("ahead", 4)])
def test_no_array_lies_on_devices_that_sample_and_on_devices_that_train(report, name, num_sampling):
    sampling, training = set(range(num_sampling)), set(range(num_sampling, 8))
    seen = [set(devices) for devices in report[name]["seen"]]
    assert all(devices <= sampling or devices <= training for devices in seen)
    assert sampling in seen and training in seen
    assert set(report[name]["published"]) == sampling


def test_weights_that_arrive_from_other_devices_are_no_older_than_the_bound(report):
    rows = report["ahead"]["metrics"]
    assert len(rows) == 4 and max(row["staleness_max"] for row in rows) == 1
    assert report["ahead"]["compilations"] == 0


def test_the_plan_is_told_once_when_the_run_begins(report):
    assert report["one"]["notes"] == [] and report["one"]["plan"].startswith("Plan: colocated on 8 x cpu")
    plan = report["uneven"]["plan"]
    assert plan.startswith("Plan: disaggregated on 8 x cpu (2 sample, 6 train), about ")
    assert report["uneven"]["notes"][0] == plan.splitlines()[0] + "."


def test_a_model_that_several_devices_sample_and_train_is_laid_out_over_them(report):
    assert report["shared"] == [8, 1], "with an engine of the user's own it stays where it is"


def learner(**options):
    return al.GRPOLearner(
        model=al.tiny_model(num_layers=1, model_type="qwen2"), agent_class=al.ModelAgent, env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": al.rewards.same_number}, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "disagregated"}, "placement must be one of auto, .*Did you mean 'disaggregated'"),
        ({"placement": "disaggregated", "engine_devices": 0}, "engine_devices must be at least 1, got 0"),
        ({"engine_devices": 2}, "engine_devices=2 splits the devices, but placement is 'auto'"),
        ({"placement": "disaggregated", "engine": al.ScriptedEngine("x")}, "an engine was given"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        learner(**options)


def test_a_split_of_one_device_is_refused_before_anything_is_allocated():
    with pytest.raises(ConfigError, match="needs at least 2 devices, got 1"):
        learner(placement="disaggregated").train(al.tasks.arithmetic(seed=0), steps=1)
