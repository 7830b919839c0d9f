"""Where engine and trainer run, and what memory that takes: said before anything is allocated."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from agentlab.errors import ConfigError
from agentlab.platform.detect import Device, Platform, detect
from agentlab.types import checked_option

Mode = Literal["colocated", "disaggregated"]
Where = Literal["engine", "trainer"]

USABLE_SHARE = 0.92
"""Of a device's memory; the rest goes to the runtime and to gaps between arrays."""
PEAK_FLOPS = {"TPU v5 lite": 197e12, "TPU v5e": 197e12, "TPU v6 lite": 918e12, "TPU v6e": 918e12, "TPU v4": 275e12}
"""Of one device, in bfloat16. Source: the system architecture pages of Cloud TPU."""
CPU_FLOPS = 1e11
"""Of the processor cores together; an order of magnitude."""
OTHER_FLOPS = 1e14
"""Of an accelerator that is not listed; an order of magnitude."""
EFFICIENCY = 0.3
"""Share of the peak that a forward and backward pass of a small model reaches."""
LONGEST_WAIT_S = 0.5
"""Seconds that decoding may wait for a micro-batch on the same device."""
FLOAT32 = 4
QUANTIZED_BYTES = {"nf4": 0.5 + FLOAT32 / 64, "int8": 1 + FLOAT32 / 64}
"""Of one quantised weight, with its part of the scale that 64 of them share."""
CACHE = "keys and values"


class Shape(Protocol):
    """What is asked of a model; `agentlab.models.DecoderConfig` has it."""

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


class Options(Protocol):
    """What is asked of a configuration; `agentlab.GRPOConfig` has it."""

    @property
    def num_slots(self) -> int: ...
    @property
    def max_concurrency(self) -> int: ...
    @property
    def tokens_per_slot(self) -> int: ...
    @property
    def lora_rank(self) -> int: ...
    @property
    def base_type(self) -> str | None: ...
    @property
    def micro_batch_tokens(self) -> int: ...
    @property
    def row_tokens(self) -> int: ...
    @property
    def logit_chunk_tokens(self) -> int: ...
    @property
    def remat(self) -> bool: ...


