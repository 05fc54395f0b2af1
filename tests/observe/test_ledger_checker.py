"""The checker believes a whole log and refuses one from which any single line is gone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.records import EVENTS, METRICS, SUMMARY
from asyncflow.observe.replay import Inconsistent
from tests.observe.small_run import record_run

ROOT = Path(__file__).parents[2]


def checker(run_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncflow.observe.ledger_checker", str(run_dir)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_a_whole_run_passes_and_one_lost_row_fails_in_a_process_of_its_own(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path)
    whole = checker(run_dir)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "12 groups trained once each" in whole.stdout
    lines = (run_dir / EVENTS).read_bytes().splitlines(keepends=True)
    lost = next(index for index, line in enumerate(lines) if b'"dst":"complete"' in line)
    (run_dir / EVENTS).write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
    broken = checker(run_dir)
    assert broken.returncode == 1
    assert "a line is missing or doubled" in broken.stderr


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 5), batch=st.integers(1, 4))
def test_every_run_of_the_controller_passes(seed: int, steps: int, batch: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = check_run(record_run(Path(folder), steps=steps, batch=batch, seed=seed))
    assert len(found.replay.trained) == steps * batch


def test_any_single_lost_line_is_noticed(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, seed=1)
    lines = (run_dir / EVENTS).read_bytes().splitlines(keepends=True)
    assert b"too_long" in b"".join(lines)
    for lost in range(len(lines)):
        (run_dir / EVENTS).write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
        with pytest.raises(Inconsistent):
            check_run(run_dir)
    (run_dir / EVENTS).write_bytes(b"".join(lines))
    check_run(run_dir)


def test_any_single_doubled_line_is_noticed(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, seed=2)
    lines = (run_dir / EVENTS).read_bytes().splitlines(keepends=True)
    for doubled in range(len(lines)):
        (run_dir / EVENTS).write_bytes(b"".join(lines[: doubled + 1] + lines[doubled:]))
        with pytest.raises(Inconsistent):
            check_run(run_dir)


def test_a_recorded_ledger_that_drifted_is_noticed(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path)
    text = (run_dir / METRICS).read_text()
    (run_dir / METRICS).write_text(text.replace('"trained":6', '"trained":5', 1))
    with pytest.raises(Inconsistent, match=r"metrics.jsonl says .*'trained': 5.* makes .*'trained': 6"):
        check_run(run_dir)


@pytest.mark.parametrize(("key", "value"), [("versions", 3), ("ledger", {"trained": 11}), ("events", 7)])
def test_a_summary_that_says_something_else_is_noticed(tmp_path: Path, key: str, value: object) -> None:
    run_dir = record_run(tmp_path)
    summary = msgspec.json.decode((run_dir / SUMMARY).read_bytes())
    (run_dir / SUMMARY).write_bytes(msgspec.json.encode(summary | {key: value}))
    with pytest.raises(Inconsistent):
        check_run(run_dir)


def test_a_line_cut_off_by_a_crash_is_noticed(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path)
    data = (run_dir / EVENTS).read_bytes()
    (run_dir / EVENTS).write_bytes(data[:-20])
    with pytest.raises(Inconsistent, match="is no event"):
        check_run(run_dir)


def test_a_run_without_logs_cannot_be_checked(tmp_path: Path) -> None:
    assert checker(tmp_path).returncode == 2
