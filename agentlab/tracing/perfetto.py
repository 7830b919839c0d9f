"""Writes spans and counters as a Perfetto trace, to be opened at ui.perfetto.dev."""

import hashlib
import heapq
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from agentlab.errors import ConfigError
from agentlab.files import open_atomically, target_of
from agentlab.tracing.spans import Reading, Span

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
_SEQUENCE = 1
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
    packets = _packets(proto, _in_order(spans, "start_ns"), _in_order(counters, "time_ns"))
    target = target_of(path)
    with open_atomically(target) as file:
        while chunk := [packet for _, packet in zip(range(_PACKETS_PER_WRITE), packets, strict=False)]:
            file.write(proto.Trace(packet=chunk).SerializeToString())
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


def _packets(proto: ModuleType, spans: Iterator[Span], counters: Iterator[Reading]) -> Iterator[Any]:
    """All packets: descriptors before their first use, events by time."""
    for domain, uuid in _PROCESS_UUIDS.items():
        process = {"pid": uuid, "process_name": domain}
        yield _packet(proto, track_descriptor={"uuid": uuid, "name": domain, "process": process})
    yield from heapq.merge(_slices(proto, spans), _readings(proto, counters), key=attrgetter("timestamp"))


def _packet(proto: ModuleType, **fields: Any) -> Any:
    return proto.TracePacket(trusted_packet_sequence_id=_SEQUENCE, **fields)


def _slices(proto: ModuleType, spans: Iterator[Span]) -> Iterator[Any]:
    lanes = _Lanes()
    kind = proto.TrackEvent.Type
    ends: list[tuple[int, int, int]] = []

    def ended_by(moment: float) -> Iterator[Any]:
        while ends and ends[0][0] <= moment:
            end_ns, _, track = heapq.heappop(ends)
            yield _packet(proto, timestamp=end_ns, track_event={"type": kind.TYPE_SLICE_END, "track_uuid": track})

    for order, span in enumerate(spans):
        yield from ended_by(span.start_ns)
        domain = _DOMAIN_OF[span.stage]
        lane, is_new = lanes.place(domain, span)
        track = _uuid("lane", domain, lane)
        if is_new:
            descriptor = {"uuid": track, "parent_uuid": _PROCESS_UUIDS[domain], "name": f"{domain} {lane + 1}"}
            yield _packet(proto, timestamp=span.start_ns, track_descriptor=descriptor)
        event = proto.TrackEvent(type=kind.TYPE_SLICE_BEGIN, track_uuid=track, name=_label(span), categories=[domain])
        event.debug_annotations.extend(_annotation(proto, name, value) for name, value in span.tags.items())
        _connect(event, span)
        yield _packet(proto, timestamp=span.start_ns, track_event=event)
        heapq.heappush(ends, (max(span.end_ns, span.start_ns), -order, track))
    yield from ended_by(float("inf"))


class _Lanes:
    """Lanes of each domain as stacks of open slices."""

    def __init__(self) -> None:
        self._open: dict[str, list[list[tuple[int, Any]]]] = {domain: [] for domain in DOMAINS}

    def place(self, domain: str, span: Span) -> tuple[int, bool]:
        """The first lane that is free, or in which the span nests in its own episode; whether it is new."""
        owner = (span.thread, span.tags.get("group"), span.tags.get("episode"))
        lanes = self._open[domain]
        free = None
        for index, stack in enumerate(lanes):
            while stack and stack[-1][0] <= span.start_ns:
                stack.pop()
            if stack and stack[-1][1] == owner and span.end_ns <= stack[-1][0]:
                free = index
                break
            if not stack and free is None:
                free = index
        if free is None:
            free = len(lanes)
            lanes.append([])
            is_new = True
        else:
            is_new = False
        lanes[free].append((span.end_ns, owner))
        return free, is_new


def _readings(proto: ModuleType, counters: Iterator[Reading]) -> Iterator[Any]:
    known: set[str] = set()
    for reading in counters:
        track = _uuid("counter", reading.name)
        if reading.name not in known:
            known.add(reading.name)
            parent = _PROCESS_UUIDS["loop"]
            descriptor = {"uuid": track, "parent_uuid": parent, "name": reading.name, "counter": {}}
            yield _packet(proto, timestamp=reading.time_ns, track_descriptor=descriptor)
        event = {
            "type": proto.TrackEvent.Type.TYPE_COUNTER,
            "track_uuid": track,
            "double_counter_value": float(reading.value),
        }
        yield _packet(proto, timestamp=reading.time_ns, track_event=event)


def _label(span: Span) -> str:
    name = span.tags.get("tool", span.tags.get("name"))
    return f"{span.stage} {name}" if name else span.stage


def _annotation(proto: ModuleType, name: str, value: Any) -> Any:
    annotation = proto.DebugAnnotation(name=name)
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    else:
        annotation.string_value = str(value)
    return annotation


def _connect(event: Any, span: Span) -> None:
    tags: Mapping[str, Any] = span.tags
    if span.stage == "model_call" and "group" in tags:
        event.flow_ids.append(_uuid("group", tags["group"]))
    groups = tags.get("groups", ())
    if span.stage == "train" and isinstance(groups, tuple | list):
        event.terminating_flow_ids.extend(_uuid("group", group) for group in groups)


def _uuid(*parts: Any) -> int:
    """The same 64-bit number for the same parts, apart from the small ones of the processes."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1 << 32
