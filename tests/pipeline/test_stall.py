"""A run that makes no progress ends and says whose move it was (invariant 11): for each role, with a call that hangs or a process that is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from asyncflow.launch.local import LocalLauncher
from asyncflow.launch.plan import worker_specs
from asyncflow.observe.records import STALL
from asyncflow.observe.stall import STALL_TEXT, load_stall
from tests.pipeline.hanging import Hang, hanging
from tests.pipeline.harness import RECIPE, Run, assert_completed, configure, run_pipeline
from tests.pipeline.killing import pid_of, registered, version, wait_until
from transfer_queue.messages import StallReport
from transfer_queue.waits import render

pytestmark = [pytest.mark.tools, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
LIMITS = ("limits.stall_s=20", "limits.lease_s=45", "limits.drain_s=1", "limits.heartbeat_s=60", "run.steps=60")
EVALUATE = ("evaluation.every=2", "evaluation.items=8")


def stalled(run: Run) -> StallReport:
    """The report of a run that failed because it stalled; saved, and in its exit reason."""
    assert run.summary.exit_reason.startswith("stall: no progress for "), run.summary.exit_reason
    report = load_stall(run.config.run_dir)
    assert report is not None
    assert report.verdict in run.summary.exit_reason
    assert (run.config.run_dir / STALL_TEXT).read_text() == render(report) + "\n"
    assert [event.reason for event in run.events if event.kind == "stall"] == [run.summary.exit_reason]
    told = [said for said in run.said if said.startswith("slow: no progress for")]  # a start on a busy machine may be slow enough for one more
    assert told, "people are told halfway"
    assert f"stage {report.blame.stage!r}" in told[-1]
    print(render(report))
    return report


# what hangs: worker, call, further overrides, the stage and the members that the verdict must name, whether a group shows it
HANGS = {
    "the source in a put": ("source-0", Hang("asyncflow.workers.source:SourceWorker._put", 2), (), "source", ["source-0#0"], False),
    "the rollout while it generates": (
        "rollout-0",
        Hang("asyncflow.engines.rollout.embedded.engine:EmbeddedRolloutEngine.chunks", 60),
        (),
        "rollout",
        ["rollout-0#0"],
        True,
    ),
    "the rollout while it loads": (
        "rollout-0",
        Hang("asyncflow.workers.follower:WeightsFollower.load_newest", 3),
        (),
        "rollout",
        ["rollout-0#0"],
        False,
    ),
    "the rollout while it evaluates": (
        "rollout-0",
        Hang("asyncflow.workers.evaluation:Evaluator.run", 2),
        EVALUATE,
        "evaluate",
        ["rollout-0#0"],
        False,
    ),
    "the scorer in a reward": ("scorer-0", Hang("asyncflow.stages.reward:RewardStage.__call__", 8), (), "reward", ["scorer-0#0"], True),
    "the scorer in an advantage": ("scorer-0", Hang("asyncflow.stages.advantage:AdvantageStage.__call__", 8), (), "advantage", ["scorer-0#0"], True),
    "the actor's forward pass": (
        "actor_forward-0",
        Hang("asyncflow.stages.forward:ForwardStage.__call__", 8),
        (),
        "actor_forward",
        ["actor_forward-0#0"],
        True,
    ),
    "the reference's forward pass": (
        "ref_forward-0",
        Hang("asyncflow.stages.forward:ForwardStage.__call__", 8),
        ("limits.lease_s=2",),
        "ref_forward",
        ["ref_forward-0#0"],
        True,
    ),
    "the trainer in its step": (
        "trainer-0",
        Hang("asyncflow.engines.train.torch_engine:TorchTrainEngine.optimizer_step", 3),
        (),
        "train",
        ["trainer-0#0"],
        True,
    ),
    "the trainer on its way to the publisher": (
        "trainer-0",
        Hang("checkpoint_engine.publisher_client:PublisherClient.publish", 3),
        (),
        "train",
        ["trainer-0#0", "publisher-0#0"],
        False,
    ),
    "the publisher while it digests": ("publisher-0", Hang("checkpoint_engine.publisher:digested", 3), (), "publish", ["publisher-0#0"], False),
    "the publisher while it sends": (
        "publisher-0",
        Hang("checkpoint_engine.fanout:Fanout.publish", 3),
        (),
        "publish",
        ["publisher-0#0", "rollout-0#0"],
        False,
    ),
}


@pytest.mark.parametrize("what", HANGS)
def test_whatever_hangs_is_named_by_stage_and_member_and_the_run_fails(tmp_path: Path, what: str) -> None:
    worker, hang, overrides, stage, members, shown = HANGS[what]
    run = run_pipeline(configure(tmp_path / "run", *LIMITS, *overrides), workers=hanging(worker, hang))
    report = stalled(run)
    assert report.blame.stage == stage
    assert report.blame.members == members
    assert (report.blame.gid >= 0) == shown
    assert members[0] in report.verdict
    assert f"stage '{stage}'" in report.verdict
    assert report.blame.since_s > 15


def test_the_command_prints_the_report_and_exits_with_1(tmp_path: Path) -> None:
    overrides = [*LIMITS, "stages.advantage.compute=tests.pipeline.broken:make_hanging", f"run.cache={tmp_path}/cache"]
    arguments = ["train", str(RECIPE), *overrides, "--run-dir", f"{tmp_path}/run"]
    command = [sys.executable, "-m", "asyncflow.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    report = load_stall(tmp_path / "run")
    assert report is not None
    assert (report.blame.stage, report.blame.members) == ("advantage", ["scorer-0#0"])
    printed = done.stdout.replace("\n", "")  # a narrow terminal may wrap
    for part in (f"exit reason    stall: no progress for {report.idle_s:.1f} s: {report.verdict}", f"whose move: {report.verdict}", STALL):
        assert part in printed
    assert done.stdout.strip().splitlines()[-1] == f"{tmp_path}/run/summary.json"


@pytest.mark.parametrize(("name", "stage"), [("shard-0", "shard"), ("actor_forward-0", "actor_forward"), ("trainer-0", "train")])
def test_a_stopped_process_is_named_before_it_counts_as_dead(tmp_path: Path, name: str, stage: str) -> None:
    def suspend(launcher: LocalLauncher, over: threading.Event) -> None:
        assert wait_until(lambda: version(launcher) >= 1, over, "version 1")
        os.kill(pid_of(launcher, name) or 0, signal.SIGSTOP)

    run = run_pipeline(configure(tmp_path / "run", *LIMITS), suspend)
    report = stalled(run)
    assert (report.blame.stage, report.blame.members[0]) == (stage, f"{name}#0")
    assert f"{name}#0 was not heard of for" in report.verdict or "does not answer" in report.verdict


def test_a_stopped_worker_that_counts_as_dead_is_ended_and_replaced(tmp_path: Path) -> None:
    def suspend(launcher: LocalLauncher, over: threading.Event) -> None:
        assert wait_until(lambda: version(launcher) >= 1, over, "version 1")
        os.kill(pid_of(launcher, "actor_forward-0") or 0, signal.SIGSTOP)

    run = run_pipeline(configure(tmp_path / "run", *LIMITS, "limits.heartbeat_s=10", "limits.stall_s=60", "run.steps=12"), suspend)
    assert_completed(run)
    assert run.summary.restarts == {"actor_forward-0": 1}
    assert not (run.config.run_dir / STALL).exists()


def test_a_compute_longer_than_a_lease_is_taken_in_late_and_the_run_completes(tmp_path: Path) -> None:
    overrides = ("stages.actor_forward.compute=tests.pipeline.slow:make_slow_forward", "limits.lease_s=0.3", "limits.heartbeat_s=60", "run.steps=2")
    run = run_pipeline(configure(tmp_path / "run", *overrides))
    assert_completed(run)
    assert not (run.config.run_dir / STALL).exists()
    late = [event for event in run.events if event.reason == "written_late"]
    assert late
    assert all(float(event.data["seconds"]) > 0.3 for event in late)


def test_a_controller_that_was_stopped_blames_nobody_for_what_it_did_not_hear(tmp_path: Path) -> None:
    def suspend(launcher: LocalLauncher, over: threading.Event) -> None:
        assert wait_until(lambda: version(launcher) >= 1, over, "version 1")
        pid = pid_of(launcher, "controller")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        threading.Event().wait(9.5)  # far less than the launcher waits for a sign of it
        os.kill(pid, signal.SIGCONT)
        assert wait_until(lambda: registered(launcher, "rollout-0"), over, "rollout-0")

    run = run_pipeline(configure(tmp_path / "run", "run.steps=20", "limits.heartbeat_s=8", "limits.lease_s=6"), suspend, worker_specs)
    assert_completed(run)
    (frozen,) = [event for event in run.events if event.reason == "frozen" and float(event.data["seconds"]) > 8]
    blamed = [event for event in run.events if event.reason == "died" and 0 <= event.t_s - frozen.t_s < 5]
    assert not blamed, blamed  # one that a busy machine kept silent may have died at another time
    assert not run.summary.restarts or any(event.reason == "died" for event in run.events)
