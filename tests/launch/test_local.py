"""What becomes of a run when its processes end in every way they can; the processes are real and killed for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from asyncflow.launch.child import full_disk
from asyncflow.launch.local import LocalLauncher
from asyncflow.observe.replay import read_events
from asyncflow.observe.summary import summarise
from tests.launch.runs import Cast, launcher, run_config
from transfer_queue.client import QueueClient
from transfer_queue.operation.signals import Signals

ROOT = Path(__file__).parents[2]


def run(folder: Path, cast: Cast, *overrides: str) -> tuple[str, list[str], LocalLauncher]:
    """Exit reason, what the launcher said, the launcher. Afterwards none of its processes is left."""
    said: list[str] = []
    local = launcher(run_config(folder, *overrides), cast, said)
    reason = local.run()
    assert not local.nursery.children
    assert [process.name() for process in workers_of(os.getpid())] == []
    return reason, said, local


def workers_of(pid: int) -> list[psutil.Process]:
    """Processes forked for a run by the fork server of process `pid`."""
    return [worker for server in psutil.Process(pid).children() for worker in server.children()]


def pids(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "lives").read_text().splitlines()]


@pytest.mark.e2e  # it looks at /dev/shm, where no other test may work meanwhile
def test_a_run_that_completes_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    cast: Cast = {"rollout-0": ("loyal", True, ()), "trainer-0": ("finisher", False, (4,))}
    run(tmp_path, cast)
    (tmp_path / "again").mkdir()
    before = len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))
    reason, said, _ = run(tmp_path / "again", cast, "queue.shards=2")
    assert reason == "completed"
    assert (len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))) == before
    assert any("shard-1" in line for line in said)
    events = (tmp_path / "again/run/events.jsonl").read_bytes()
    assert b'"completed"' in events
    assert events.endswith(b"\n")


def test_a_killed_worker_is_restarted_under_its_name(tmp_path: Path) -> None:
    reason, said, local = run(tmp_path, {"rollout-0": ("suicidal", True, (2, str(tmp_path / "lives")))})
    assert reason == "completed"
    assert local.nursery.restarts == {"rollout-0": 2}
    assert len(set(pids(tmp_path))) == 3
    assert any("rollout-0 died (killed by SIGKILL): restarted" in line for line in said)


def test_a_worker_that_dies_too_often_ends_the_run_by_name(tmp_path: Path) -> None:
    reason, _, _ = run(tmp_path, {"rollout-0": ("suicidal", True, (9, str(tmp_path / "lives")))})
    assert reason.startswith("rollout-0 died: killed by SIGKILL, more than limits.restarts = 2 times")
    assert len(pids(tmp_path)) == 3


def test_the_death_of_what_cannot_be_replaced_ends_the_run_by_name(tmp_path: Path) -> None:
    cast: Cast = {"trainer-0": ("suicidal", False, (1, str(tmp_path / "lives"))), "rollout-0": ("loyal", True, ())}
    reason, _, _ = run(tmp_path, cast)
    assert reason == "trainer-0 died: killed by SIGKILL"
    assert len(pids(tmp_path)) == 1


def test_a_worker_that_raises_ends_the_run_with_its_name_and_error(tmp_path: Path) -> None:
    start_s = time.monotonic()
    reason, _, _ = run(tmp_path, {"scorer-0": ("raising", True, ()), "rollout-0": ("loyal", True, ())})
    assert reason == "scorer-0 raised: ValueError: no such luck"
    assert summarise(tmp_path / "run", reason, 1.0, {}).traceback == "in line 1"
    assert time.monotonic() - start_s < 10


def test_the_end_waits_for_nobody_who_fell_while_the_launcher_looked_elsewhere(tmp_path: Path) -> None:
    """The controller waited until they counted as silent: limits.heartbeat_s without a word."""
    cast: Cast = {"source-0": ("raising", True, ()), "scorer-0": ("raising", True, ()), "rollout-0": ("loyal", True, ())}
    local = launcher(run_config(tmp_path, "limits.heartbeat_s=20", "limits.drain_s=20"), cast, [])
    local._tick = lambda: time.sleep(1.0)
    start_s = time.monotonic()
    assert "raised: ValueError: no such luck" in local.run()
    assert time.monotonic() - start_s < 12


def test_a_worker_that_fails_before_it_registers_ends_the_run_by_name(tmp_path: Path) -> None:
    reason, said, _ = run(tmp_path, {"scorer-0": ("crashing", True, ()), "rollout-0": ("loyal", True, ())})
    assert reason == "scorer-0 died: exit code 1"
    assert "scorer-0 cannot start" in (tmp_path / "run/logs/scorer-0.log").read_text()
    assert any("RuntimeError: scorer-0 cannot start" in line for line in said)


@pytest.mark.e2e
def test_a_worker_that_does_not_end_is_killed_after_its_deadline(tmp_path: Path) -> None:
    reason, said, _ = run(tmp_path, {"rollout-0": ("deaf", True, ()), "trainer-0": ("finisher", False, (4,))}, "limits.drain_s=0.5")
    assert reason == "completed"
    assert any(line.startswith("rollout-0 did not end by itself within limits.drain_s") for line in said)


def test_a_worker_that_counts_as_dead_is_restarted_like_one_that_died(tmp_path: Path) -> None:
    reason, said, local = run(tmp_path, {"rollout-0": ("expelled", True, (str(tmp_path / "lived"),))})
    assert reason == "completed"
    assert local.nursery.restarts == {"rollout-0": 1}
    assert any("rollout-0 died (out of touch with the controller" in line for line in said)


def test_a_completed_run_whose_trainer_had_to_be_killed_is_not_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it still had to do, such as an export, was cut off."""
    monkeypatch.setattr("asyncflow.launch.nursery.KILL_AFTER_S", 0.3)
    cast: Cast = {"trainer-0": ("deaf", False, ()), "rollout-0": ("finisher", True, (4,))}
    reason, _, _ = run(tmp_path, cast, "limits.drain_s=0.5")
    assert reason.startswith("trainer-0 failed while the run ended")


