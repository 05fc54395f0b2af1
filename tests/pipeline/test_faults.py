"""What a run does when something dies, raises or hangs: it goes on without loss, or it ends, says what died, and exits non-zero."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from asyncflow.launch.local import LocalLauncher
from tests.pipeline.harness import RECIPE, assert_completed, configure, run_pipeline
from tests.pipeline.killing import kill, pid_of, registered, version, wait_until

ROOT = Path(__file__).parents[2]


LONGER = [pytest.param(name, marks=pytest.mark.e2e) for name in ("shard-0", "controller")]  # tests/launch has them with light workers
NOT_AGAIN = {"shard-0": ("limits.restarts=0",), "controller": ("queue.journal=false",)}


@pytest.mark.parametrize("name", ["trainer-0", "publisher-0", *LONGER])
def test_the_death_of_a_part_that_cannot_be_replaced_ends_the_run_and_names_it(tmp_path: Path, name: str) -> None:
    def killer(launcher: LocalLauncher, over: threading.Event) -> None:
        if wait_until(lambda: version(launcher) >= 3, over, "version 3"):
            kill(launcher, name)

    run = run_pipeline(configure(tmp_path / "run", "run.steps=200", "weights.export_every=2", *NOT_AGAIN.get(name, ())), killer)
    assert name in run.summary.exit_reason
    assert "SIGKILL" in run.summary.exit_reason
    assert run.summary.exported is not None
    exported = Path(run.summary.exported)
    assert {"model.safetensors", "config.json", "weights_id.json"} <= {path.name for path in exported.iterdir()}
    assert json.loads((exported / "weights_id.json").read_bytes())


def test_a_worker_that_raises_ends_the_run_within_ten_seconds_with_its_name_and_traceback(tmp_path: Path) -> None:
    run = run_pipeline(configure(tmp_path / "run", "stages.advantage.compute=tests.pipeline.broken:make_raising"))
    assert run.summary.exit_reason.startswith("scorer-0 raised: ZeroDivisionError: on purpose, at group ")
    times = {event.kind: event.t_s for event in run.events if event.kind == "run" or (event.kind == "group" and event.dst == "complete")}
    assert times["run"] - times["group"] < 10
    told = [event for event in run.events if event.kind == "run" and "traceback" in event.data]
    assert "in __call__" in str(told[0].data["traceback"])
    assert "raise ZeroDivisionError" in run.log("scorer-0")


def test_a_reward_that_hangs_costs_its_group_and_nothing_else(tmp_path: Path) -> None:
    overrides = ("task.path=tests.pipeline.broken:hanging_scorer", "limits.reward_s=0.2", "staleness=1", "run.steps=4")
    run = run_pipeline(configure(tmp_path / "run", *overrides))
    assert_completed(run)
    assert run.summary.ledger["dropped:reward_timeout"] >= 1
    assert run.summary.ledger["trained"] == 24


@pytest.mark.e2e
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_ctrl_c_is_a_clean_stop_and_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    before = set(os.listdir("/dev/shm"))
    arguments = ["train", str(RECIPE), "run.steps=5000", f"run.cache={tmp_path}/cache", "--run-dir", f"{tmp_path}/run"]
    command = [sys.executable, "-m", "asyncflow.cli.main", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    children: list[psutil.Process] = []
    try:
        mark = {"starting": "controller.log", "running": "trainer-0.log"}[moment]
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "logs" / mark).exists() or (moment == "running" and not (tmp_path / "run" / "metrics.jsonl").exists()):
            assert time.monotonic() < deadline
            assert process.poll() is None
            threading.Event().wait(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone in the group
        output, _ = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 1, output
    assert output.strip().splitlines()[-1] == str(tmp_path / "run" / "summary.json")
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())["exit_reason"] == "interrupted"
    assert len(children) >= 2
    deadline = time.monotonic() + 5.0  # the fork server sees that its starter ended, and ends
    while left := [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]:  # who has no reaper stays one
        assert time.monotonic() < deadline, [child.cmdline() for child in left]
        threading.Event().wait(0.05)
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "staleness"), [("rollout-0", 1), ("actor_forward-0", 0)])
def test_a_worker_that_was_suspended_and_counted_as_dead_comes_back_as_a_new_one(tmp_path: Path, name: str, staleness: int) -> None:
    def suspend(launcher: LocalLauncher, over: threading.Event) -> None:
        assert wait_until(lambda: version(launcher) >= 2, over, "version 2")
        pid = pid_of(launcher, name)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: not registered(launcher, name), over, f"{name} counts as dead")
        os.kill(pid, signal.SIGCONT)

    run = run_pipeline(configure(tmp_path / "run", f"staleness={staleness}", "limits.heartbeat_s=3", "run.steps=40"), suspend)
    assert_completed(run)
    assert run.summary.restarts == {name: 1}
    assert run.summary.staleness_max == staleness
