"""The Perfetto file, parsed back: nothing lost, slices nest, timestamps ordered, flows connect."""

import importlib
import time
import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.errors import ConfigError
from agentlab.tracing import STAGES, Reading, Span, save_trace
from agentlab.tracing.perfetto import DOMAINS

pb = importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def packets(path):
    return list(pb.Trace.FromString(path.read_bytes()).packet)


def slices(path) -> list[tuple[str, str, int, int]]:
    """(process, name, start, end) of every slice; fails where a track does not nest or has no descriptor."""
    names, parents, opened = {}, {}, defaultdict(list)
    found, last = [], -1
    for packet in packets(path):
        if packet.HasField("track_descriptor"):
            names[packet.track_descriptor.uuid] = packet.track_descriptor.name
            parents[packet.track_descriptor.uuid] = packet.track_descriptor.parent_uuid
            continue
        assert packet.timestamp >= last
        last = packet.timestamp
        event = packet.track_event
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            opened[event.track_uuid].append((event.name, packet.timestamp))
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            name, start = opened[event.track_uuid].pop()
            found.append((names[parents[event.track_uuid]], name, start, packet.timestamp))
    assert not any(opened.values())
    return sorted(found)


def test_every_stage_has_exactly_one_domain():
    drawn = [stage for stages in DOMAINS.values() for stage in stages]
    assert sorted(drawn) == sorted(STAGES)


def test_overlapping_slices_get_lanes_and_a_tool_nests_in_its_step(tmp_path):
    spans = [
        Span("step", 10, 50, "w", {"group": "a", "episode": 0}),
        Span("tool", 20, 40, "w", {"group": "a", "episode": 0, "tool": "calculator"}),
        Span("step", 30, 60, "w", {"group": "a", "episode": 1}),
        Span("decode", 5, 15, "agentlab-engine"),
        Span("decode", 15, 25, "agentlab-engine"),
    ]
    path = save_trace(tmp_path / "run.pftrace", spans)
    assert slices(path) == [
        ("device", "decode", 5, 15),
        ("device", "decode", 15, 25),
        ("environments", "step", 10, 50),
        ("environments", "step", 30, 60),
        ("environments", "tool calculator", 20, 40),
    ]
    lanes = {p.track_descriptor.name for p in packets(path) if p.track_descriptor.parent_uuid}
    assert lanes == {"device 1", "environments 1", "environments 2"}
    assert [p.name for p in tmp_path.iterdir()] == ["run.pftrace"]


def test_a_flow_leads_from_a_groups_model_calls_to_its_update(tmp_path):
    spans = [
        Span("model_call", 0, 5, "", {"group": "a", "turn": 0}),
        Span("model_call", 1, 6, "", {"group": "b", "turn": 0}),
        Span("train", 10, 20, "", {"groups": ("a", "b")}),
    ]
    events = [p.track_event for p in packets(save_trace(tmp_path / "t", spans))]
    begun = [flow for event in events for flow in event.flow_ids]
    ended = [flow for event in events for flow in event.terminating_flow_ids]
    assert begun == ended
    assert len(set(begun)) == 2


def test_counters_become_counter_tracks(tmp_path):
    readings = [Reading("queue_depth", 7, 2), Reading("queue_depth", 3, 1.5), Reading("tokens_per_s", 5, 9)]
    parsed = packets(save_trace(tmp_path / "t", [], readings))
    names = {p.track_descriptor.uuid: p.track_descriptor.name for p in parsed if p.HasField("track_descriptor")}
    values = [
        (names[p.track_event.track_uuid], p.timestamp, p.track_event.double_counter_value)
        for p in parsed
        if p.HasField("track_event")
    ]
    assert values == [("queue_depth", 3, 1.5), ("tokens_per_s", 5, 9.0), ("queue_depth", 7, 2.0)]


def test_tags_are_kept_as_annotations(tmp_path):
    tags = {"turn": 3, "ok": True, "score": 0.5, "text": "é", "huge": 2**80}
    (event,) = [
        p.track_event
        for p in packets(save_trace(tmp_path / "t", [Span("agent", 1, 2, "", tags)]))
        if p.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN
    ]
    kept = {a.name: getattr(a, a.WhichOneof("value")) for a in event.debug_annotations}
    assert kept == {"turn": 3, "ok": True, "score": 0.5, "text": "é", "huge": str(2**80)}


def test_a_failure_keeps_the_old_file_and_leaves_nothing_half_written(tmp_path):
    path = save_trace(tmp_path / "t", [Span("agent", 1, 2)])
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="must come by start_ns"):
        save_trace(path, iter([Span("agent", 5, 6), Span("agent", 1, 2)]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_memory_does_not_grow_with_the_number_of_spans(tmp_path):
    def peak(count: int) -> int:
        tracemalloc.start()
        save_trace(tmp_path / "t", (Span("decode", 10 * i, 10 * i + 8, "engine", {"step": i}) for i in range(count)))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(100)
    assert peak(8000) < 2 * peak(2000)


def test_a_thousand_episodes_at_once_take_no_longer_per_span_than_a_few(tmp_path):
    """Seconds of processor time; lanes searched one by one would take a hundred times as long."""

    def seconds(at_once: int, count: int = 6000) -> float:
        spans = [
            Span("model_call", i, i + at_once, "loop", {"group": "g", "episode": i % at_once}) for i in range(count)
        ]
        began_s = time.thread_time()
        save_trace(tmp_path / "t", spans)
        return time.thread_time() - began_s

    seconds(1)
    assert seconds(3000) < 5 * seconds(3)


moments = st.integers(0, 2**40)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(sorted(STAGES)), moments, moments, st.integers(0, 3)), max_size=30))
def test_any_spans_survive_the_round_trip(tmp_path_factory, rows):
    spans = [Span(stage, min(a, b), max(a, b), "t", {"episode": episode}) for stage, a, b, episode in rows]
    found = slices(save_trace(tmp_path_factory.mktemp("trace") / "t", spans))
    assert sorted((name, start, end) for _, name, start, end in found) == sorted(s[:3] for s in spans)
