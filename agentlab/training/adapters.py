"""Adapters before and behind an update: those that training begins with, and those that are published."""

from typing import Any

from agentlab.errors import ConfigError
from agentlab.models import Adapters, Model, add_lora
from agentlab.models.lora import ADAPTER_NAMES
from agentlab.training.weights import Stacked


def check_adapters(model: Model, rank: int, alpha: float | None) -> None:
    """Refuse to train on from adapters that are not as the options say.

    Args:
        model: With or without adapters.
        rank: The option `lora_rank`.
        alpha: The option `lora_alpha`.

    Raises:
        ConfigError: rank or scale differ, or all weights are to be trained.
    """
    lora = model.config.lora
    if lora and not rank:
        raise ConfigError(
            f"lora_rank=0 trains all weights, but {model.name} has adapters. Set lora_rank={lora.rank} to train those, "
            "or fold them in first: al.load_model(al.save_model(model, folder))."
        )
    if lora and (rank != lora.rank or alpha not in (None, lora.alpha)):
        raise ConfigError(
            f"lora_rank and lora_alpha must be those of the adapters that {model.name} has, {lora.rank} and "
            f"{lora.alpha:g}, got {rank} and {alpha}. Set lora_rank={lora.rank} and leave lora_alpha out, or fold the "
            "adapters in first: al.load_model(al.save_model(model, folder))."
        )


def with_adapters(model: Model, rank: int, alpha: float | None, seed: int) -> Model:
    """The model with the adapters that training begins with: its own, fresh ones, or none where `rank` is 0.

    Raises:
        ConfigError: as `check_adapters`.
    """
    check_adapters(model, rank, alpha)
    return model if model.config.lora or not rank else add_lora(model, rank, alpha=alpha, seed=seed)


def all_adapters(frozen: Stacked, trained: Stacked) -> Stacked:
    """Trained and frozen adapters together; empty where all weights are trained."""
    return {name: array for name, array in (frozen | trained).items() if name.endswith(ADAPTER_NAMES)}


def named_adapters(model: Model, lora: Any, stacked: Stacked) -> Adapters | None:
    """Adapters with the name of the model that they belong to; None where there are none."""
    return Adapters(None if model.changed else model.name, lora, stacked) if lora else None
