"""The recipe when things go wrong: a replica is killed in mid-run and the run goes on; what cannot be placed is named at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.verl.recipe_run import BATCH, recipe

pytestmark = [pytest.mark.verl, pytest.mark.timeout(560)]
PATIENCE_S = 300.0
SOON_S = 60.0  # what cannot be placed is named within this
STEPS, BEFORE = 30, 3


def test_a_replica_and_the_engine_process_of_the_other_are_killed_and_the_run_goes_on_within_the_bound(tmp_path: Path) -> None:
    """Nobody is left who could roll out, so every later step is of those that were started again."""
    killed: list[int] = []

    def kill(folder: Path, run: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while steps_of(folder) < BEFORE and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if run.poll() is not None:
            return
        workers = {name: worker_of(folder, run, name) for name in ("rollout-0", "rollout-1")}
        for process in (workers["rollout-1"], engine_of(workers["rollout-0"])):
            os.kill(process.pid, signal.SIGKILL)
            killed.append(steps_of(folder))

    run = recipe(tmp_path, "actor_rollout_ref.rollout.n_gpus_per_node=2", steps=STEPS, threshold=2, meanwhile=kill)
    assert run.code == 0, run.output + run.logs()
    assert len(killed) == 2
    assert max(killed) < STEPS - 4  # a replica may have finished prompts that the next steps are made of
    assert run.summary["exit_reason"] == "completed"
    assert run.summary["restarts"] == {"rollout-1": 1}
    assert re.search(r"rollout-0: vLLM ended: .*its engine process", (run.folder / "logs/rollout-0.log").read_text())
    assert run.summary["ledger"] == {"trained": STEPS * BATCH}
    steps = [step["info"] for step in run.steps]
    assert len(steps) == STEPS
    assert max(step["staleness_max"] for step in steps) <= 1.0
    rewards = [step["reward_mean"] for step in steps]
    assert sum(rewards[-5:]) > 1.5 * sum(rewards[:5])


def test_a_configuration_that_cannot_be_placed_is_named_within_a_minute(tmp_path: Path) -> None:
    """Devices of a kind that this machine does not have."""
    devices = ("trainer.device=cuda", "trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.n_gpus_per_node=2")
    begun_s = time.monotonic()
    run = recipe(tmp_path, *devices, "+asyncflow.launch=ray", steps=2, limit_s=90, VERL_PLATFORM="", CUDA_VISIBLE_DEVICES="")
    assert time.monotonic() - begun_s < SOON_S
    assert run.code == 1, run.output
    reason = run.summary["exit_reason"]
    assert "cannot be placed: it wants 1 CPU and " in reason
    assert "0 of 0 GPU free" in reason
    assert "Fix: fewer resources.*.workers, devices or threads, or more nodes" in reason
    assert not (run.folder / "controller.url").exists(), "nothing was started before"


def steps_of(folder: Path) -> int:
    try:
        return len((folder / "metrics.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def worker_of(folder: Path, run: subprocess.Popen[bytes], name: str) -> psutil.Process:
    """The process whose output is this worker's log, and whose parent's is not."""
    log = str(folder / "logs" / f"{name}.log")
    found = [process for process in psutil.Process(run.pid).children(recursive=True) if output_of(process.pid) == log]
    return next(process for process in found if output_of(process.ppid()) != log)


def engine_of(worker: psutil.Process) -> psutil.Process:
    """vLLM's: beside it a worker has small helpers of Python's only."""
    return max(worker.children(), key=lambda child: int(child.memory_info().rss))


def output_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return None
