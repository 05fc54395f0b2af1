"""The cluster harness reads AsyncFlow's records and verl's file tracker, whole and cut, and says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncflow.config.errors import ConfigError
from benchmarks.cluster.collect import collect
from benchmarks.cluster.report import main
from tests.observe.report.run_files import unfinish, whole_run


def tracker(path: Path, steps: int, **changes: object) -> Path:
    """Lines as verl's FileLogger writes them: 4 devices, 100 prompt and 300 response tokens a sample, 10 s a step."""
    data = {
        "perf/total_num_tokens": 4000, "perf/time_per_step": 10.0, "perf/throughput": 100.0, "response_length/mean": 300.0,
        "prompt_length/mean": 100.0, "timing_s/update_weights": 0.5, **changes,
    }  # fmt: skip
    kept = {key: value for key, value in data.items() if value is not None}
    lines = [json.dumps({"step": step, "data": {**kept, "critic/score/mean": step / 10}}) + "\n" for step in range(1, steps + 1)]
    path.write_text("".join(lines))
    return path


def test_verl_s_tokens_are_those_of_responses(tmp_path: Path) -> None:
    table = collect(tracker(tmp_path / "base.jsonl", 3))
    assert (table.values["steps"], table.values["seconds"], table.values["tokens"]) == (3, 30, 9000)
    assert (table.values["tokens_per_s"], table.values["tokens_per_s_device"]) == (300, 75)
    assert table.reward == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert table.phases == {"update_weights": 0.5}
    assert table.values["staleness_mean"] is None


def test_a_cut_line_is_left_out_and_told(tmp_path: Path) -> None:
    path = tracker(tmp_path / "base.jsonl", 3)
    path.write_bytes(path.read_bytes()[:-20])
    table = collect(path)
    assert table.values["steps"] == 2
    assert "1 lines could not be read" in table.notes[0]


@pytest.mark.parametrize("key", ["perf/total_num_tokens", "response_length/mean"])
def test_a_metric_that_is_missing_is_not_zero(tmp_path: Path, key: str) -> None:
    table = collect(tracker(tmp_path / "base.jsonl", 3, **{key: None}))
    assert table.values["tokens"] is None
    assert table.values["tokens_per_s"] is None
    assert table.values["seconds"] == 30


def test_no_steps_give_nothing_but_their_number(tmp_path: Path) -> None:
    values = collect(tracker(tmp_path / "base.jsonl", 0)).values
    assert values.pop("steps") == 0
    assert set(values.values()) == {None}


@pytest.mark.parametrize("killed", [False, True])
def test_an_asyncflow_run_gives_its_figures(tmp_path: Path, killed: bool) -> None:
    run = whole_run(tmp_path)
    if killed:
        unfinish(run)
    table = collect(run)
    assert table.source == "asyncflow"
    assert table.values["steps"]
    assert table.values["staleness_max"] is not None
    assert table.reward


def test_runs_of_different_lengths_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, base = whole_run(tmp_path), tracker(tmp_path / "base.jsonl", 3)
    assert main([str(run), str(base), "--json", str(tmp_path / "out.json")]) == 0
    assert "| staleness_max, versions |" in (shown := capsys.readouterr().out)
    assert "missing" in shown
    found = {row["name"]: row for row in json.loads((tmp_path / "out.json").read_bytes())["rows"]}
    assert found["base: staleness_max"]["value"] is None
    assert found["base: staleness_max"]["note"] == "missing"
    assert found[f"{run.name}: steps"]["reference"] == 3


def test_a_path_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory or file"):
        collect(tmp_path / "none")
