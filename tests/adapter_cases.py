"""What the tests of adapters share: models with stored adapters of peft, logits, and a run that trains adapters."""

import functools
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import agentlab as al
from agentlab.inference import ScriptedEngine
from agentlab.models import Model
from agentlab.models.attention import attend, segment_mask
from agentlab.models.decoder import decoder_structure
from agentlab.models.tree import flat_arrays
from agentlab.rollout.episode import stable_seed

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(path.name for path in (FIXTURES / "adapters").iterdir())
MODULES = {
    "q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
    "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp",
}  # fmt: skip


def array_of(model: Model, layer: int, name: str, kind: str) -> np.ndarray:
    """The "weight", "lora_a" or "lora_b" of a linear layer, e.g. "q_proj"."""
    return np.asarray(flat_arrays(model.params)["layers", layer, MODULES[name], name, kind])


def stored_model(name: str, folder: Path, **options) -> Model:
    """One of the tiny models that transformers wrote; `folder` is where a copy with a tokenizer is put."""
    shutil.copytree(FIXTURES / "models" / name, folder, dirs_exist_ok=True)
    al.tiny_model(num_layers=1).tokenizer.save_pretrained(folder)
    return al.load_model(folder, **options)


@functools.partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
def _logits(params, tokens, *, config):
    decoder = nnx.merge(decoder_structure(config), params)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

    def attention(layer, q, k, v):
        mask = segment_mask(jnp.ones_like(tokens), positions, config.window(layer))
        return attend(q, k, v, mask, scale=config.attention_scale, soft_cap=config.attention_soft_cap)

    return decoder.logits(decoder(tokens, positions, attention))


def logits_of(model: Model, tokens: np.ndarray) -> np.ndarray:
    """[B, T] -> [B, T, V]"""
    return np.asarray(_logits(model.params, jnp.asarray(tokens), config=model.config))


def updates(arrays: dict[str, np.ndarray], scale) -> dict[str, np.ndarray]:
    """What the adapters in a file add to the weight of each layer: scale(layer, rank) * B A, in float64."""
    added = {}
    for key in arrays:
        if key.endswith(".lora_A.weight"):
            layer = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            a, b = (arrays[key.replace("lora_A", matrix)].astype(np.float64) for matrix in ("lora_A", "lora_B"))
            added[layer] = scale(layer, len(a)) * (b @ a)
    return added


def paid_by_text(task, answer):
    """Differs between answers and tasks, so that every group teaches something."""
    return stable_seed(task.id, answer) / 2**31


def scripted(model):
    """An engine whose answers depend on the request alone."""
    return ScriptedEngine(lambda request, prompt: f"{request.sampling.seed % 97}", tokenizer=model.tokenizer)


def learner(model, engine=scripted, reward_fn=paid_by_text, placement="auto", **config):
    options = {"group_size": 4, "groups_per_step": 2, "max_concurrency": 8, "max_tokens": 6, "tokens_per_slot": 512}
    options |= {"max_off_policy_steps": 0, "learning_rate": 1e-2, "lora_rank": 4}
    return al.GRPOLearner(
        model=model,
        agent_class=al.ModelAgent,
        env_class=al.TaskEnvironment,
        env_kwargs={"reward_fn": reward_fn},
        config=al.GRPOConfig(**options | config),
        engine=engine,
        placement=placement,
    )


def trained(model, steps=2, tmp_path=None, engine=scripted, **config):
    """(the learner, its run of so many updates)"""
    made = learner(model, engine, **config)
    return made, made.train(al.tasks.arithmetic(seed=0), steps=steps, checkpoint_dir=tmp_path).wait()


def largest_difference(one: Model, other_params) -> float:
    """Between the weights of a model and others of the same structure."""
    pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(other_params), strict=True)
    return max(float(jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max()) for a, b in pairs)