@pytest.mark.e2e
def test_a_controller_that_hangs_ends_the_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncflow.launch.link.SILENT_S", 0.3)
    monkeypatch.setattr("asyncflow.launch.link.ANSWER_S", 0.3)
    monkeypatch.setattr("asyncflow.launch.nursery.KILL_AFTER_S", 0.3)
    local = launcher(run_config(tmp_path), {"rollout-0": ("loyal", True, ())}, [])
    stopper = threading.Thread(target=signal_when_started, args=(local, "controller", signal.SIGSTOP))
    stopper.start()
    reason = local.run()
    stopper.join()
    assert reason.startswith("controller does not answer: ")
    assert workers_of(os.getpid()) == []


@pytest.mark.parametrize(
    ("victim", "override", "told"),
    [
        ("controller", "queue.journal=false", ""),
        ("controller", "limits.restarts=0", ", more than limits.restarts = 0 times in 60 s"),
        ("shard-0", "limits.restarts=0", ", more than limits.restarts = 0 times in 60 s"),
    ],
)
def test_the_death_of_the_queue_ends_the_run_by_name_where_it_may_not_come_back(tmp_path: Path, victim: str, override: str, told: str) -> None:
    said: list[str] = []
    local = launcher(run_config(tmp_path, override), {"rollout-0": ("loyal", True, ())}, said)
    killer = threading.Thread(target=signal_when_started, args=(local, victim, signal.SIGKILL))
    killer.start()
    reason = local.run()
    killer.join()
    assert reason == f"{victim} died: killed by SIGKILL{told}"
    assert workers_of(os.getpid()) == []


def test_controller_and_shards_that_are_killed_come_back_and_everybody_goes_on(tmp_path: Path) -> None:
    """Both at once: whoever is told of the shard's death has to be started again first."""
    said: list[str] = []
    local = launcher(run_config(tmp_path), {"rollout-0": ("loyal", True, ()), "trainer-0": ("loyal", False, ())}, said)

    def kill() -> None:
        for life in (1, 2):
            signal_when_started(local, "shard-0", signal.SIGKILL)
            signal_when_started(local, "controller", signal.SIGKILL)
            until(lambda: local.link is not None and f"shard-0#{life}" in local.link.directive.alive)  # noqa: B023
        url = (tmp_path / "run/controller.url").read_text().strip()
        with QueueClient.outsider(url) as outsider:
            outsider.stop("completed").result(20.0)

    killer = threading.Thread(target=kill)
    killer.start()
    reason = local.run()
    killer.join()
    assert reason == "completed"
    assert local.nursery.restarts == {"controller": 2, "shard-0": 2}
    events = list(read_events(tmp_path / "run/events.jsonl"))
    assert [event.reason for event in events if event.kind == "run" and event.reason == "restarted"] == ["restarted"] * 2
    joined = [event.member for event in events if event.reason == "joined"]
    assert sorted(joined) == ["launcher#0", "rollout-0#0", "shard-0#0", "shard-0#1", "shard-0#2", "trainer-0#0"], "nobody else had to join anew"
    assert workers_of(os.getpid()) == []


