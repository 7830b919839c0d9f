"""What the adapter_config.json of peft says, as far as agentlab can do it; the rest is refused by name.

Source: the documentation of `LoraConfig` in huggingface/peft 0.21, whose names these are.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentlab.errors import ModelError
from agentlab.models.config import LoraConfig

UNCHANGING_INITS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the model's own weights as they are; "pissa" and others change those."""
WITHOUT_EFFECT = {
    *("auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version", "lora_dropout"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config", "ensure_weight_tying"),
    *("megatron_core", "qalora_group_size"),
}
"""Options that say nothing about a finished adapter: how it came about, or settings of one that is refused itself."""
READ = {
    *("peft_type", "task_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "bias"),
}
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class PeftConfig:
    """Which layers adapters are on, of which rank, and how they are scaled.

    A layer is named as peft does it, e.g. "model.layers.3.mlp.up_proj".
    """

    raw: Mapping[str, Any]
    source: str

    @property
    def base(self) -> str | None:
        """The name or path of the model that the adapters were made for."""
        return self.raw.get("base_model_name_or_path")

    def rank(self, layer: str) -> int:
        """Columns of B and rows of A."""
        return int(self._of("rank_pattern", layer, self.raw["r"]))

    def alpha(self, layer: str, rank: int) -> float:
        """The alpha that scales this layer's adapter by alpha / `rank`, as `LoraConfig` has it."""
        own = self.rank(layer)
        alpha = float(self._of("alpha_pattern", layer, self.raw["lora_alpha"]))
        return alpha * rank / (math.sqrt(own) if self.raw.get("use_rslora") else own)

    def targets(self, layer: str) -> bool:
        """Whether it says that this layer has an adapter."""
        wanted, excluded = self.raw["target_modules"], self.raw.get("exclude_modules")
        if excluded and _names(excluded, layer):
            return False
        if isinstance(wanted, str):
            return wanted.lower() == ALL_LINEAR or _names(wanted, layer)
        numbers = self.raw.get("layers_to_transform")
        if numbers is None or numbers == []:
            return _names(wanted, layer)
        return _names(wanted, layer) and self._number(layer) in (numbers if isinstance(numbers, list) else [numbers])

    def _of(self, option: str, layer: str, default: Any) -> Any:
        """The value of the first pattern of `option` that names the layer."""
        patterns = self.raw.get(option) or {}
        return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", layer)), default)

    def _number(self, layer: str) -> int | None:
        patterns = self.raw.get("layers_pattern") or r"[^.]*"
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            if found := re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", layer):
                return int(found[1])
        return None


def read_peft_config(raw: Mapping[str, Any], *, source: str) -> PeftConfig:
    """Check the contents of an adapter_config.json.

    Args:
        raw: The parsed file.
        source: Where it lies, for error texts.

    Raises:
        ModelError: it describes adapters that agentlab cannot compute as peft does, naming the option; or it lacks
            what it needs.
    """
    kind, task, init = raw.get("peft_type"), raw.get("task_type"), raw.get("init_lora_weights", True)
    if kind != "LORA":
        raise _refused(source, "peft_type", kind, 'only "LORA" is supported')
    if task not in (None, "CAUSAL_LM"):
        raise _refused(source, "task_type", task, 'only "CAUSAL_LM" is supported')
    if init not in UNCHANGING_INITS:
        why = "it changes the model's own weights. Save it with peft's path_initial_model_for_weight_conversion"
        raise _refused(source, "init_lora_weights", init, why)
    if raw.get("bias", "none") != "none":
        raise _refused(source, "bias", raw["bias"], "biases trained beside the adapters are not supported")
    for option, value in raw.items():
        if value and option not in READ | WITHOUT_EFFECT:
            raise _refused(source, option, value, "agentlab has no such adapters")
    missing = [option for option in ("r", "lora_alpha", "target_modules") if raw.get(option) is None]
    if missing:
        raise ModelError(f"{source} must say {missing[0]!r} and does not. Save the adapters again with peft.")
    try:
        _check_values(raw)
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise ModelError(f"{source} describes impossible adapters: {error}. Save them again with peft.") from error
    return PeftConfig(raw, source)


def _check_values(raw: Mapping[str, Any]) -> None:
    """Raise one of Python's own errors where a value is not of its type or range."""
    ranks, alphas = ((raw.get(option) or {}) for option in ("rank_pattern", "alpha_pattern"))
    if not all(int(rank) == rank >= 1 for rank in (raw["r"], *ranks.values())):
        raise ValueError(f"ranks must be whole numbers of at least 1, got {raw['r']!r:.40} and {ranks!r:.80}")
    if not all(math.isfinite(alpha) for alpha in (raw["lora_alpha"], *alphas.values())):
        raise ValueError(f"lora_alpha must be finite, got {raw['lora_alpha']!r:.40} and {alphas!r:.80}")
    expressions = [*ranks, *alphas]
    for option in ("target_modules", "exclude_modules", "layers_pattern"):
        value = raw.get(option) or ""
        if not isinstance(value, str) and not all(isinstance(name, str) for name in value):
            raise TypeError(f"{option} must be a text or a list of texts, got {value!r:.80}")
        expressions += [value] if isinstance(value, str) else value if option == "layers_pattern" else []
    for expression in expressions:
        re.compile(expression)


def written_peft_config(lora: LoraConfig, *, base: str) -> dict[str, Any]:
    """The adapter_config.json of adapters on these layers in every block."""
    alpha = int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": alpha,
        "target_modules": list(lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }


def _names(wanted: Any, layer: str) -> bool:
    """A text is a regular expression of the whole name; a list holds names or their ends."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, layer) is not None
    return any(layer == name or layer.endswith(f".{name}") for name in wanted)


def _refused(source: str, option: str, value: Any, why: str) -> ModelError:
    return ModelError(
        f"{source} says {option}={value!r:.60}, which cannot be loaded: {why}. Merge the adapters into their model "
        "with peft (merge_and_unload), save that, and load it with load_model."
    )
