"""Low-rank adapters: put on a model, and folded into its weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from agentlab.errors import ConfigError
from agentlab.models.config import LORA_TARGETS, DecoderConfig, LoraConfig
from agentlab.models.decoder import abstract_params
from agentlab.models.model import Model
from agentlab.models.tree import flat_arrays, fresh_array, with_arrays

ADAPTER_NAMES = ("lora_a", "lora_b")


def add_lora(
    model: Model,
    rank: int,
    *,
    alpha: float | None = None,
    targets: Sequence[str] = LORA_TARGETS,
    seed: int = 0,
) -> Model:
    """The same model with adapters that change nothing yet: A is random, B is 0.

    The base weights are shared with `model`, not copied. Train the adapters alone by
    `nnx.split(model.decoder(), LoRAParam, ...)`.

    Args:
        rank: Columns of B and rows of A.
        alpha: The adapter's output is scaled by alpha / rank; None takes alpha = 2 * rank.
        targets: Linear layers that get an adapter, in every block.
        seed: Of A.

    Raises:
        ConfigError: the model has adapters already, the rank is below 1, or a target is unknown.
    """
    if model.config.lora:
        raise ConfigError(f"{model.name} has adapters already. Fold them in with merge_lora first.")
    lora = LoraConfig(rank=rank, alpha=2.0 * rank if alpha is None else alpha, targets=tuple(targets))
    config = replace(model.config, lora=lora)
    base = flat_arrays(model.params)
    dtype = base["embed_tokens",].dtype
    abstract = abstract_params(config, dtype)
    rng = np.random.default_rng(seed)
    new = {path: wanted for path, wanted in flat_arrays(abstract).items() if path not in base}
    adapters = {path: fresh_array(path, wanted.shape, dtype, rng) for path, wanted in new.items()}
    return replace(model, config=config, params=with_arrays(abstract, {**base, **adapters}))


def merge_lora(config: DecoderConfig, params: Any) -> Any:
    """Parameters without adapters: W + (alpha / rank) B A. May be called under `jax.jit`.

    Args:
        config: Of the decoder that `params` belong to.
        params: All its parameters, adapters included.

    Returns:
        Parameters of `config.without_lora()`; untouched weights are shared, not copied.
    """
    if not config.lora:
        return params
    arrays = flat_arrays(params)
    merged = {path: array for path, array in arrays.items() if path[-1] not in ADAPTER_NAMES}
    for path in [path for path in arrays if path[-1] == "lora_a"]:
        layer = path[:-1]
        merged[*layer, "weight"] = merged_weight(
            config.lora, merged[*layer, "weight"], arrays[path], arrays[*layer, "lora_b"]
        )
    dtype = merged["embed_tokens",].dtype
    return with_arrays(abstract_params(config.without_lora(), dtype), merged)


def merged_weight(lora: LoraConfig, weight: Array, lora_a: Array, lora_b: Array) -> Array:
    """[out, in]: W + (alpha / rank) B A, computed in float32, in the type of W. A bias has no adapter.

    Args:
        weight: [out, in].
        lora_a: [rank, in].
        lora_b: [out, rank].

    Source: Hu et al. 2021 (arXiv:2106.09685), equation 3.
    """
    update = lora_b.astype(jnp.float32) @ lora_a.astype(jnp.float32)
    return (weight + lora.scale * update).astype(weight.dtype)


def merged(model: Model) -> Model:
    """The same model without adapters, which are folded into its weights; itself where it has none."""
    if not model.config.lora:
        return model
    params = merge_lora(model.config, model.params)
    return replace(model, config=model.config.without_lora(), params=params, changed=True)


def without_adapters(model: Model) -> Model:
    """The same model without adapters, as if they had never been there; weights are shared, not copied."""
    if not model.config.lora:
        return model
    arrays = {path: array for path, array in flat_arrays(model.params).items() if path[-1] not in ADAPTER_NAMES}
    config = model.config.without_lora()
    return replace(model, config=config, params=with_arrays(abstract_params(config), arrays))
