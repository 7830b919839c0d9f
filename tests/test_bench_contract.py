"""The benchmark contract: what is printed, what is written, and when the exit status is 1."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.bench import Row
from agentlab.bench.__main__ import main
from agentlab.bench.contract import Report, discover, write_json
from agentlab.errors import ConfigError

BENCHES = {
    "quick": '''"""Ends at once.\n\nMore text."""\nfrom agentlab.bench import Row
def run(arguments): return [Row.at_most("time", 0.25, 0.3, "s"), Row("count", 7)]\n''',
    "slower": '''"""Misses its goal."""\nfrom agentlab.bench import Row
def run(arguments): return [Row.at_least("rate", float("nan"), 1.0, "tokens/s")]\n''',
    "told": '''"""Reads its own options."""\nimport argparse\nfrom agentlab.bench import Row
def run(arguments):
    words = argparse.ArgumentParser(prog="told")
    words.add_argument("--seeds", type=int)
    return [Row("seeds", words.parse_args(arguments).seeds)]\n''',
    "empty": '"""Measures nothing."""\ndef run(arguments): return []\n',
    "contract": '"""Not a bench: it has no run."""\nLOADED = 1 / 0\n',
}


@pytest.fixture
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package of benches made for one test."""
    name = f"benches_{tmp_path.name}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    for bench, source in BENCHES.items():
        (folder / f"{bench}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@given(value=st.sampled_from([math.nan, math.inf, -math.inf]), limit=st.floats(allow_nan=False))
def test_a_figure_that_is_not_a_finite_number_never_holds(value: float, limit: float):
    assert not Row.at_most("f", value, limit).holds
    assert not Row.at_least("f", value, limit).holds
    assert Row("f", value, goal="claimed", holds=True).holds is False


@given(value=st.floats(-1e9, 1e9), limit=st.floats(-1e9, 1e9))
def test_a_figure_holds_exactly_when_it_is_on_its_side_of_the_limit(value: float, limit: float):
    assert Row.at_most("f", value, limit).holds == (value <= limit)
    assert Row.at_least("f", value, limit).holds == (value >= limit)


def test_a_goal_without_a_verdict_is_refused():
    with pytest.raises(ConfigError, match="both a goal and whether it holds"):
        Row("f", 1.0, goal="≤ 2")


def test_benches_are_found_without_importing_them(benches: str):
    found = discover(importlib.import_module(benches))
    assert found == {
        "empty": "Measures nothing.",
        "quick": "Ends at once.",
        "slower": "Misses its goal.",
        "told": "Reads its own options.",
    }
    assert f"{benches}.quick" not in sys.modules


def test_a_bench_prints_a_table_and_writes_rows_versions_and_machine(benches: str, tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    assert main(["quick", "--json", str(path)], benches) == 0
    assert capsys.readouterr().out.splitlines() == [
        "figure  value  unit  goal   holds",
        "time    0.25   s     ≤ 0.3  yes",
        "count   7",
    ]
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["rows"] == [
        {"figure": "time", "value": 0.25, "goal": "≤ 0.3", "unit": "s", "holds": True},
        {"figure": "count", "value": 7, "goal": "", "unit": "", "holds": None},
    ]
    assert report["bench"] == "quick"
    assert report["holds"] is True
    assert report["versions"]["python"] == report["machine"]["python"]
    assert {"agentlab", "jax", "flax", "numpy"} <= set(report["versions"])
    assert report["machine"]["cores"] >= 1


def test_a_missed_goal_is_status_1_and_is_written_as_null_where_it_is_no_number(benches: str, tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    assert main(["slower", "--json", str(path)], benches) == 1
    assert "NO" in capsys.readouterr().out
    assert json.loads(path.read_text())["rows"][0]["value"] is None


def test_a_bench_that_measured_nothing_is_status_1(benches: str, capsys):
    assert main(["empty"], benches) == 1


def test_an_unknown_bench_is_refused_with_the_nearest(benches: str, capsys):
    assert main(["quik"], benches) == 2
    assert capsys.readouterr().err.startswith("There is no bench 'quik'. Did you mean 'quick'?")


def test_options_that_are_not_the_contracts_go_to_the_bench(benches: str, tmp_path: Path, capsys):
    path = tmp_path / "report.json"
    assert main(["told", "--seeds", "3", "--json", str(path)], benches) == 0
    assert json.loads(path.read_text())["arguments"] == ["--seeds", "3"]
    with pytest.raises(SystemExit) as ended:
        main(["told", "--help"], benches)
    assert ended.value.code == 0
    assert "--seeds" in capsys.readouterr().out


def test_help_lists_the_benches_and_no_name_at_all_is_status_2(benches: str, capsys):
    assert main(["--help"], benches) == 0
    assert "  quick   Ends at once.\n" in capsys.readouterr().out
    assert main([], benches) == 2


def test_a_place_that_cannot_be_written_to_is_refused_before_the_bench_runs(benches: str, tmp_path: Path, capsys):
    assert main(["quick", "--json", str(tmp_path / "nowhere" / "report.json")], benches) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "existing folder" in captured.err


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "report.json"
    write_json(path, {"rows": [1]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"rows": [math.nan]})
    assert json.loads(path.read_text()) == {"rows": [1]}
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="report.json must be a file"):
        write_json(path, {"rows": [1]})
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_holds_unless_a_goal_was_missed():
    held, missed, shown = Row.at_most("a", 1, 2), Row.at_most("a", 3, 2), Row("a", 1)
    assert Report("b", (held, shown), 0.1).holds
    assert not Report("b", (held, missed, shown), 0.1).holds
