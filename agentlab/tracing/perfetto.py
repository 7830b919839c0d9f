"""Writes spans and counters as a Perfetto trace, to be opened at ui.perfetto.dev."""

import hashlib
import heapq
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from agentlab.errors import ConfigError
from agentlab.files import escaped, open_atomically, shown, target_of
from agentlab.tracing.spans import Reading, Span, plain_tag
from agentlab.tracing.wire import Wire

DOMAINS: dict[str, tuple[str, ...]] = {
    "device": ("prefill", "decode", "forward_backward", "optimizer", "weight_sync", "compile"),
    "engine": ("model_call", "queueing", "load"),
    "loop": ("rollout", "queue", "agent", "evaluation", "data"),
    "environments": ("reset", "step", "tool", "reward", "close"),
    "learner": ("train", "advantage", "pack", "checkpoint"),
}
"""The process of the trace in which each stage is drawn."""

_DOMAIN_OF = {stage: domain for domain, stages in DOMAINS.items() for stage in stages}
_PROCESS_UUIDS = {domain: index + 1 for index, domain in enumerate(DOMAINS)}
_PACKETS_PER_WRITE = 500


def save_trace(path: str | os.PathLike[str], spans: Iterable[Span], counters: Iterable[Reading] = ()) -> Path:
    """Write a trace in Perfetto's protobuf format and return its path; nothing half-written is left.

    Every domain is a process. Its lanes are made here: slices share a lane when they follow each
    other, or nest and belong to the same episode. A flow leads from the model calls of a group
    (tag `group`) to the update that trained it (span `train` with tag `groups`, a tuple of their ids).

    Args:
        spans: A sequence in any order, or an iterator by start time, which is read once and not kept.
        counters: Likewise, by time.

    Raises:
        ConfigError: the package `perfetto` is missing, or an iterator is not in order.
        OSError: the file cannot be written.
    """
    proto = _proto()
    packets = _packets(Wire(proto), _in_order(spans, "start_ns"), _in_order(counters, "time_ns"))
    target = target_of(path)
    with open_atomically(target) as file:
        while chunk := b"".join(packet for _, (_, packet) in zip(range(_PACKETS_PER_WRITE), packets, strict=False)):
            file.write(chunk)
    return target


def _proto() -> ModuleType:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise ConfigError(
            f"save_trace needs the package perfetto, which cannot be imported ({error}). "
            "Install it with: pip install perfetto protobuf"
        ) from error
    return perfetto_trace_pb2


def _in_order(items: Iterable[Any], column: str) -> Iterator[Any]:
    key = attrgetter(column)
    if isinstance(items, Sequence):
        yield from sorted(items, key=key)
        return
    last = None
    for item in items:
        if last is not None and key(item) < last:
            raise ConfigError(f"An iterator must come by {column}, got {key(item)} after {last}. Give a sequence.")
        last = key(item)
        yield item


Packet = tuple[float, bytes]
"""When it is, and its bytes."""


def _packets(wire: Wire, spans: Iterator[Span], counters: Iterator[Reading]) -> Iterator[Packet]:
    """All packets: descriptors before their first use, events by time."""
    for domain, uuid in _PROCESS_UUIDS.items():
        process = {"pid": uuid, "process_name": domain}
        yield 0, wire.descriptor(uuid=uuid, name=domain, process=process)
    yield from heapq.merge(_slices(wire, spans), _readings(wire, counters), key=itemgetter(0))


def _slices(wire: Wire, spans: Iterator[Span]) -> Iterator[Packet]:
    lanes = {domain: _Lanes(domain) for domain in DOMAINS}
    begin, stop = wire.part(type=_type(wire, "SLICE_BEGIN")), wire.part(type=_type(wire, "SLICE_END"))
    ends: list[tuple[int, int, int]] = []

    def ended_by(moment: float) -> Iterator[Packet]:
        while ends and ends[0][0] <= moment:
            end_ns, _, track = heapq.heappop(ends)
            yield end_ns, wire.event(end_ns, stop + wire.part(track_uuid=track))

    for order, span in enumerate(spans):
        tags = {escaped(name): plain_tag(value) for name, value in span.tags.items()}
        start_ns = span.start_ns
        yield from ended_by(start_ns)
        domain = _DOMAIN_OF[span.stage]
        lane, is_new = lanes[domain].place(span, tags)
        track = _uuid("lane", domain, lane)
        if is_new:
            named = {"uuid": track, "parent_uuid": _PROCESS_UUIDS[domain], "name": f"{domain} {lane + 1}"}
            yield start_ns, wire.descriptor(start_ns, **named)
        parts = [begin, wire.part(track_uuid=track), wire.part(name=_label(span.stage, tags), categories=(domain,))]
        parts += [wire.annotation(name, value) for name, value in tags.items()]
        yield start_ns, wire.event(start_ns, b"".join([*parts, *_flows(wire, span.stage, tags)]))
        heapq.heappush(ends, (max(span.end_ns, start_ns), -order, track))
    yield from ended_by(float("inf"))


