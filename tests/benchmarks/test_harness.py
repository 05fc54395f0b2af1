"""Rows of benchmarks say what they compared, and claim nothing that was not measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.harness import Results, Row, as_text, compared, finish, machine


def test_a_goal_is_met_by_the_ratio_to_what_the_same_run_measured() -> None:
    assert compared("x", 97.0, "rows/s", 100.0, at_least=0.95).met is True
    assert compared("x", 94.0, "rows/s", 100.0, at_least=0.95).met is False
    row = compared("x", 94.0, "rows/s", 100.0, at_least=0.95, claimed=False, note="busy")
    assert (row.met, row.ratio, row.note) == (None, 0.94, "busy")
    assert compared("x", 2.0, "s", 1.0).met is None


def test_the_file_holds_rows_and_machine_and_a_missed_goal_is_an_exit_code(tmp_path: Path) -> None:
    results = Results([], machine())
    results.add(compared("fast", 2.0, "s", 1.0, at_least=1.0), Row(name="free", value=None, unit="s"))
    with pytest.raises(SystemExit) as ended:
        finish(results, tmp_path / "results.json")
    assert ended.value.code == 0
    results.add(compared("slow", 1.0, "s", 2.0, at_least=1.0))
    with pytest.raises(SystemExit) as ended:
        finish(results, tmp_path / "results.json")
    assert ended.value.code == 1
    written = msgspec.json.decode((tmp_path / "results.json").read_bytes())
    assert [set(row) >= {"name", "value", "unit", "reference", "ratio", "goal", "met"} for row in written["rows"]] == [True] * 3
    assert written["machine"]["cores"] >= 1


def test_what_was_not_measured_is_said_and_not_shown_as_a_number() -> None:
    assert "not measured" in as_text(Row(name="x", value=None, unit="s"))
    assert "0" not in as_text(Row(name="x", value=None, unit="s"))
