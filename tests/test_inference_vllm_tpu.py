"""The way of new weights into vLLM's TPU build, against stand-ins for its modules: no TPU, no vLLM."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from safetensors.numpy import load_file

from agentlab.errors import ConfigError
from agentlab.inference.vllm_client import sampling_body
from agentlab.inference.vllm_core import tpu_sampling
from agentlab.inference.vllm_tpu import take_over
from agentlab.inference.vllm_weights import write_weights
from agentlab.models import Model, tiny_model
from agentlab.types import Policy, SamplingParams

MODEL, OTHER, WIDER = tiny_model(seed=0), tiny_model(seed=1), tiny_model(seed=0, hidden_size=32)


class Worker:
    """As `TPUWorker`: its own update does nothing, and its first step frees the cache."""

    def __init__(self, state: dict[str, jax.Array]):
        config = SimpleNamespace(
            model_config=SimpleNamespace(model="the first folder"),
            compilation_config=SimpleNamespace(static_forward_context={"layer": "of the first model"}),
        )
        self.model_runner = SimpleNamespace(
            vllm_config=config, rng_key=None, mesh=None, state=state, state_leaves=tuple(state.values()), cache="kept"
        )

    def start_weight_update(self) -> None:
        self.model_runner.cache = None

    def update_weights(self, update_info: dict[str, str]) -> None: ...

    def finish_weight_update(self) -> None:
        self.model_runner.cache = "made anew"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Worker:
    """One that serves `MODEL`, its loader a stand-in that reads a folder's only file, as the real one does."""
    built = []

    def get_model(config, rng_key, mesh):
        (file,) = Path(config.model_config.model).glob("*.safetensors")
        config.compilation_config.static_forward_context["layer"] = f"of model {len(built)}"  # as vLLM's layers do
        built.append(file)
        state = {name: jnp.asarray(array) for name, array in load_file(file).items()}
        return SimpleNamespace(state=state, state_leaves=tuple(state.values()))

    for name, members in {
        "tpu_inference.models.common.model_loader": {"get_model": get_model},
        "vllm.config": {"set_current_vllm_config": nullcontext},
    }.items():
        path = name.split(".")
        for i in range(1, len(path)):
            monkeypatch.setitem(sys.modules, ".".join(path[:i]), ModuleType(path[i - 1]))
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    taken = type("Taken", (Worker,), {})
    take_over(taken)
    return taken({name: jnp.asarray(array) for name, array in load_file(written(MODEL, tmp_path)).items()})


def written(model: Model, folder) -> str:
    path = folder / f"{id(model)}.safetensors"
    write_weights(model, Policy(1, model.params), path)
    return str(path)


def update(worker: Worker, path: str) -> None:
    worker.start_weight_update()
    worker.update_weights({"path": path})
    worker.finish_weight_update()


def test_new_arrays_take_the_place_of_the_old_and_the_cache_stays(worker, tmp_path):
    runner, path = worker.model_runner, written(OTHER, tmp_path)
    update(worker, path)
    wanted = load_file(path)
    assert runner.state.keys() == wanted.keys()
    assert all((runner.state[name] == wanted[name]).all() for name in wanted)
    assert runner.state_leaves == tuple(runner.state.values())
    assert runner.cache == "kept"


def test_the_workers_own_settings_are_not_touched(worker, tmp_path):
    update(worker, written(OTHER, tmp_path))
    config = worker.model_runner.vllm_config
    assert config.model_config.model == "the first folder"
    assert config.compilation_config.static_forward_context == {"layer": "of the first model"}


def test_arrays_of_another_shape_leave_the_old_ones_in_force(worker, tmp_path):
    before = worker.model_runner.state
    with pytest.raises(ValueError, match=r"arrays do not fit, nothing was changed: .*float32\["):
        update(worker, written(WIDER, tmp_path))
    assert worker.model_runner.state is before


def test_a_request_leaves_its_seed_behind_and_one_with_min_p_is_refused():
    body = sampling_body(SamplingParams(seed=3, top_p=0.5), 8, ())
    assert tpu_sampling(body) == {name: value for name, value in body.items() if name not in ("seed", "min_p")}
    with pytest.raises(ConfigError, match="min_p must be 0 with vLLM's TPU build, got 0.1"):
        tpu_sampling(sampling_body(SamplingParams(min_p=0.1), 8, ()))
