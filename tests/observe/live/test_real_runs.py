"""Real runs, watched: in a terminal, with every kind of writer, from another terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from asyncflow.observe.records import CONTROLLER_URL
from asyncflow.observe.writers.prometheus import URL_FILE
from tests.observe.live.run_in_terminal import ROOT, TrainingTerminal

RECIPE = "tests/pipeline/config.yaml"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
GOING_ON = (  # lines of the picture once everything in it was measured
    r"^test · staleness ≤ 0 \(wait\) .* elapsed · .* left$",
    r"^version +\d+/5000",
    r"^groups +\d+ of 6 permits used",
    r"^trainer-0 .* \d+% +\d+% +\d+% +0$",
)


def train(folder: Path, *overrides: str) -> list[str]:
    return [RECIPE, f"run.cache={folder}/cache", "limits.heartbeat_s=60", *overrides, "--run-dir", str(folder / "run")]


def wait_for(path: Path, program: subprocess.Popen[str], timeout_s: float = 60.0) -> str:
    """The text of a file that `program` is about to write."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and program.poll() is None:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.strip()
        threading.Event().wait(0.05)
    program.kill()
    raise AssertionError(f"{path} did not come:\n{program.communicate()[0]}")


@pytest.mark.tools
def test_a_run_in_a_terminal_shows_its_workers_and_ends_cleanly_on_ctrl_c(tmp_path: Path) -> None:
    with TrainingTerminal(train(tmp_path, "run.steps=5000"), width=110, height=40) as run:
        run.until(lambda rows: all(re.search(line, "\n".join(rows), re.MULTILINE) for line in GOING_ON), 110.0)
        assert run.terminal.screen.cursor.hidden
        run.press(b"\x03")
        assert run.exit_code() == 1
        rows = run.terminal.rows
        assert rows[-1] == str(tmp_path / "run/summary.json")
        assert any(row.startswith("exit reason    interrupted") for row in rows)
        assert any("interrupted ·" in row for row in rows)  # the last picture is still there
        assert not run.terminal.screen.cursor.hidden
        assert "Traceback" not in run.terminal.text


@pytest.mark.tools
def test_writers_that_hang_and_raise_change_nothing_about_a_run(tmp_path: Path) -> None:
    own = "tests.observe.writers.own"
    writers = f"observe.writers=[tensorboard,'{own}:Hanging','{own}:Raising','{own}:Timed']"
    overrides = (writers, "observe.writer_close_s=2", "observe.prometheus_bind='127.0.0.1:0'", "run.steps=12")
    command = [sys.executable, "-m", "asyncflow.cli.main", "train", *train(tmp_path, *overrides)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT) as program:
        url = wait_for(tmp_path / "run" / URL_FILE, program)
        assert "asyncflow_target_version 12" in urllib.request.urlopen(url, timeout=5).read().decode()
        wait_for(tmp_path / "run" / CONTROLLER_URL, program)
        watching = [sys.executable, "-m", "asyncflow.cli.main", "watch", str(tmp_path / "run"), "--once"]
        watched = subprocess.run(watching, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True, env=ENVIRONMENT).stdout
        said, _ = program.communicate(timeout=90)
    assert program.returncode == 0, said
    assert "of 6 permits used" in watched, watched
    lines = said.splitlines()
    assert lines[-1] == str(tmp_path / "run/summary.json")
    assert sum(f"writer {own}:Raising failed and is disabled" in line for line in lines) == 1, said
    assert any(f"writer {own}:Hanging did not finish within observe.writer_close_s" in line for line in lines), said
    line = r"version 12/12 at [\d.]+ s: reward \S+ staleness 0.00 max 0.00 busy rollout \d+% trainer \d+%"
    assert re.search(f"^{line}$", said, re.MULTILINE), said
    got = (tmp_path / "run/plain.txt").read_text().splitlines()
    assert [line for line in got if line.startswith("step")] == [f"step {version}" for version in range(1, 13)]
    assert got[-1] == "closed completed"
    assert any(line.startswith("time rollout-0#0") for line in got)
    assert list((tmp_path / "run/tensorboard").iterdir())
    assert not (tmp_path / "run" / URL_FILE).exists()


@pytest.mark.tools
def test_ctrl_c_while_the_run_still_starts_is_a_clean_stop_too(tmp_path: Path) -> None:
    """The fork server is importing torch then; it is in the terminal's group, so the signal reaches it as well."""
    with TrainingTerminal(train(tmp_path, "run.steps=5000"), width=110, height=40) as run:
        run.until(lambda rows: any(row.startswith("rollout-0        starts") for row in rows), 60.0)
        run.press(b"\x03")
        assert run.exit_code() == 1
        assert any(row.startswith("exit reason    interrupted") for row in run.terminal.rows), run.terminal.rows
        assert "Traceback" not in run.terminal.text
