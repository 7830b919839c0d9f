"""An engine over a mesh of eight devices answers as one on a single device does."""

import json
import os
import subprocess
import sys

SCRIPT = """
import json, sys
import anyio, jax
from agentlab.inference.jax_engine import JaxEngine
from agentlab.inference.shapes import PrefillSize, Shapes
from agentlab.models import tiny_model
from agentlab.rollout.serving import run_served
from agentlab.types import GenerationRequest, Policy, SamplingParams

model = tiny_model(seed=0, num_layers=1, model_type="qwen2")
sizes = (PrefillSize(2, 16), PrefillSize(3, 8))
shapes = Shapes(decode_rows=(1, 3), prefill=sizes, contexts=(64,), prefill_contexts=(32, 64))

def answers(mesh):
    engine = JaxEngine(
        model, mesh=mesh, num_slots=3, tokens_per_slot=64, max_dispatch=4, shapes=shapes, compilation_cache=False
    )
    engine.warm_up(progress=False)
    done = []
    async def main():
        async def one(i):
            sampling = SamplingParams(max_tokens=10, temperature=i % 2, seed=i)
            done.append(await engine.generate(GenerationRequest(str(i), str(i), tuple(range(50, 70 + i)), sampling)))
        for turn in range(2):
            async with anyio.create_task_group() as group:
                for i in range(4):
                    group.start_soon(one, 4 * turn + i)
            engine.update_policy(Policy(turn + 1, tiny_model(seed=1, num_layers=1, model_type="qwen2").params))
    run_served(engine, main)
    done.sort(key=lambda c: int(c.request_id))
    return [[c.tokens, c.logprobs, c.policy_versions] for c in done], engine.stats().compilations

mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"))
sys.stdout.write(json.dumps({"one": answers(None), "mesh": answers(mesh)}))
"""


def test_an_engine_on_a_mesh_answers_as_on_one_device_and_compiles_nothing_later():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    expected, _ = found["one"]
    assert len(expected) == 8, "two turns of four requests"
    answers, compilations = found["mesh"]
    assert compilations == 0
    for (tokens, logprobs, versions), (mine, my_logprobs, my_versions) in zip(expected, answers, strict=True):
        assert (mine, my_versions) == (tokens, versions)
        assert max(abs(a - b) for a, b in zip(logprobs, my_logprobs, strict=True)) < 1e-3
