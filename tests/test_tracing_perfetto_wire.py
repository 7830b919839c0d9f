"""The Perfetto file, read by a parser of its own: wire format by hand, field numbers from Perfetto's documentation.

Sources: protobuf.dev, "Encoding"; trace_packet.proto, track_descriptor.proto and track_event.proto
of perfetto.dev.
"""

import random
import struct
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.tracing import Reading, Span, save_trace, wire

DESCRIPTOR, EVENT, TIMESTAMP, SEQUENCE = 60, 11, 8, 10
UUID, NAME, PROCESS, PARENT, COUNTER = 1, 2, 3, 5, 8
TYPE, TRACK, EVENT_NAME, COUNTER_VALUE, FLOWS, ENDING_FLOWS = 9, 11, 23, 44, 47, 48
BEGIN, END, COUNT = 1, 2, 4


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message; raises where the bytes are no message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        assert number > 0
        if kind == 0:
            value, at = varint(data, at)
        else:
            assert kind in (1, 2, 5), f"wire type {kind} does not exist"
            size, at = varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
            assert at + size <= len(data)
            value, at = data[at : at + size], at + size
        yield number, value


def message(data: bytes) -> dict[int, list]:
    found = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


def longs(values: list) -> list[int]:
    """Of a repeated fixed64 field, packed or not."""
    return [number for value in values for (number,) in struct.iter_unpack("<Q", value)]


def test_another_parser_finds_processes_lanes_nesting_order_counters_and_flows(tmp_path):
    draw = random.Random(0)
    spans, stages = [], ["decode", "model_call", "step", "tool", "train", "rollout", "reward"]
    for index in range(500):
        start = draw.randrange(10**6)
        tags = {"group": f"g{index % 5}", "episode": index % 3}
        if (stage := draw.choice(stages)) == "train":
            tags = {"groups": ("g0", "g1")}
        spans.append(Span(stage, start, start + draw.randrange(1, 5000), "t", tags))
    names = ["queue_depth", "slots_in_use", "tokens_per_s", "staleness", "reward"]
    readings = [Reading(name, index * 1000, index + 0.5) for index in range(20) for name in names]
    data = save_trace(tmp_path / "trace", spans, readings).read_bytes()

    tracks, parents, opened, last = {}, {}, defaultdict(list), 0
    slices, counts, flows, ended = [], [], set(), set()
    for number, packet in fields(data):
        assert number == 1  # a trace is packets and nothing else
        packet = message(packet)
        assert packet[SEQUENCE]
        for raw in packet[DESCRIPTOR]:
            track = message(raw)
            (uuid,) = track[UUID]
            tracks[uuid] = track[NAME][0].decode()
            parents[uuid] = track[PARENT][0] if track[PARENT] else None
            assert track[PROCESS] or track[PARENT]
        for raw in packet[EVENT]:
            event = message(raw)
            (track,), (kind,), (moment,) = event[TRACK], event[TYPE], packet[TIMESTAMP]
            assert track in tracks, "a track is described before it is used"
            assert moment >= last
            last = moment
            flows.update(longs(event[FLOWS]))
            ended.update(longs(event[ENDING_FLOWS]))
            if kind == BEGIN:
                opened[track].append((event[EVENT_NAME][0].decode(), moment))
            elif kind == END:
                name, began = opened[track].pop()
                slices.append((tracks[parents[track]], name, began, moment))
            else:
                assert kind == COUNT
                counts.append((tracks[track], moment, struct.unpack("<d", event[COUNTER_VALUE][0])[0]))
    assert not any(opened.values())
    assert sorted(slices) == sorted((PROCESS_OF[s.stage], s.stage, s.start_ns, s.end_ns) for s in spans)
    assert sorted(counts) == sorted((r.name, r.time_ns, r.value) for r in readings)
    assert ended and ended < flows  # of five groups, two were trained on


PROCESS_OF = {
    "decode": "device",
    "model_call": "engine",
    "step": "environments",
    "tool": "environments",
    "reward": "environments",
    "train": "learner",
    "rollout": "loop",
}


@given(st.integers(0, 2**64 - 1))
def test_a_number_is_read_back_as_it_was_and_is_as_short_as_protobuf_says(number):
    data = wire.varint(number)
    assert varint(data, 0) == (number, len(data))
    assert len(data) == max(1, -(-number.bit_length() // 7))


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="0 or more, got -1"):
        wire.varint(-1)
