"""How many slots of the cache a device's memory holds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding

from agentlab.errors import ConfigError
from agentlab.models.config import DecoderConfig
from agentlab.platform.detect import free_memory_bytes
from agentlab.types import checked_option

WORKING_SHARE = 0.5
"""What a decode of a part of the slots copies out of the cache, as a share of it, at most."""


@dataclass(frozen=True)
class MemoryPlan:
    """The engine's cache, and the memory that it was planned for."""

    num_slots: int
    tokens_per_slot: int
    slot_bytes: int
    """Keys and values of one slot."""
    free_bytes: int | None
    """Of the devices together, before the cache was made; None where they do not say."""
    share: float
    """Of the free memory that the cache may take."""

    @property
    def cache_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    def __str__(self) -> str:
        free = "unknown" if self.free_bytes is None else f"{self.free_bytes / 1e9:.2f} GB"
        return (
            f"{self.num_slots} slots of {self.tokens_per_slot} tokens: {self.cache_bytes / 1e9:.2f} GB of cache "
            f"(free: {free}, of which {self.share:.0%} may be used)"
        )


def plan_memory(
    config: DecoderConfig,
    *,
    num_slots: int | None,
    max_slots: int,
    tokens_per_slot: int,
    item_bytes: int,
    free_bytes: int | None,
    share: float,
) -> MemoryPlan:
    """As many slots as asked for, or as the memory holds.

    Args:
        config: Of the model.
        num_slots: As asked for; None plans them.
        max_slots: Most that are planned.
        tokens_per_slot: Length of a slot.
        item_bytes: Of a number in the cache.
        free_bytes: Of the devices together; None where they do not say, which holds anything.
        share: Of the free memory that cache and working copies may take.

    Raises:
        ConfigError: the memory does not hold the slots that were asked for, or not even one; or the share
            is impossible.
    """
    if not 0 < checked_option("memory_share", share, float) <= 1:
        raise ConfigError(f"memory_share must lie in (0, 1], got {share}.")
    slot_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * tokens_per_slot * item_bytes
    wanted = max_slots if num_slots is None else num_slots
    fitting = wanted if free_bytes is None else int(free_bytes * share / (slot_bytes * (1 + WORKING_SHARE)))
    if fitting < (1 if num_slots is None else num_slots):
        raise ConfigError(
            f"The cache must fit into {share:.0%} of the {(free_bytes or 0) / 1e9:.2f} GB that are free, but "
            f"{'one slot' if num_slots is None else f'{num_slots} slots'} of {tokens_per_slot} tokens need "
            f"{(num_slots or 1) * slot_bytes * (1 + WORKING_SHARE) / 1e9:.2f} GB with their working copies; "
            f"{fitting} would fit. Lower num_slots or tokens_per_slot, or raise memory_share."
        )
    return MemoryPlan(min(wanted, fitting), tokens_per_slot, slot_bytes, free_bytes, share)


def free_device_bytes(devices: Sequence[Any], layout: NamedSharding | None = None) -> int | None:
    """Memory that is free for one cache of this layout on these devices; None where they do not say.

    Where devices hold copies of the cache, each copy takes its own. Of devices that compute in the
    machine's main memory it is what is free there.
    """
    copies = len(devices)
    if layout is not None:
        copies //= math.prod(layout.mesh.shape[axis] for axis in layout.spec if axis)
    stats = [device.memory_stats() for device in devices]
    if all(one and "bytes_limit" in one for one in stats):
        free = [one["bytes_limit"] - one.get("bytes_in_use", 0) for one in stats]
        return min(free) * len(free) // copies
    machine = free_memory_bytes() if all(device.platform == "cpu" for device in devices) else None
    return None if machine is None else machine // copies
