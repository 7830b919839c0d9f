"""Which devices sample and which train: what the user asked for, what the plan says, and the model laid out so."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from agentlab.errors import ConfigError, nearest
from agentlab.models import Model
from agentlab.models.sharding import lay_out, num_devices
from agentlab.models.tree import flat_arrays
from agentlab.platform import Plan, plan
from agentlab.training import Algorithm, Trainer
from agentlab.types import checked_option

Placement = Literal["auto", "colocated", "disaggregated"]


@dataclass(frozen=True)
class Placing:
    """Where a learner's engine and trainer are to run.

    Args:
        placement: "colocated" samples and trains on the same devices, "disaggregated" on devices of their own;
            "auto" leaves it to `agentlab.platform.plan`.
        engine_devices: How many devices sample where it is disaggregated; None is half of them.
        own_engine: Whether the user brought the engine, which then has its place already.

    Raises:
        ConfigError: an option is impossible.
    """

    placement: Placement
    engine_devices: int | None
    own_engine: bool

    def __post_init__(self) -> None:
        known = get_args(Placement)
        if self.placement not in known:
            raise ConfigError(
                f"placement must be one of {', '.join(known)}, got {self.placement!r}."
                + (nearest(self.placement, known) if isinstance(self.placement, str) else "")
            )
        if self.engine_devices is not None and checked_option("engine_devices", self.engine_devices, int) < 1:
            raise ConfigError(f"engine_devices must be at least 1, got {self.engine_devices}.")
        if self.engine_devices is not None and self.placement != "disaggregated":
            raise ConfigError(
                f"engine_devices={self.engine_devices} splits the devices, but placement is {self.placement!r}. "
                'Set placement="disaggregated", or leave engine_devices out.'
            )
        if self.own_engine and self.placement == "disaggregated":
            raise ConfigError(
                'placement="disaggregated" places the built-in engine, but an engine was given, which has its place '
                "already. Leave out one of the two."
            )

    def plan(self, model: Model, config: Any) -> Plan:
        """What is done on the devices that JAX has here. A model on a mesh of several stays there (colocated)."""
        stays = self.own_engine or num_devices(model.params) > 1
        mode = None if self.placement == "auto" else self.placement
        return plan(
            model.config,
            config,
            mode="colocated" if mode is None and stays else mode,
            engine_devices=self.engine_devices,
            item_bytes=flat_arrays(model.params)["embed_tokens",].dtype.itemsize,
        )

    def shared(self, made: Plan, model: Model) -> Model:
        """The model as it is, or over all devices where several of them both sample and train."""
        several = made.mode == "colocated" and len(made.engine) > 1 and num_devices(model.params) == 1
        return laid_out(model, made.found("engine")) if several and not self.own_engine else model


def sampled_model(made: Plan, model: Model) -> Model:
    """The model where it samples."""
    return model if made.mode == "colocated" else laid_out(model, made.found("engine"))


def trainer_of(made: Plan, model: Model, config: Any, algorithm: Algorithm) -> Trainer:
    """A trainer on the devices that train, which publishes to those that sample."""
    options: dict[str, Any] = {"temperature": config.temperature}
    if made.mode == "disaggregated":
        devices = made.found("trainer")
        model = laid_out(model, devices[:1])
        options |= {"devices": devices, "publish_to": made.found("engine")}
    return Trainer(model, config, algorithm, **options)


def notes_of(made: Plan) -> tuple[str, ...]:
    """What a person should see of the plan when a run begins: where there was a choice, and what decoding waits for."""
    if len(made.devices) == 1 or (made.devices[0].platform == "cpu" and made.mode == "colocated"):
        return ()
    return (f"{made.line()}.", *made.advice)


def laid_out(model: Model, devices: list[Any]) -> Model:
    """The same model on these devices."""
    return replace(model, params=lay_out(model.config, model.params, devices))