def test_a_controller_that_is_killed_while_everybody_leaves_completes_its_record(tmp_path: Path) -> None:
    local = launcher(run_config(tmp_path, "limits.drain_s=10"), {"rollout-0": ("lingering", True, ()), "trainer-0": ("finisher", False, (4,))}, [])

    def kill() -> None:
        until(lambda: local.link is not None and local.link.directive.state == "stop")
        os.kill(local.nursery.children["controller"].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    reason = local.run()
    killer.join()
    assert reason == "completed"
    assert local.nursery.restarts == {"controller": 1}
    events = list(read_events(tmp_path / "run/events.jsonl"))
    assert {event.member for event in events if event.reason == "left"} == {"rollout-0#0", "trainer-0#0", "launcher#0", "shard-0#0"}
    assert workers_of(os.getpid()) == []


def until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def signal_when_started(local: LocalLauncher, victim: str, number: signal.Signals) -> None:
    deadline = time.monotonic() + 60
    while "rollout-0" not in local.nursery.children or not local.link or not local.link.alive(["rollout-0"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = local.nursery.children[victim].pid
    assert pid is not None
    os.kill(pid, number)


def test_a_preparation_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    prepare = ("models.policy.path=null", "models.policy.prepare='tests.launch.prepares:broken'")
    reason, _, _ = run(tmp_path, {"rollout-0": ("loyal", True, ())}, *prepare)
    assert reason.startswith("prepare ended before it was ready (exit code 1): ValueError: no weights today")


def test_what_a_preparation_made_is_what_every_model_gets(tmp_path: Path) -> None:
    prepare = ("models.policy.path=null", "models.policy.prepare='tests.launch.prepares:ready'", f"run.cache={tmp_path / 'cache'}")
    reason, _, local = run(tmp_path, {"trainer-0": ("finisher", False, (3,))}, *prepare)
    assert reason == "completed"
    assert {name: model.path for name, model in local.config.models.items()} == dict.fromkeys(("policy", "ref"), str(tmp_path / "cache/policy"))
    assert json.loads((tmp_path / "run/config.json").read_text())["models"]["ref"]["path"] == str(tmp_path / "cache/policy")


def started(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A launcher in a process of its own, and all processes below it, once its workers are registered."""
    process = subprocess.Popen([sys.executable, "-m", "tests.launch.program", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "rollout-0" in line:
            break
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 5  # fork server, resource tracker, controller, shard, two workers
    return process, below


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.e2e)])
def test_ctrl_c_and_sigterm_stop_the_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    process, below = started(tmp_path)
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert output.splitlines()[-1] == "interrupted"
    assert process.returncode == 0
    assert psutil.wait_procs(below, timeout=5)[1] == []
    assert b'"interrupted"' in (tmp_path / "run/events.jsonl").read_bytes()


@pytest.mark.e2e
def test_workers_end_by_themselves_when_the_launcher_is_killed(tmp_path: Path) -> None:
    process, below = started(tmp_path)
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert psutil.wait_procs(below, timeout=15)[1] == []


def test_the_end_of_the_terminal_is_an_end_in_order_and_nohup_outlives_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # this test itself may run under nohup
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.take() == [signal.SIGHUP]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.take() == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_full_disk_is_named_where_the_log_on_it_can_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_disk(tmp_path) == ""
    assert "cannot be read" in full_disk(tmp_path / "gone")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    assert full_disk(tmp_path) == f", and the disk of {tmp_path} is full"


def test_a_directory_that_was_taken_away_is_the_reason_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise OSError(28, "No space left on device", "config.json")

    monkeypatch.setattr("asyncflow.launch.launcher.write_environment", gone)
    reason, _, _ = run(tmp_path, Cast())
    assert reason == "the launcher cannot go on: [Errno 28] No space left on device: 'config.json'"
