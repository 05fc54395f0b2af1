"""The command line: a user's mistake gets one message, no traceback, and starts nothing."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from asyncflow.cli.main import main
from asyncflow.cli.train import show, with_run_dir
from asyncflow.config import RunConfig
from asyncflow.config.errors import ConfigError
from asyncflow.observe.records import EVENTS, JOURNAL, Summary
from asyncflow.observe.summary import summarise
from tests.config.recipes import MINIMAL, RUNNABLE

ROOT = Path(__file__).parents[2]


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("asyncflow 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere"),
        (["RECIPE", "stalenes=4"], "did you mean 'staleness'"),
        (["RECIPE", "rollout.slots=2"], "rollout.slots = 2"),
        (["RECIPE", "resources.trainer.workers=2"], "not there yet"),
        (["RECIPE", "task.path=nowhere:Task"], "there is no module 'nowhere'"),
        (["RECIPE", "resources.rolout.workers=2"], "did you mean 'rollout'"),
    ],
)
def test_a_mistake_gets_one_message_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(MINIMAL)
    arguments = [argument.replace("RECIPE", str(recipe)) for argument in arguments]
    assert main(["train", *arguments, "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("asyncflow: ")
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_run_directory_is_never_shared_by_two_runs(tmp_path: Path) -> None:
    config = with_run_dir(RunConfig(), str(tmp_path))
    assert config.run_dir == tmp_path
    (tmp_path / EVENTS).touch()
    with pytest.raises(ConfigError, match=r"holds a run already \(events"):
        with_run_dir(RunConfig(), str(tmp_path))
    (tmp_path / EVENTS).unlink()
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(ConfigError, match=r"holds a run already \(journal"):
        with_run_dir(RunConfig(), str(tmp_path))


def test_a_run_directory_that_cannot_be_made_is_a_mistake_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file/run", Path("/dev/null/run")):
        with pytest.raises(ConfigError, match=rf"--run-dir {place}: .*Name another place"):
            with_run_dir(RunConfig(), str(place))


def test_what_was_not_measured_has_no_row(tmp_path: Path) -> None:
    said = shown(summarise(tmp_path, "stalled", 1.0, {}))
    assert "exit reason    stalled" in said
    assert not any(word in said for word in ("None", "not measured", "accuracy", "overlap", "weights", "exported", "ledger"))


def test_weights_and_export_are_shown_with_the_version_of_each(tmp_path: Path) -> None:
    ended = {"weights_digest": "abc", "versions": 7, "exported": "weights/policy-0.5", "exported_version": 5, "staleness_max": 0.0, "overlap": 0.0}
    summary = msgspec.structs.replace(summarise(tmp_path, "completed", 1.0, {}), **ended)
    said = shown(summary)
    assert "weights        abc (version 7)" in said
    assert "exported       weights/policy-0.5 (version 5)" in said
    assert "staleness max  0" in said
    assert "at least 0.000 of the time" in said
    assert "abc (last published, of 7 versions)" in shown(msgspec.structs.replace(summary, exit_reason="stalled"))


def shown(summary: Summary) -> str:
    paper = io.StringIO()
    show(summary, Console(file=paper, width=200))
    return paper.getvalue()


def test_a_run_that_fails_never_exits_0_and_its_last_line_is_the_summary(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RUNNABLE)  # its model does not exist
    command = [sys.executable, "-m", "asyncflow.cli.main", "train", str(recipe), "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == str(tmp_path / "run/summary.json")
    assert "/models/tiny" in (tmp_path / "run/summary.json").read_text()
    assert "Traceback" not in done.stderr


def test_overrides_may_stand_before_and_behind_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("asyncflow.cli.train.train", lambda *args: seen.append(args) or 0)
    assert main(["train", "recipe", "staleness=1", "--run-dir", str(tmp_path), "run.seed=2"]) == 0
    assert seen == [("recipe", ["staleness=1", "run.seed=2"], str(tmp_path))]


def test_what_is_neither_option_nor_override_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "recipe", "--run-dir", "somewhere", "staleness"])
    assert "staleness: no option and no KEY=VALUE" in capsys.readouterr().err
