"""Adapters apart from their model: read from a folder of peft and put on a model, or written to one.

Source: the format that huggingface/peft documents under "PEFT checkpoint format".
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from agentlab.errors import ConfigError, ModelError
from agentlab.models import tree
from agentlab.models.config import LORA_TARGETS, LoraConfig
from agentlab.models.decoder import abstract_params
from agentlab.models.folder import new_folder, read_json, write_json
from agentlab.models.lora import ADAPTER_NAMES
from agentlab.models.model import Model
from agentlab.models.peft_config import PeftConfig, read_peft_config, written_peft_config
from agentlab.models.safetensors_file import SafeTensor, read_safetensors
from agentlab.models.sharding import param_shardings
from agentlab.models.tree import flat_arrays, with_arrays

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
MATRICES = {"lora_a": "lora_A", "lora_b": "lora_B"}
"""Our names of the two matrices, and peft's."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

Pairs = dict[str, dict[str, np.ndarray]]
"""By layer, e.g. "model.layers.3.mlp.up_proj": lora_a [rank, in] and lora_b [out, rank], float32."""


@dataclass(frozen=True, eq=False)
class Adapters:
    """Low-rank adapters, and what they belong to. Frozen; made without copying an array."""

    base: str | None
    """Name of the model that they belong to; None if training has changed its weights, so that they have no name."""
    lora: LoraConfig
    stacked: Mapping[str, Any]
    """By name, e.g. "layers/mlp/up_proj/lora_a", those of all layers: [layers, ...] or a tuple of arrays."""


def adapters_of(model: Model) -> Adapters | None:
    """The adapters on a model; None where it has none."""
    if model.config.lora is None:
        return None
    layers: dict[str, dict[int, Any]] = {}
    for path, array in flat_arrays(model.params).items():
        if path[-1] in ADAPTER_NAMES:
            layers.setdefault("/".join((path[0], *path[2:])), {})[path[1]] = array
    stacked = {name: tuple(arrays[number] for number in sorted(arrays)) for name, arrays in layers.items()}
    return Adapters(None if model.changed else model.name, model.config.lora, stacked)