@dataclass(frozen=True)
class Need:
    """One thing that takes memory."""

    name: str
    where: Where
    size_bytes: int
    """On all devices of its part together."""
    lower: str = ""
    """The option that makes it smaller."""
    whole: bool = False
    """Every device of its part holds all of it; else each holds a share."""

    def on_one(self, num_devices: int) -> int:
        """Bytes on one of the devices of its part."""
        return self.size_bytes if self.whole else -(-self.size_bytes // num_devices)


@dataclass(frozen=True)
class Plan:
    """Which devices sample and which train, with the memory that each of them needs.

    `print(plan)` shows it; `check()` refuses one that does not fit.
    """

    mode: Mode
    devices: tuple[Device, ...]
    engine: tuple[int, ...]
    """Places in `devices` of those that sample."""
    trainer: tuple[int, ...]
    """Places in `devices` of those that train; the same ones where both are colocated."""
    needs: tuple[Need, ...]
    limit_bytes: int | None
    """Usable memory of one device; None where it is not known."""
    micro_batch_s: float
    """Seconds that a micro-batch takes: where colocated, decoding waits that long."""
    advice: tuple[str, ...] = ()
    """What to lower, where it does not fit or decoding would wait long."""

    def device_bytes(self, where: Where) -> int:
        """Memory that one device of this part needs for everything it does."""
        shares = {"engine": len(self.engine), "trainer": len(self.trainer)}
        mine = [need for need in self.needs if self.mode == "colocated" or need.where == where]
        return sum(need.on_one(shares[need.where]) for need in mine)

    def found(self, where: Where) -> list[Any]:
        """JAX's own objects for the devices of this part, on the machine that was planned for."""
        import jax

        every = jax.devices()
        return [every[place] for place in (self.engine if where == "engine" else self.trainer)]

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory, as far as is known."""
        parts: tuple[Where, ...] = ("engine", "trainer")
        return self.limit_bytes is None or max(map(self.device_bytes, parts)) <= self.limit_bytes

    def check(self) -> "Plan":
        """The plan itself, if it fits.

        Raises:
            ConfigError: it does not; the text says what to lower.
        """
        if not self.fits:
            raise ConfigError(f"The run must fit into the memory of its devices, and does not.\n{self}")
        return self

    def line(self) -> str:
        """The plan in one line."""
        kind = self.devices[0].kind if self.devices else "no device"
        where = f"{self.mode} on {len(self.devices)} x {kind}"
        if self.mode == "disaggregated":
            where += f" ({len(self.engine)} sample, {len(self.trainer)} train)"
        most = max(self.device_bytes("engine"), self.device_bytes("trainer"))
        limit = "unknown" if self.limit_bytes is None else _size(self.limit_bytes)
        return f"Plan: {where}, about {_size(most)} of {limit} per device"

    def __str__(self) -> str:
        width = max(len(need.name) for need in self.needs)
        lines = [self.line()]
        lines += [
            f"  {n.name.ljust(width)}  {n.where.ljust(7)}  {_size(n.size_bytes).rjust(10)}{' each' * n.whole}"
            for n in self.needs
        ]
        lines.append(f"  a micro-batch takes about {self.micro_batch_s:.2g} s")
        return "\n".join([*lines, *(f"  {text}" for text in self.advice)])


def plan(
    shape: Shape,
    config: Options,
    *,
    machine: Platform | None = None,
    mode: Mode | None = None,
    engine_devices: int | None = None,
    item_bytes: int = 4,
) -> Plan:
    """Choose where to sample and where to train, and estimate the memory. Allocates nothing.

    One device, or processor cores, do both in turn (colocated). Several accelerators are split in
    halves (disaggregated), unless the model does not fit into half of them but fits into all.
    Colocated, several devices hold a share of everything each. Disaggregated, those that sample hold a
    share each, and those that train hold all weights each and compute micro-batches of their own.
    Estimates are of the order of what is used: within about a third for decoders of common shape.

    Args:
        shape: Of the model, e.g. `model.config`.
        config: Of the run.
        machine: What there is; None asks this machine.
        mode: What to do, whatever the devices say.
        engine_devices: How many devices sample where some sample and others train; None is half of them.
        item_bytes: Of one weight as it is served.

    Raises:
        ConfigError: the mode, or the number of devices that sample, is impossible on these devices.
    """
    found = detect() if machine is None else machine
    devices = found.devices or (Device("cpu", "cpu"),)
    if mode == "disaggregated" and len(devices) < 2:
        raise ConfigError(f"mode='disaggregated' needs at least 2 devices, got {len(devices)}. Use mode='colocated'.")
    split = len(devices) > 1 and devices[0].platform != "cpu"
    chosen = mode or ("disaggregated" if split else "colocated")
    num_sampling = _num_sampling(chosen, engine_devices, len(devices))

    def make(mode: Mode, config: Options) -> Plan:
        return _made(mode, shape, config, found, devices, item_bytes, num_sampling)

    made = make(chosen, config)
    if mode is None and engine_devices is None and split and not made.fits:
        together = make("colocated", config)
        made = together if together.fits else made
    return replace(made, advice=tuple(_advice(made, config, functools.partial(make, made.mode))))


def _num_sampling(mode: Mode, engine_devices: int | None, num_devices: int) -> int:
    if engine_devices is None:
        return num_devices // 2
    if mode == "colocated":
        raise ConfigError(
            f"engine_devices must be left out where every device samples and trains (colocated), got {engine_devices}."
        )
    if not 1 <= checked_option("engine_devices", engine_devices, int) < num_devices:
        raise ConfigError(
            f"engine_devices must lie between 1 and {num_devices - 1}, got {engine_devices}: there are {num_devices} "
            "devices, and at least one must train."
        )
    return engine_devices


def memory_needs(shape: Shape, config: Options, item_bytes: int) -> tuple[Need, ...]:
    """What takes memory, and how much, on all devices of its part together."""
    weights = shape.num_parameters * item_bytes
    trained = adapter_parameters(shape, config.lora_rank) if config.lora_rank else shape.num_parameters
    slots = config.num_slots or config.max_concurrency
    cache = 2 * slots * config.tokens_per_slot * shape.num_layers * shape.num_kv_heads * shape.head_dim * item_bytes
    return (
        Need("weights that sample", "engine", weights),
        Need("weights that come next", "engine", weights),
        Need(CACHE, "engine", cache * 3 // 2, "num_slots or tokens_per_slot"),
        Need("model as it was loaded", "trainer", weights),
        Need("frozen weights", "trainer", frozen_bytes(shape, config, item_bytes) if config.lora_rank else 0),
        Need("trained weights", "trainer", trained * FLOAT32, "lora_rank"),
        Need("optimizer state", "trainer", 2 * trained * FLOAT32, "lora_rank"),
        Need("gradients", "trainer", 2 * trained * FLOAT32, "lora_rank"),
        Need("activations", "trainer", activation_bytes(shape, config), "micro_batch_tokens"),
        Need("logits", "trainer", 3 * config.logit_chunk_tokens * shape.vocab_size * FLOAT32, "logit_chunk_tokens"),
    )


def frozen_bytes(shape: Shape, config: Options, item_bytes: int) -> int:
    """Of the weights under adapters, beside the model's own: of one layer at a time, or of all if quantised."""
    per_layer = linear_parameters(shape)
    if config.base_type is None:
        return per_layer * item_bytes
    return int(shape.num_layers * per_layer * QUANTIZED_BYTES[config.base_type])


def linear_parameters(shape: Shape) -> int:
    """Weights of the linear maps of one layer."""
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return shape.hidden_size * (2 * query + 2 * key + 3 * shape.intermediate_size)


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Parameters of adapters on all linear layers: rank * (in + out) each."""
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = 2 * (shape.hidden_size + query) + 2 * (shape.hidden_size + key)
    return rank * shape.num_layers * (attention + 3 * (shape.hidden_size + shape.intermediate_size))


def activation_bytes(shape: Shape, config: Options) -> int:
    """Of one micro-batch, forward and backward: everything inside a layer, or only its input with `remat`.

    Inside a layer: about 8 vectors of the hidden size, 4 of the inner one and 2 rows of attention scores
    per head and token.
    """
    inside = 8 * shape.hidden_size + 4 * shape.intermediate_size + 2 * shape.num_heads * config.row_tokens
    layers = 1 if config.remat else shape.num_layers
    return config.micro_batch_tokens * FLOAT32 * (inside * layers + shape.hidden_size * shape.num_layers)


def micro_batch_seconds(shape: Shape, config: Options, devices: Sequence[Device]) -> float:
    """About how long they take for one micro-batch: 6 or, with `remat`, 8 operations per parameter and token."""
    first = devices[0]
    peak = CPU_FLOPS if first.platform == "cpu" else PEAK_FLOPS.get(first.kind, OTHER_FLOPS) * len(devices)
    operations = (8 if config.remat else 6) * shape.num_parameters * config.micro_batch_tokens
    return operations / (peak * EFFICIENCY)


def _made(
    mode: Mode,
    shape: Shape,
    config: Options,
    machine: Platform,
    devices: Sequence[Device],
    item_bytes: int,
    num_sampling: int,
) -> Plan:
    every = tuple(range(len(devices)))
    if mode == "disaggregated":
        engine, trainer = every[:num_sampling], every[num_sampling:]
    else:  # processor cores are one device, however many JAX makes of them
        engine = trainer = every[:1] if devices[0].platform == "cpu" else every
    known = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    limit = min(known) if len(known) == len(devices) else None
    if limit is None and devices[0].platform == "cpu" and machine.memory_bytes is not None:
        limit = machine.memory_bytes // (1 if mode == "colocated" else len(devices))
    return Plan(
        mode=mode,
        devices=tuple(devices),
        engine=engine,
        trainer=trainer,
        needs=tuple(_laid_out(mode, memory_needs(shape, config, item_bytes), shape, len(engine))),
        limit_bytes=None if limit is None else int(limit * USABLE_SHARE),
        micro_batch_s=micro_batch_seconds(shape, config, devices[: 1 if mode == "disaggregated" else len(engine)]),
    )


def _laid_out(mode: Mode, needs: Sequence[Need], shape: Shape, num_sampling: int) -> Iterator[Need]:
    """The needs, with what is whole on every device of its part."""
    for need in needs:
        copied = mode == "disaggregated" and need.where == "trainer"
        unequal = need.name == CACHE and bool(shape.num_kv_heads % num_sampling)
        yield replace(need, whole=copied or unequal)
    if mode == "disaggregated" and num_sampling > 1:  # one of them still holds what was loaded
        weights = next(need for need in needs if need.where == "engine")
        yield replace(weights, name="model as it was loaded", whole=True)


def _advice(made: Plan, config: Options, remade: Callable[[Options], Plan]) -> Iterator[str]:
    """What to lower: options that alone would make it fit, else those that take most."""
    if made.mode == "colocated" and made.micro_batch_s > LONGEST_WAIT_S:
        fitting = max(config.row_tokens, int(config.micro_batch_tokens * LONGEST_WAIT_S / made.micro_batch_s))
        name = "micro_batch_tokens" if fitting < config.micro_batch_tokens else "row_tokens"
        yield (
            f"Decoding waits about {made.micro_batch_s:.1f} s for a micro-batch: lower {name}"
            + (f" to {fitting}." if fitting < config.micro_batch_tokens else " and micro_batch_tokens.")
        )
    if made.fits:
        return
    for name, value in _smaller(config):
        if remade(_changed(config, name, value)).fits:
            yield f"It would fit with {name}={value}."
    largest = sorted((need for need in made.needs if need.lower), key=lambda need: -need.size_bytes)[:2]
    names = ", ".join(f"{need.lower} ({need.name}: {_size(need.size_bytes)})" for need in largest)
    yield f"Largest of what can be lowered: {names}. Or take a smaller model, or more devices."


def _smaller(config: Options) -> Iterator[tuple[str, Any]]:
    """Options with smaller values, the gentlest of each first to last."""
    slots = config.num_slots or config.max_concurrency
    for name, value, least in (
        ("num_slots", slots, 1),
        ("tokens_per_slot", config.tokens_per_slot, 64),
        ("micro_batch_tokens", config.micro_batch_tokens, config.row_tokens),
    ):
        while value > least:
            value = max(least, value // 2)
            yield name, value
    if not config.remat:
        yield "remat", True
    if not config.lora_rank:
        yield "lora_rank", 16


@dataclass(frozen=True)
class _Changed:
    """A configuration as far as the plan asks."""

    num_slots: int
    max_concurrency: int
    tokens_per_slot: int
    lora_rank: int
    base_type: str | None
    micro_batch_tokens: int
    row_tokens: int
    logit_chunk_tokens: int
    remat: bool


def _changed(config: Options, name: str, value: Any) -> Options:
    kept = {field: getattr(config, field) for field in _Changed.__dataclass_fields__}
    return _Changed(**(kept | {name: value}))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**28 else f"{size_bytes / 2**20:.1f} MiB"
