"""Long runs: what no longer fits in memory is kept on disk, and everything comes back in order."""

import errno
import io
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab import tracing
from agentlab.tracing import all_spans, now_ns, record, separate, span, spans, spill, spilled, tagged
from agentlab.tracing.buffers import Buffers
from agentlab.tracing.spill import MAX_WAITING, Spill, by_start


def test_nothing_is_lost_when_memory_is_full_and_all_comes_back_by_start():
    with separate(max_records=1000):
        spill()
        for index in range(20_000):
            record("decode", 10 * index, 10 * index + 5, index=index)
        record("rollout", 3, 200_000, group="g")  # ends last, began almost first
        found = list(all_spans())
        kept = spans()
        assert spilled().num_records + len(kept) == 20_001
    assert len(kept) <= 1000
    assert [s.start_ns for s in found] == sorted(s.start_ns for s in found)
    assert [s.tags["index"] for s in found if s.stage == "decode"] == list(range(20_000))
    assert [s.tags for s in found if s.stage == "rollout"] == [{"group": "g"}]


def test_spans_of_many_threads_are_merged_and_keep_their_thread():
    with separate(max_records=400):
        spill()

        def work(number: int):
            for index in range(1000):
                record("tool", 4 * index + number, 4 * index + number + 2)

        threads = [threading.Thread(target=work, args=(n,), name=f"w{n}") for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = list(all_spans())
    assert [s.start_ns for s in found] == list(range(4000))
    assert all(s.thread == f"w{s.start_ns % 4}" for s in found)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=200),
    st.integers(1, 50),
    st.integers(0, 10**6),
)
def test_whatever_the_limit_every_record_is_given_exactly_once(pairs, limit, since_ns):
    kept = Spill()
    buffers = Buffers(limit, kept.put)
    records = [("step", min(p), max(p), (), "index", index) for index, p in enumerate(pairs)]
    for one in records:
        buffers.append(one)
    found = [one for _, one in by_start(buffers, kept, since_ns)]
    assert [one[1] for one in found] == sorted(one[1] for one in found)
    wanted = [one[5] for one in records if one[2] >= since_ns]
    assert sorted(one[5] for one in found) == wanted


def test_reading_while_others_record_gives_a_prefix_of_each_thread():
    with separate(max_records=500):
        spill()
        going = threading.Event()

        def work():
            for index in range(30_000):
                record("decode", index, index + 1)
                if index == 2000:
                    going.set()

        thread = threading.Thread(target=work)
        thread.start()
        going.wait()
        seen = [[s.start_ns for s in all_spans()] for _ in range(3)]
        thread.join()
        seen.append([s.start_ns for s in all_spans()])
    for starts in seen:
        assert starts == list(range(len(starts)))
    assert len(seen[-1]) == 30_000


def test_a_tag_that_cannot_be_written_becomes_text():
    with separate(max_records=10):
        spill()
        with tagged(lock=threading.Lock()):
            for _ in range(100):
                record("agent", 1, 2, turn=3)
        found = list(all_spans())
    assert len(found) == 100
    assert isinstance(found[0].tags["lock"], str) and found[0].tags["turn"] == 3


def test_a_full_disk_ends_the_writing_and_is_counted(monkeypatch):
    kept = Spill(max_bytes=2000)
    buffers = Buffers(10, kept.put)
    for index in range(5000):
        buffers.append(("step", index, index + 1, (), "text", str(index) * 20))
    kept.flush()
    assert kept.num_lost > 0
    assert kept.num_lost + kept.num_records + num_here(buffers) == 5000
    monkeypatch.setattr("tempfile.TemporaryFile", _full_disk)
    broken = Spill()
    other = Buffers(10, broken.put)
    overflow(other, 100)
    broken.flush()
    assert isinstance(broken.error, OSError)
    assert broken.num_lost + num_here(other) == 100


class Disk(io.BytesIO):
    """A file that writes when it may, or fails."""

    def __init__(self, may_write=None):
        super().__init__()
        self.may_write = may_write

    def write(self, data):
        if self.may_write is None:
            raise ValueError("no such disk")
        self.may_write.wait()
        return super().write(data)


def test_whoever_records_faster_than_a_disk_writes_waits_and_nothing_is_lost(monkeypatch):
    may_write = threading.Event()
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Disk(may_write))
    kept, given = Spill(), []
    buffers = Buffers(10, lambda leaving: (given.append(leaving), kept.put(leaving)))
    recorder = threading.Thread(target=overflow, args=(buffers, 2000))
    recorder.start()
    recorder.join(0.3)
    assert recorder.is_alive()
    assert 0 < len(given) <= MAX_WAITING + 2  # those that wait, the one that is written, the one that is given
    may_write.set()
    recorder.join()
    kept.flush()
    assert (kept.num_lost, kept.num_records + num_here(buffers)) == (0, 2000)


def test_a_fault_of_the_writer_is_kept_and_nobody_waits_for_ever(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Disk())
    kept = Spill()
    buffers = Buffers(10, kept.put)
    overflow(buffers, 2000)
    kept.flush()
    assert isinstance(kept.error, ValueError)
    assert kept.num_lost + num_here(buffers) == 2000


def overflow(buffers, count):
    for index in range(count):
        buffers.append(("step", index, index + 1, ()))


def num_here(buffers):
    return sum(len(records) for _, records in buffers.read())


def _full_disk(**_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_span_that_crosses_a_step_of_training_is_kept_whole():
    with separate(max_records=100):
        spill()
        with span("tool", tool="slow"):
            for version in range(3):
                with span("train", version=version):
                    for _ in range(500):
                        record("decode", now_ns(), now_ns())
        found = list(all_spans())
    (tool,) = [s for s in found if s.stage == "tool"]
    updates = [s for s in found if s.stage == "train"]
    assert [s.tags["version"] for s in updates] == [0, 1, 2]
    assert tool.start_ns <= updates[0].start_ns and tool.end_ns >= updates[-1].end_ns
    assert sum(s.stage == "decode" for s in found) == 1500


def test_a_separate_trace_has_its_own_clock_and_leaves_nothing_behind():
    begin, times = now_ns(), iter([7, 12, 30])
    before = len(tracing.open_spans())
    with separate(clock=lambda: next(times)):
        with span("reward") as timed:
            timed.tag(words=3)
        assert [(s.start_ns, s.end_ns, s.tags) for s in spans()] == [(7, 12, {"words": 3})]
        assert now_ns() == 30
    assert not any(s.tags.get("words") for s in spans(begin))
    assert now_ns() > begin
    assert len(tracing.open_spans()) <= before
