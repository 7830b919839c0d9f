"""Data-parallel training: every device computes micro-batches of its own on a copy of the weights."""

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentlab.training.forward import Program, Sums, accumulate, score
from agentlab.training.packing import MicroBatch
from agentlab.training.weights import Stacked

AXIS = "replicas"
EACH, ALL = PartitionSpec(AXIS), PartitionSpec()


class Round(NamedTuple):
    """Micro-batches that are computed at the same time, one per device."""

    batch: MicroBatch
    """Of one device as it is; of several with a leading axis [devices]."""
    members: tuple[int, ...]
    """Numbers of the micro-batches in the update; fewer than devices in the last round of a shape."""
    shape: tuple[int, int]


class Replicas:
    """The devices of a trainer, which all hold the same weights. Belongs to the learner thread.

    Args:
        devices: One or more; none is JAX's default device.
    """

    def __init__(self, devices: Sequence[Any] = ()):
        self._mesh = Mesh(np.asarray(devices), (AXIS,)) if len(devices) > 1 else None
        self._device = devices[0] if len(devices) == 1 else None
        self.num = max(len(devices), 1)

    def here(self) -> AbstractContextManager[Any]:
        """What is made in the body is made on the first of these devices, not on one that may be busy sampling."""
        first = self._device if self._mesh is None else self._mesh.devices.flat[0]
        return contextlib.nullcontext() if first is None else jax.default_device(first)

    def replicate(self, tree: Any) -> Any:
        """The same arrays on every device; not copied where they are there."""
        if self._mesh is not None:
            return jax.device_put(tree, NamedSharding(self._mesh, ALL))
        return tree if self._device is None else jax.device_put(tree, self._device)

    def gathered(self, tree: Any, like: Array) -> Any:
        """The same arrays where `like` lies; not copied if that is one of these devices."""
        if self._mesh is None:
            return tree
        own = {shard.device: place for place, shard in enumerate(jax.tree.leaves(tree)[0].addressable_shards)}
        if len(like.devices()) == 1 and (place := own.get(next(iter(like.devices())))) is not None:
            return jax.tree.map(lambda x: x.addressable_data(place), tree)
        return jax.device_put(tree, like.sharding)

    def rounds(self, batches: Sequence[MicroBatch]) -> Iterator[Round]:
        """The micro-batches in their order, those of one shape together, filled up with empty ones."""
        by_shape: dict[tuple[int, int], list[int]] = {}
        for number, batch in enumerate(batches):
            by_shape.setdefault(batch.shape, []).append(number)
        for shape, numbers in by_shape.items():
            for start in range(0, len(numbers), self.num):
                members = tuple(numbers[start : start + self.num])
                yield Round(self._stacked([batches[number] for number in members]), members, shape)

    def split(self, values: Any, size: int) -> list[Any]:
        """What a round gave, by micro-batch: `size` of them."""
        values = jax.device_get(values)
        return [values] if self._mesh is None else [jax.tree.map(operator.itemgetter(i), values) for i in range(size)]

    def zeros(self, trained: Stacked) -> Stacked:
        """Gradients of nothing yet: every device sums up its own."""
        if self._mesh is None:
            return jax.tree.map(jnp.zeros_like, trained)
        return _zeros(self._mesh, trained)

    def total(self, gradients: Stacked) -> Stacked:
        """The sum of all devices' gradients, on every device."""
        return gradients if self._mesh is None else _total(self._mesh, gradients)

    def accumulate(
        self,
        program: Program,
        trained: Stacked,
        frozen: Stacked,
        batch: MicroBatch,
        reference: Array,
        gradients: Stacked,
        *,
        before: Array | None,
        version: int,
    ) -> tuple[Stacked, Sums]:
        """As `forward.accumulate`, of one round."""
        options = {"before": before, "version": version}
        if self._mesh is None:
            return accumulate(program, trained, frozen, batch, reference, gradients, **options)
        return _accumulate(program, self._mesh, trained, frozen, batch, reference, gradients, options)

    def score(self, program: Program, trained: Stacked, frozen: Stacked, batch: MicroBatch) -> Array:
        """As `forward.score`, of one round."""
        if self._mesh is None:
            return score(program, trained, frozen, batch)
        return _score(program, self._mesh, trained, frozen, batch)

    def _stacked(self, batches: Sequence[MicroBatch]) -> MicroBatch:
        if self._mesh is None:
            return batches[0]
        filled = [*batches, *[_empty(batches[0])] * (self.num - len(batches))]
        return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *filled), NamedSharding(self._mesh, EACH))


def _empty(like: MicroBatch) -> MicroBatch:
    blank: MicroBatch = jax.tree.map(np.zeros_like, like)
    nothing = np.full_like(like.segments, -1)
    targets = blank.targets._replace(sequence=np.full_like(like.targets.sequence, -1))
    return blank._replace(segments=nothing, prefixes=nothing, targets=targets)


@functools.partial(jax.jit, static_argnames=("program", "mesh"), donate_argnames="gradients")
def _accumulate(
    program: Program,
    mesh: Mesh,
    trained: Stacked,
    frozen: Stacked,
    batch: MicroBatch,
    reference: Array,
    gradients: Stacked,
    options: dict[str, Any],
) -> tuple[Stacked, Sums]:
    def of_one(trained: Stacked, frozen: Stacked, version: Array, *own: Any) -> Any:
        batch, reference, gradients, before = jax.tree.map(lambda x: x[0], own)
        found = accumulate(program, trained, frozen, batch, reference, gradients, before=before, version=version)
        return jax.tree.map(lambda x: x[None], found)

    own = (batch, reference, gradients, options["before"])
    specs = (ALL, ALL, ALL, EACH, EACH, EACH, EACH)
    mapped = jax.shard_map(of_one, mesh=mesh, in_specs=specs, out_specs=EACH, check_vma=False)
    return mapped(trained, frozen, jnp.asarray(options["version"]), *own)


@functools.partial(jax.jit, static_argnames=("program", "mesh"))
def _score(program: Program, mesh: Mesh, trained: Stacked, frozen: Stacked, batch: MicroBatch) -> Array:
    def of_one(trained: Stacked, frozen: Stacked, batch: MicroBatch) -> Array:
        return score(program, trained, frozen, jax.tree.map(lambda x: x[0], batch))[None]

    specs = (ALL, ALL, EACH)
    return jax.shard_map(of_one, mesh=mesh, in_specs=specs, out_specs=EACH, check_vma=False)(trained, frozen, batch)


@functools.partial(jax.jit, static_argnames="mesh")
def _zeros(mesh: Mesh, trained: Stacked) -> Stacked:
    sharding = NamedSharding(mesh, EACH)
    return {
        name: jax.lax.with_sharding_constraint(jnp.zeros((mesh.size, *array.shape), array.dtype), sharding)
        for name, array in trained.items()
    }


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames="gradients")
def _total(mesh: Mesh, gradients: Stacked) -> Stacked:
    sharding = NamedSharding(mesh, ALL)
    return {name: jax.lax.with_sharding_constraint(x.sum(0), sharding) for name, x in gradients.items()}
