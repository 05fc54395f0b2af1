"""The gate on real runs: killed at a random moment, reported, and drawn by a browser; and a comparison of two that ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncflow.cli.main import main
from asyncflow.observe.records import EVENTS
from asyncflow.observe.report.build import report_of
from tests.observe.report.browser import open_page
from tests.observe.report.test_report_trace import check_format, written
from tests.pipeline.broken import __name__ as broken
from tests.pipeline.harness import RECIPE, configure, run_pipeline

ROOT = Path(__file__).parents[3]
START_S = 110  # of a loaded machine, the preparation of the model included
PATIENCE = ("limits.stall_s=120", "limits.heartbeat_s=60")  # so that a loaded machine does not end the run before the kill
ENDLESS = 100_000  # steps: it is killed long before the last


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def killed_run(run_dir: Path, cache: Path, commits: int, after_s: float) -> None:
    """Everybody in the run's process group gets SIGKILL at once, so many seconds after so many commits (0: after the controller's start)."""
    command = [sys.executable, "-m", "asyncflow.cli.main", "train", str(RECIPE), f"run.steps={ENDLESS}", f"run.cache={cache}"]
    command += [*PATIENCE, "--run-dir", str(run_dir)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while recorded_commits(run_dir) < commits and time.monotonic() < deadline:
                outlives(process, 0.1)
            outlives(process, after_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert recorded_commits(run_dir) >= commits, f"no {commits} commits within {START_S} s"


def recorded_commits(run_dir: Path) -> int:
    """-1 before the controller has started."""
    log = run_dir / EVENTS
    return log.read_bytes().count(b'"kind":"commit"') if log.exists() else -1


def outlives(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait that long; the run must still be there."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    pytest.fail(f"the run ended by itself with code {code}")


@pytest.mark.tools
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_was_killed_at_a_random_moment_is_reported_and_drawn(tmp_path: Path, cache: Path, seed: int) -> None:
    dice = random.Random(seed)
    commits, after_s = dice.randint(0, 12), dice.uniform(0.0, 1.5)
    print(f"seed {seed}: killed {after_s:.2f} s after {commits} commits")
    run_dir, page = tmp_path / "run", tmp_path / "report.html"
    killed_run(run_dir, cache, commits, after_s)
    assert main(["report", str(run_dir), "--out", str(page)]) == 0
    report = report_of(run_dir)
    print(report.verdict, report.notes)
    words = {"In progress", "Ended without a summary"} | ({"Not started"} if commits == 0 else set())  # the first events may not be on disk yet
    assert report.verdict.word in words, "nobody wrote a summary"
    assert len(report.commits_s) >= commits
    assert (report.timeline is not None) or commits == 0, "a worker's heartbeat comes every second"
    assert dict(report.environment)["command"].startswith("main.py train")
    check_format(written(tmp_path, run_dir))
    opened = open_page(page, tmp_path / "profile")
    assert opened.data("report") == "drawn", opened.console
    assert opened.console == []
    assert opened.data("timelines") == str(int(report.timeline is not None))


@pytest.mark.tools
@pytest.mark.timeout(300)
def test_a_run_that_failed_shows_its_reason_and_traceback_first_and_is_compared_with_one_that_completed(tmp_path: Path) -> None:
    good = run_pipeline(configure(tmp_path / "good", "staleness=1", "run.steps=8"))
    bad = run_pipeline(configure(tmp_path / "bad", f"stages.advantage.compute={broken}:make_raising"))
    page = tmp_path / "report.html"
    assert main(["report", str(good.config.run_dir), str(bad.config.run_dir), "--out", str(page), "--trace", str(tmp_path / "trace.json")]) == 0
    first, second = report_of(good.config.run_dir), report_of(bad.config.run_dir)
    assert first.notes == second.notes == []
    assert (first.verdict.tone, second.verdict.tone) == ("good", "bad")
    assert "ZeroDivisionError" in second.verdict.sentence
    text = page.read_text()
    assert text.index("on purpose, at group") < text.index('<section id="summary">')
    events = (good.config.run_dir / EVENTS).read_bytes().count(b'"kind":"commit"')
    assert first.timeline is not None
    assert len(first.commits_s) == events == 8
    assert {lane.worker for lane in first.timeline.lanes} >= {"rollout-0", "trainer-0", "publisher-0"}
    drawn = {chart.key for chart in first.charts if chart.curves}
    assert drawn >= {"reward", "staleness", "age_s", "ready", "sync", "loaded", "lengths", "responses", "busy"}
    opened = open_page(page, tmp_path / "profile")
    assert opened.data("report") == "drawn", opened.console
    assert opened.data("timelines") == "2"
