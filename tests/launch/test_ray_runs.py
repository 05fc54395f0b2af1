"""Whole runs on Ray: the same bits as without it, whoever is killed; nodes that come and go; places that are not to be had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncflow.launch.launchers import make_launcher
from asyncflow.launch.ray.launcher import RayLauncher
from tests.launch.ray_nodes import COMMON, below, environment_of, gone, node_of, nodes, workers_at
from tests.launch.ray_program import quick_config
from tests.pipeline.harness import Run, assert_completed, configure, run_pipeline
from tests.pipeline.killing import kill, pid_of, registered, version, wait_until
from transfer_queue.__main__ import main as queue_command

ROOT = Path(__file__).parents[2]
STEPS = 6
ON_RAY = ("launch=ray", "limits.stall_s=90", "limits.drain_s=30", "limits.heartbeat_s=30", f"run.steps={STEPS}")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run without Ray."""
    run = run_pipeline(configure(tmp_path_factory.mktemp("local") / "run", f"run.steps={STEPS}"))
    assert_completed(run)
    return run


def test_a_run_on_ray_has_the_bits_of_a_local_one_and_leaves_nothing(tmp_path: Path, local: Run) -> None:
    before = set(below()), set(Path("/tmp").glob("af-????????"))
    run = run_pipeline(configure(tmp_path / "run", *ON_RAY))
    assert_completed(run)
    assert isinstance(run.launcher, RayLauncher)
    assert "placed 7 workers on 1 node of a Ray cluster" in run.said
    assert run.summary.weights_digest == local.summary.weights_digest
    assert run.summary.restarts == {}
    assert workers_at(run.config.run_dir) == {}
    assert gone([pid for pid in below() if pid not in before[0]]) == []
    assert set(Path("/tmp").glob("af-????????")) <= before[1]


def test_workers_on_two_nodes_with_keys_that_are_killed_are_restarted_and_leave_no_trace_in_the_weights(
    tmp_path: Path, local: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies, and an agent with its worker; the key's file is not where the workers are, its contents go through the agents."""
    assert queue_command(["keys", str(tmp_path / "keys")]) == 0
    homes: dict[str, int] = {}

    def killer(launcher: RayLauncher, over: threading.Event) -> None:
        for step, name in enumerate(["rollout-0", "scorer-0", "actor_forward-0"]):
            if not wait_until(lambda: version(launcher) >= step and registered(launcher, name), over, f"{name} at {step}"):  # noqa: B023
                return
            homes.update({worker: node_of(processes[0]) for worker, processes in workers_at(launcher.config.run_dir).items()})
            if step == 1:
                pid = pid_of(launcher, name)
                assert pid is not None
                os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)  # its agent
            else:
                assert kill(launcher, name)

    with nodes(monkeypatch, {"num_cpus": 4}, {"num_cpus": 3}) as cluster:
        keys = (f"queue.key_file={tmp_path / 'keys/server.key'}",)
        run = run_pipeline(configure(tmp_path / "run", *ON_RAY, f"cluster.address={cluster.address}", *keys), killer)
        left = workers_at(run.config.run_dir)
    assert_completed(run)
    assert run.summary.restarts == {"rollout-0": 1, "scorer-0": 1, "actor_forward-0": 1}
    assert any("rollout-0 died (killed by SIGKILL): restarted" in line for line in run.said)
    assert any("scorer-0 died (its node or its agent is gone): restarted" in line for line in run.said)
    assert "placed 7 workers on 2 nodes of a Ray cluster" in run.said
    assert len(set(homes.values())) == 2, homes
    assert run.summary.weights_digest == local.summary.weights_digest
    assert left == {}