def _type(wire: Wire, name: str) -> int:
    return wire.types.Value(f"TYPE_{name}")


class _Lanes:
    """The lanes of a domain as stacks of open slices. Finding a place takes the logarithm of their number."""

    def __init__(self, domain: str):
        self.domain = domain
        self._ends: list[list[int]] = []
        """By lane: when its open slices end, the outermost first."""
        self._owners: list[Any] = []
        """By lane: the thread and episode of all of its open slices."""
        self._free: list[int] = []
        self._taken: list[tuple[int, int]] = []
        """(end of the outermost slice, lane), the earliest first."""
        self._lanes_of: dict[Any, list[int]] = {}

    def place(self, span: Span, tags: Mapping[str, Any]) -> tuple[int, bool]:
        """The first lane in which the span nests in its own episode, else the first free one; whether it is new."""
        start_ns, end_ns = span.start_ns, span.end_ns
        owner = (span.thread, tags.get("group"), tags.get("episode"))
        while self._taken and self._taken[0][0] <= start_ns:
            self._leave(heapq.heappop(self._taken)[1])
        for lane in self._lanes_of.get(owner, ()):
            ends = self._ends[lane]
            while ends[-1] <= start_ns:
                ends.pop()
            if end_ns <= ends[-1]:
                ends.append(end_ns)
                return lane, False
        is_new = not self._free
        if is_new:
            self._free.append(len(self._ends))
            self._ends.append([])
            self._owners.append(None)
        lane = heapq.heappop(self._free)
        self._ends[lane], self._owners[lane] = [end_ns], owner
        self._lanes_of.setdefault(owner, []).append(lane)
        heapq.heappush(self._taken, (end_ns, lane))
        return lane, is_new

    def _leave(self, lane: int) -> None:
        heapq.heappush(self._free, lane)
        mine = self._lanes_of[self._owners[lane]]
        mine.remove(lane)
        if not mine:
            del self._lanes_of[self._owners[lane]]


def _readings(wire: Wire, counters: Iterator[Reading]) -> Iterator[Packet]:
    count, known = _type(wire, "COUNTER"), set[str]()
    for reading in counters:
        track = _uuid("counter", reading.name)
        if reading.name not in known:
            known.add(reading.name)
            named = {"uuid": track, "parent_uuid": _PROCESS_UUIDS["loop"], "name": escaped(reading.name), "counter": {}}
            yield reading.time_ns, wire.descriptor(reading.time_ns, **named)
        event = wire.part(type=count, track_uuid=track) + wire.value(float(reading.value))
        yield reading.time_ns, wire.event(reading.time_ns, event)


def _label(stage: str, tags: Mapping[str, Any]) -> str:
    name = tags.get("tool", tags.get("name"))
    return f"{stage} {shown(name, str)}" if name else stage


def _flows(wire: Wire, stage: str, tags: Mapping[str, Any]) -> list[bytes]:
    if stage == "model_call" and "group" in tags:
        return [wire.part(flow_ids=(_uuid("group", tags["group"]),))]
    groups = tags.get("groups", ())
    if stage == "train" and isinstance(groups, tuple | list):
        return [wire.part(terminating_flow_ids=(_uuid("group", group),)) for group in groups]
    return []


@lru_cache(16_384)
def _uuid(*parts: Any) -> int:
    """The same 64-bit number for the same parts, apart from the small ones of the processes."""
    digest = hashlib.blake2b("\0".join(shown(part, str) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1 << 32
