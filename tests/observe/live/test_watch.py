"""`asyncflow watch`: a run that is over, goes on, ends meanwhile, or was killed; and the run does not notice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from asyncflow.cli import watch as watch_module
from asyncflow.cli.main import main
from asyncflow.observe.records import SUMMARY
from asyncflow.observe.summary import summarise, write_summary
from tests.observe.live.run_files import run_config, typical
from tests.observe.small_run import record_run

pytestmark = pytest.mark.tools


def test_a_run_that_is_over_is_shown_with_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = record_run(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in run_dir.iterdir()}
    assert main(["watch", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "version 4/4 at" in said
    assert "exit reason    completed" in said
    assert {path.name: path.stat().st_mtime_ns for path in run_dir.iterdir()} == before  # it only reads


def test_a_failed_run_is_no_success_also_for_who_watches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_config(tmp_path)
    typical(config.run_dir)
    write_summary(config.run_dir, summarise(config.run_dir, "trainer-0 died", 9.0, {}))
    assert main(["watch", str(config.run_dir)]) == 1
    assert "exit reason    trainer-0 died" in capsys.readouterr().out


def test_once_shows_the_state_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_config(tmp_path)
    typical(config.run_dir)
    moved = config.run_dir.rename(tmp_path / "moved")
    assert main(["watch", str(moved), "--once"]) == 0
    said = capsys.readouterr().out
    assert "109/120" in said
    assert "rollout-0        computes + writes rows" in said  # also found in the place that the run was moved to


def test_watching_ends_when_the_run_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_config(tmp_path)
    typical(config.run_dir)
    end = threading.Timer(0.7, lambda: write_summary(config.run_dir, summarise(config.run_dir, "completed", 9.0, {})))
    end.start()
    assert main(["watch", str(config.run_dir)]) == 0
    end.join()
    assert "exit reason    completed" in capsys.readouterr().out


def test_once_tells_that_a_run_was_killed_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config(tmp_path)
    typical(config.run_dir)
    assert main(["watch", str(config.run_dir), "--once"]) == 0
    assert "killed" not in capsys.readouterr().out  # it may be between two commits
    monkeypatch.setattr(watch_module, "SILENT_S", 0.0)
    assert main(["watch", str(config.run_dir), "--once"]) == 0
    assert "the run was killed as a whole" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_was_killed_as_a_whole_is_recognised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "SILENT_S", 0.3)
    monkeypatch.setattr(watch_module, "ANSWER_S", 0.3)
    config = run_config(tmp_path)
    typical(config.run_dir)
    assert main(["watch", str(config.run_dir)]) == 1
    assert "the run was killed as a whole" in capsys.readouterr().out


def test_what_is_no_run_is_refused_with_a_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert "holds no config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"of": "another release"}')
    assert main(["watch", str(tmp_path)]) == 2
    assert "Fix: watch it with the release that wrote it" in capsys.readouterr().err
    config = run_config(tmp_path)
    (config.run_dir / SUMMARY).write_text("{}")
    assert main(["watch", str(config.run_dir)]) == 2
    assert "summary.json cannot be read" in capsys.readouterr().err


SAYS = """
import sys, threading
from pathlib import Path
import msgspec
from asyncflow.config import RunConfig
from asyncflow.observe.live.view import RunView
config = RunConfig.decode(Path(sys.argv[1], "config.json").read_bytes())
with RunView(config) as view:
    for number in range(200):
        view.say(f"line {number} " + "x" * 1000)
        threading.Event().wait(0.002)
sys.stderr.write("still here")
"""


def test_a_reader_that_goes_does_not_end_the_run(tmp_path: Path) -> None:
    """`asyncflow train … | head -1`"""
    config = run_config(tmp_path)
    command = [sys.executable, "-c", SAYS, str(config.run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.getcwd()}) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline().startswith(b"line 0 ")
        program.stdout.close()
        assert program.stderr.read() == b"still here"
        assert program.wait(30) == 0


def test_the_resolved_configuration_names_the_directory_that_is_watched(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    moved = config.run_dir.rename(tmp_path / "moved")
    found = watch_module.config_of(moved)
    assert found.run_dir == moved
    assert msgspec.structs.replace(found, run=config.run) == config
