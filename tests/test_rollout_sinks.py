"""Rows are written while a run goes on, and nothing that a sink does can stall or end it."""

import json
import struct
import sys
import threading
import types
from pathlib import Path

import pytest
from test_run import CountingTrainer, Env, endless

from agentlab.agents import ModelAgent
from agentlab.errors import ConfigError, LearnerError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.rollout import RolloutConfig, RolloutOrchestrator
from agentlab.rollout.sinks import JsonLines, Sink, TensorBoard, WandB, check_sinks
from agentlab.rollout.tfevents import crc32c, masked
from agentlab.run import Parts, Run
from agentlab.training.worker import LearnerThread


def start(*sinks, steps=3, trainer=None):
    options = RolloutConfig(group_size=2, groups_per_step=2)

    def build():
        engine = ScriptedEngine("yes")
        orchestrator = RolloutOrchestrator(engine, agent_class=ModelAgent, env_class=Env, config=options)
        orchestrator.gate.limit = steps * options.groups_per_step
        learner = LearnerThread(lambda: trainer or CountingTrainer())
        return Parts(engine, orchestrator, learner, lambda policy: None, sinks=sinks)

    return Run("sunk", build, endless(), steps)


class Broken(Sink):
    """Fails where it is told to."""

    def __init__(self, at):
        self.at, self.rows, self.closed = at, [], 0

    def open(self, name, before):
        if self.at == "open":
            raise ConnectionError("no network")
        if self.at == "exit":
            raise SystemExit("wandb login failed")

    def write(self, row):
        if self.at == "write":
            raise OSError(28, "No space left on device")
        self.rows.append(row)

    def close(self):
        self.closed += 1
        if self.at == "close":
            raise OSError("gone")


class Hung(Sink):
    """Waits for the test in `write`."""

    def __init__(self):
        self.gate = threading.Event()

    def open(self, name, before):
        pass

    def write(self, row):
        self.gate.wait(60)

    def close(self):
        pass


def test_a_file_has_one_line_of_json_per_update(tmp_path):
    run = start(JsonLines(tmp_path / "deep" / "metrics.jsonl"), steps=4).wait()
    rows = [json.loads(line) for line in (tmp_path / "deep" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["loss"] == run.metrics[2]["loss"] and set(rows[0]) == set(run.metrics[0])


def test_when_a_run_dies_everything_before_is_written(tmp_path):
    run = start(JsonLines(tmp_path / "m.jsonl"), steps=9, trainer=CountingTrainer(fail_at=3))
    with pytest.raises(LearnerError):
        run.wait()
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 3


def test_a_row_is_in_the_file_before_the_next_update_can_fail_to_come(tmp_path):
    """Lines are written one by one, not when a buffer is full: a killed process loses none."""
    sink = JsonLines(tmp_path / "m.jsonl")
    sink.open("x", [{"step": 1, "loss": float("nan")}])
    sink.write({"step": 2, "loss": 0.5})
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1, "loss": null}\n{"step": 2, "loss": 0.5}\n'
    sink.close()


@pytest.mark.parametrize("at", ["open", "exit", "write", "close"])
def test_a_sink_that_fails_ends_neither_the_run_nor_the_other_sinks_and_is_told(at, tmp_path):
    broken = Broken(at)
    run = start(broken, JsonLines(tmp_path / "m.jsonl")).wait()
    assert run.status == "finished" and len(run.metrics) == 3
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 3
    assert broken.closed == 1
    if at != "close":  # told after the last snapshot
        assert any("Broken failed and gets no more rows" in note for note in run.snapshot().notes)


def test_a_sink_that_hangs_stalls_no_update(monkeypatch):
    monkeypatch.setattr("agentlab.rollout.sinks.GRACE_S", 0.05)
    hung = Hung()
    run = start(hung, steps=5).wait()
    assert run.status == "finished" and len(run.metrics) == 5
    hung.gate.set()
    for thread in threading.enumerate():
        if thread.name == "agentlab-sink":
            thread.join(10)


def test_the_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert crc32c(bytes(range(32))) == 0x46DD794E


def read_events(path: Path):
    """Events as {field: value}, read without the code that writes them."""
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert data[8:12] == masked(data[:8]) and data[12 + length : 16 + length] == masked(data[12 : 12 + length])
        events.append(dict(fields(data[12 : 12 + length])))
        data = data[16 + length :]
    return events


def fields(message: bytes):
    """(number, value) of the fields of a protocol buffer, messages as bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        size = {0: 0, 1: 8, 5: 4}.get(kind)
        if kind == 0:
            yield number, varint()
            continue
        size = varint() if kind == 2 else size
        raw = message[at : at + size]
        at += size
        yield (
            number,
            {1: lambda r: struct.unpack("<d", r)[0], 5: lambda r: struct.unpack("<f", r)[0]}.get(kind, bytes)(raw),
        )


def test_event_files_hold_every_number_of_every_row(tmp_path):
    sink = TensorBoard(tmp_path)
    sink.open("x", [{"step": 1}, {"step": 2}])
    sink.write({"step": 300, "loss": 0.25, "grad_norm": 1e300, "kl": float("nan")})
    sink.close()
    (path,) = tmp_path.iterdir()
    assert "tfevents" in path.name
    version, began, row = read_events(path)
    assert version[3] == b"brain.Event:2"
    assert began[2] == 3 and dict(fields(began[7])) == {1: 1}  # SessionLog.START: what is there of step 3 on is void
    values = [dict(fields(value)) for number, value in fields(row[5]) if number == 1]
    told = {value[1].decode(): value[2] for value in values}
    assert row[2] == 300 and told["loss"] == 0.25 and told["grad_norm"] == float("inf") and told["kl"] != told["kl"]


def test_wandb_gets_its_rows_and_its_end(monkeypatch):
    class Remote:
        rows, ended = [], 0

        def log(self, row, step):
            self.rows.append((step, row))

        def finish(self):
            Remote.ended += 1

    module = types.ModuleType("wandb")
    module.__spec__ = types.SimpleNamespace(name="wandb")
    module.init = lambda **options: (Remote.rows.append(options), Remote())[1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    run = start(WandB("lab", mode="offline"), steps=2).wait()
    assert Remote.rows[0] == {"project": "lab", "name": "sunk", "mode": "offline"}
    assert [step for step, _ in Remote.rows[1:]] == [1, 2] and Remote.ended == 1
    assert Remote.rows[1][1]["loss"] == run.metrics[0]["loss"]


def test_what_is_no_sink_or_not_installed_is_refused():
    with pytest.raises(ConfigError, match="sinks must be a list of sinks"):
        check_sinks(["metrics.jsonl"])
    with pytest.raises(ConfigError, match="pip install wandb"):
        WandB("lab")
