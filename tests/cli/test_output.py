"""Wherever standard output leads, and whenever Ctrl-C comes: no traceback, no success that was none, no run that ends for it."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncflow.cli import main as main_module
from asyncflow.cli.main import main
from asyncflow.cli.output import lasting_output
from asyncflow.observe.records import STALL
from asyncflow.observe.summary import summarise, write_summary
from tests.observe.small_run import record_run

pytestmark = pytest.mark.tools

FULL = Path("/dev/full")


class Failing(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))


def command(*words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload]
        [sys.executable, "-m", "asyncflow.cli.main", *words], **{"stderr": subprocess.PIPE, "text": True, "timeout": 120} | settings
    )


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
@pytest.mark.parametrize("words", [("report", "RUN"), ("watch", "RUN", "--once"), ("watch", "RUN")])
def test_a_full_disk_behind_standard_output_is_one_message_and_no_success(tmp_path: Path, words: tuple[str, ...]) -> None:
    run_dir = record_run(tmp_path)
    with FULL.open("w") as full:
        done = command(*(str(run_dir) if word == "RUN" else word for word in words), stdout=full)
    assert done.returncode == 1
    assert done.stderr == "asyncflow: standard output cannot be written (No space left on device), a part of it is missing. Fix: name another place\n"


def test_a_reader_that_went_away_is_no_fault(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = command("report", str(record_run(tmp_path)), stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_alphabet_that_lacks_letters_gets_escapes(tmp_path: Path) -> None:
    done = command("watch", str(record_run(tmp_path)), stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "accuracy       0.000 \\u2192 0.400" in done.stdout


def test_a_run_that_completed_stays_completed_when_nobody_could_be_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*_: object) -> int:
        print("a line", flush=True)
        return 0

    monkeypatch.setattr(main_module, "_run", run)
    monkeypatch.setattr(sys, "stdout", Failing(errno.ENOSPC))
    assert main(["train", "recipe"]) == 0
    assert main(["explain", "recipe"]) == 1
    monkeypatch.setattr(sys, "stdout", Failing(errno.EIO))  # the terminal was closed
    assert main(["explain", "recipe"]) == 0
    assert capsys.readouterr().err.count("standard output cannot be written") == 2


@pytest.mark.parametrize(("error", "code", "words"), [(KeyboardInterrupt(), 130, "interrupted"), (OSError(28, "No space left", "a/b"), 1, "'a/b'")])
def test_an_end_from_outside_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    def run(*_: object) -> int:
        raise error

    monkeypatch.setattr(main_module, "_run", run)
    before = sys.stdout
    assert main(["report", "run"]) == code
    assert sys.stdout is before
    said = capsys.readouterr().err
    assert said.startswith("asyncflow: ")
    assert words in said
    assert said.count("\n") == 1


def test_ctrl_c_during_a_command_leaves_no_traceback(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")  # the command waits in there
    process = subprocess.Popen([sys.executable, "-m", "asyncflow.cli.main", "watch", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    with (tmp_path / "config.json").open("w"):  # returns when the command reads
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "asyncflow: interrupted\n")


def test_odd_bytes_of_a_path_go_out_as_they_are(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path)
    odd = run_dir.rename(tmp_path / os.fsdecode(b"odd\xff<b>"))
    env = {**os.environ, "PYTHONUTF8": "1"}
    words = [sys.executable, "-m", "asyncflow.cli.main", "report", odd, "--trace", odd / "t"]
    done = subprocess.run(words, capture_output=True, timeout=120, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == os.fsencode(odd) + b"/report.html\n" + os.fsencode(odd) + b"/t\n"
    assert "odd\\xff&lt;b&gt;: AsyncFlow report" in (odd / "report.html").read_text(encoding="utf-8")


def test_a_stall_report_that_cannot_be_read_hides_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = record_run(tmp_path)
    (run_dir / STALL).write_text("{")
    assert main(["watch", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "exit reason    completed" in said
    assert f"{run_dir / STALL} cannot be read" in said


def test_a_summary_that_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = record_run(tmp_path)
    (run_dir / "summary.json").unlink()
    (run_dir / "summary.json").mkdir()
    assert main(["watch", str(run_dir)]) == 2
    assert "its summary.json cannot be read" in capsys.readouterr().err


def test_a_configuration_that_no_run_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = record_run(tmp_path)
    config = run_dir / "config.json"
    config.write_text(config.read_text().replace('"batch_size":3', '"batch_size":0'))
    assert main(["watch", str(run_dir)]) == 2
    assert "is that of no run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl"])
def test_damaged_logs_still_give_a_summary_which_is_not_that_of_a_completed_run(tmp_path: Path, name: str) -> None:
    run_dir = record_run(tmp_path)
    lines = (run_dir / name).read_bytes().splitlines(keepends=True)
    half = len(lines) // 2
    (run_dir / name).write_bytes(b"".join([*lines[:half], lines[half][:20], b"\n", *lines[half:]]))  # the disk was full for a moment
    summary = summarise(run_dir, "completed", 1.0, {})
    assert summary.exit_reason.startswith(f"completed; {name} ")
    assert summary.events == (half if name == "events.jsonl" else len((run_dir / "events.jsonl").read_bytes().splitlines()))


def test_a_summary_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path)
    summary = summarise(run_dir, "completed", 1.0, {})
    (run_dir / "summary.json").unlink()
    (run_dir / "summary.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_summary(run_dir, summary)
    assert not (run_dir / "summary.tmp").exists()


def test_pipes_in_place_of_files_are_not_waited_for(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path)
    for name in ("events.jsonl", "summary.json", "environment.json", "stall.txt"):
        (run_dir / name).unlink(missing_ok=True)
        os.mkfifo(run_dir / name)
    done = command("report", str(run_dir), "--trace", str(run_dir / "trace"), timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "events.jsonl: not read (no regular file)" in (run_dir / "report.html").read_text()


def test_what_is_printed_after_all_goes_nowhere() -> None:
    with lasting_output() as output:
        print("seen")
    assert output.error is None