def test_a_node_that_dies_is_replaced_by_another_and_roles_share_devices(tmp_path: Path, local: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices are numbers: workers see the ids that Ray gave out, and compute on the CPU."""
    placed = ("cluster.kind=cuda", "cluster.devices=2", "resources.rollout.devices=1", "resources.scorer.beside=rollout")
    parts = ("resources.actor_forward.devices=0.5", "resources.ref_forward.devices=0.5")
    seen: dict[str, tuple[int, str | None]] = {}
    again: dict[str, tuple[int, str | None]] = {}

    def look(launcher: RayLauncher) -> dict[str, tuple[int, str | None]]:
        found = workers_at(launcher.config.run_dir)
        return {name: (node_of(each[0]), environment_of(each[0], "CUDA_VISIBLE_DEVICES")) for name, each in found.items()}

    def killer(launcher: RayLauncher, over: threading.Event) -> None:
        if not wait_until(lambda: version(launcher) >= 1, over, "version 1"):
            return
        seen.update(look(launcher))
        victim = next(node for node in spare if node.all_processes["raylet"][0].process.pid == seen["rollout-0"][0])
        cluster.remove_node(victim, allow_graceful=False)
        names = [name for name, (node, _) in seen.items() if node == seen["rollout-0"][0]]
        successors = {f"{name}#1" for name in names}
        if wait_until(lambda: launcher.link is not None and successors.issubset(launcher.link.directive.alive), over, f"{names} again"):
            again.update(look(launcher))

    with nodes(monkeypatch, {"num_cpus": 8, "num_gpus": 0}) as cluster:
        spare: list[Any] = [cluster.add_node(num_cpus=4, num_gpus=2, **COMMON) for _ in range(2)]
        overrides = (*ON_RAY, "run.steps=30", "limits.restarts=5", f"cluster.address={cluster.address}", *placed, *parts)
        run = run_pipeline(configure(tmp_path / "run", *overrides), killer)
    assert_completed(run)
    assert seen["scorer-0"] == seen["rollout-0"], "beside it: the same node and the same device"
    assert seen["rollout-0"][1] in ("0", "1")
    assert {seen["actor_forward-0"][1], seen["ref_forward-0"][1]} <= {"0", "1"}
    assert seen["actor_forward-0"] == seen["ref_forward-0"] != seen["rollout-0"], "two halves are one device"
    assert seen["trainer-0"][1] == ""
    assert again["rollout-0"][0] not in (seen["rollout-0"][0], seen["trainer-0"][0])
    assert again["scorer-0"] == again["rollout-0"]
    assert {"rollout-0", "scorer-0"} <= run.summary.restarts.keys()


def test_what_can_never_be_placed_is_named_at_once_and_the_rest_after_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    with nodes(monkeypatch, {"num_cpus": 8, "num_gpus": 0}, {"num_cpus": 2, "num_gpus": 2}) as cluster:
        common = (*ON_RAY, f"cluster.address={cluster.address}", "cluster.kind=cuda", "cluster.devices=8")
        begun_s = time.monotonic()
        run = run_pipeline(configure(tmp_path / "run", *common, "resources.rollout.devices=4"))
        assert run.summary.exit_reason.startswith("rollout-0 cannot be placed: it wants 1 CPU and 4 GPU on one node, and no node has so much; node ")
        assert "2 of 2 GPU free" in run.summary.exit_reason
        assert time.monotonic() - begun_s < 30
        assert run.launcher.nursery.restarts == {}

        ray.init(cluster.address, log_to_driver=False)
        try:
            group = ray.util.placement_group([{"GPU": 1}])  # somebody else's
            assert group.wait(20)
            begun_s = time.monotonic()
            run = run_pipeline(configure(tmp_path / "later", *common, "resources.rollout.devices=2", "limits.place_s=2"))
            assert 2 <= time.monotonic() - begun_s < 20
            assert run.summary.exit_reason.startswith("no place within limits.place_s = 2 s for rollout-0 (wants 1 CPU and 2 GPU); node ")
            assert "1 of 2 GPU free" in run.summary.exit_reason
            assert ray.is_initialized(), "whose cluster it was goes on"
        finally:
            ray.shutdown()


def test_a_cluster_that_is_not_there_is_named_with_its_key(tmp_path: Path) -> None:
    run = run_pipeline(configure(tmp_path / "run", *ON_RAY, "cluster.address=127.0.0.1:9"))
    assert run.summary.exit_reason.startswith("cluster.address = '127.0.0.1:9': no Ray cluster answers there")


def started(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A launcher in a process of its own, and all processes below it, once its workers are registered."""
    process = subprocess.Popen([sys.executable, "-m", "tests.launch.ray_program", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("registered: ") and "rollout-0" in line:
            break
    everybody = below(process.pid)
    assert len(workers_at(folder)) == 7, lines
    return process, everybody


def test_ctrl_c_stops_a_run_on_ray_cleanly(tmp_path: Path) -> None:
    process, everybody = started(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output.splitlines()[-1] == "interrupted"
    assert process.returncode == 0
    assert gone(everybody) == []


def test_nobody_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    process, everybody = started(tmp_path / "run")
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert gone(everybody, 30.0) == []


def test_the_launch_is_what_the_configuration_says(tmp_path: Path) -> None:
    launcher = make_launcher(quick_config(tmp_path), print)
    assert isinstance(launcher, RayLauncher)