def write_adapters(adapters: Adapters, folder: str | Path, *, base: str | None = None) -> Path:
    """Write adapters as peft does. The folder appears complete or not at all.

    Args:
        adapters: What to write.
        folder: Must not exist yet, or be empty.
        base: Name or path of the model that they belong to, as the file will say; None takes their own.

    Returns:
        The folder.

    Raises:
        ConfigError: the model that they belong to has no name, and none was given.
        ModelError: the folder holds something already, or cannot be written.
    """
    from safetensors.numpy import save_file

    base = adapters.base if base is None else base
    if base is None:
        raise ConfigError(
            "base must name the model that the adapters belong to: the one that was trained had been trained before, "
            "so that its weights are not those known by its name. Save that model with save_model, and give the "
            "folder: save_adapters(..., base=folder)."
        )
    arrays = {}
    for name, layers in adapters.stacked.items():
        first, *module, matrix = name.split("/")
        for number, array in enumerate(layers):
            key = ".".join((f"{PREFIX}model", first, str(number), *module, MATRICES[matrix], "weight"))
            arrays[key] = np.ascontiguousarray(array)
    with new_folder(folder, of="The adapters") as made:
        write_json(made / ADAPTER_CONFIG, written_peft_config(adapters.lora, base=base))
        save_file(arrays, made / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    return Path(folder).expanduser().absolute()


def load_adapters(model: Model, folder: str | Path) -> Model:
    """Put adapters that peft or `save_adapters` wrote on a model.

    The model that is returned samples as peft's does, and training it with `lora_rank` set to their rank goes on
    from them (without the dropout that peft may have trained them with). They are held in float32, whatever the
    model's own type. Where ranks or scales differ by layer (rank_pattern, alpha_pattern, layers_to_transform), all
    get the highest rank, filled up with zeros, which training leaves as they are, and B takes up the difference in
    scale.

    Args:
        model: What they belong to, without adapters; its weights are shared, not copied.
        folder: Holds adapter_config.json and adapter_model.safetensors.

    Returns:
        The model with adapters. `save_model` folds them in.

    Raises:
        ConfigError: the model has adapters already.
        ModelError: the folder cannot be read, its adapters do not fit the model, or they are of a kind that agentlab
            cannot compute as peft does; the option is named.
    """
    if model.config.lora:
        raise ConfigError(f"{model.name} has adapters already. Load the model again to put others on it.")
    folder = Path(folder).expanduser()
    config_path, weights_path = folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS
    hint = "Give the folder of adapters that peft or save_adapters wrote."
    config = read_peft_config(read_json(config_path, hint=hint), source=str(config_path))
    if not weights_path.exists():
        raise ModelError(
            f"{folder} must hold {ADAPTER_WEIGHTS}, and does not. {hint} "
            "An adapter_model.bin becomes one by loading and saving it with peft."
        )
    _warn_of_another_base(model, config)
    pairs = _pairs(read_safetensors(weights_path), str(weights_path))
    _check_layers(model, pairs, config, str(weights_path))
    lora, arrays = _uniform(model, pairs, config)
    return _adapted(model, lora, arrays)


def _warn_of_another_base(model: Model, config: PeftConfig) -> None:
    """Names on the hub are compared without their owner: copies of a model are common."""
    names = [name for name in (model.name, config.base) if name and HUB_NAME.fullmatch(name)]
    if len(names) == 2 and len({name.partition("/")[2].lower() for name in names}) == 2:
        warnings.warn(
            f"{config.source} says that the adapters belong to {config.base}, and they are put on {model.name}. "
            "Adapters are right on the weights that they were trained on alone.",
            stacklevel=3,
        )


def _pairs(tensors: Mapping[str, SafeTensor], source: str) -> Pairs:
    names = {theirs: ours for ours, theirs in MATRICES.items()}
    pairs: Pairs = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.(lora_[AB])\.weight", name)
        if found is None or len(tensor.shape) != 2:
            raise ModelError(
                f"{source} must hold matrices lora_A and lora_B of linear layers alone, and holds {name} of shape "
                f"{list(tensor.shape)}. Adapters on other layers (modules_to_save, embeddings) cannot be loaded."
            )
        array = np.concatenate([block for _, block in tensor.blocks()]).astype(np.float32)
        if not np.isfinite(array).all():
            raise ModelError(f"{source}: {name} must hold finite numbers, and holds others. The adapters are damaged.")
        pairs.setdefault(found[1], {})[names[found[2]]] = array
    return pairs


def _check_layers(model: Model, pairs: Pairs, config: PeftConfig, source: str) -> None:
    """Refuse adapters that are not on the layers, or not of the sizes, that config and model say."""
    weights = {_layer_name(path): a.shape for path, a in flat_arrays(model.params).items() if _is_linear(path)}
    unknown = [layer for layer in pairs if layer not in weights]
    if unknown:
        raise ModelError(
            f"{source} holds adapters on {len(unknown)} layers that {model.name} has not, or that cannot have one "
            f"({unknown[0]}). Adapters can be on {', '.join(LORA_TARGETS)}. Check that they belong to this model."
        )
    wanted = {layer for layer in weights if config.targets(layer)}
    if not wanted and not pairs:
        raise ModelError(f"{source} must hold adapters, and holds none. Save them again with peft.")
    if wanted != set(pairs):
        odd = sorted(wanted ^ set(pairs))[0]
        raise ModelError(
            f"{source} must hold adapters on exactly the {len(wanted)} layers that {config.source} names, and has "
            f"{len(pairs)}; {odd} is in one of them only. Save the adapters again with peft."
        )
    for layer, pair in pairs.items():
        (out, inside), rank = weights[layer], config.rank(layer)
        shapes = {"lora_a": (rank, inside), "lora_b": (out, rank)}
        for matrix, shape in shapes.items():
            if matrix not in pair or pair[matrix].shape != shape:
                got = list(pair[matrix].shape) if matrix in pair else "missing"
                raise ModelError(
                    f"{source}: {MATRICES[matrix]} of {layer} must be {list(shape)} for this model and rank {rank}, "
                    f"and is {got}. Check that the adapters belong to {model.name}."
                )


def _uniform(model: Model, pairs: Pairs, config: PeftConfig) -> tuple[LoraConfig, dict[tree.Path, np.ndarray]]:
    """One rank and one scale for all layers, and the arrays by path that compute the same under them."""
    rank = max(config.rank(layer) for layer in pairs)
    alphas = {layer: config.alpha(layer, rank) for layer in pairs}
    alpha = max(alphas.values(), key=abs)
    targets = tuple(name for name in LORA_TARGETS if any(layer.endswith(f".{name}") for layer in pairs))
    lora = LoraConfig(rank=rank, alpha=alpha, targets=targets)
    arrays = {}
    for path, wanted in flat_arrays(abstract_params(replace(model.config, lora=lora))).items():
        if path[-1] not in ADAPTER_NAMES:
            continue
        layer, array = _layer_name(path), np.zeros(wanted.shape, np.float32)
        if layer in pairs:
            given = pairs[layer][path[-1]]
            same = path[-1] == "lora_a" or alphas[layer] == alpha
            array[: given.shape[0], : given.shape[1]] = given if same else given * np.float32(alphas[layer] / alpha)
        arrays[path] = array
    return lora, arrays


def _adapted(model: Model, lora: LoraConfig, arrays: Mapping[tree.Path, np.ndarray]) -> Model:
    """The model with these adapters, each laid out as the weight beside it is."""
    config, base = replace(model.config, lora=lora), flat_arrays(model.params)
    placed = {}
    for path, array in arrays.items():
        weight = base[*path[:-1], "weight"]
        sharding = weight.sharding if weight.committed else None
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            sharding = param_shardings(config, sharding.mesh, [path])[path]
        placed[path] = jax.device_put(array, sharding)
    return replace(model, config=config, params=with_arrays(abstract_params(config), {**base, **placed}))


def _layer_name(path: tree.Path) -> str:
    return ".".join(["model", *map(str, path[:-1])])


def _is_linear(path: tree.Path) -> bool:
    return len(path) > 2 and path[-1] == "weight" and path[-2] in LORA_TARGETS
