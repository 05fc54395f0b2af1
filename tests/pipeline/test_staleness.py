"""The bound of decision 4, measured at the trainer per token: version before the update − version that made the token."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from random import Random

import pytest

from asyncflow.launch.local import LocalLauncher
from asyncflow.observe.records import EVENTS
from asyncflow.observe.replay import whole_events
from tests.pipeline.harness import Run, assert_completed, configure, run_pipeline
from tests.pipeline.killing import kill, pid_of, registered, version, wait_until

SLOW_TRAINER = "algorithm.loss=tests.pipeline.slow:SlowLoss"
SLOW_REPLICA = ("resources.rollout.workers=2", "rollout.engine=tests.pipeline.slow:one_slow_replica")


def trained_staleness(run: Run) -> list[int]:
    """Of every trained group, from the event log: it must agree with what the trainer measured."""
    found = [int(event.data["clock"]) - event.version for event in run.events if event.kind == "group" and event.dst == "trained"]
    assert max(found) == run.summary.staleness_max
    return found


@pytest.mark.parametrize("staleness", [pytest.param(1, marks=pytest.mark.e2e), 2, pytest.param(4, marks=pytest.mark.e2e)])
def test_with_a_slow_trainer_the_measured_maximum_is_the_bound(tmp_path: Path, staleness: int) -> None:
    run = run_pipeline(configure(tmp_path / "run", f"staleness={staleness}", SLOW_TRAINER, "run.steps=10"))
    assert_completed(run)
    assert run.summary.staleness_max == staleness
    assert max(trained_staleness(run)) == staleness


@pytest.mark.e2e
@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_one_replica_four_times_slower_never_breaks_the_bound_under_wait_and_nothing_is_dropped(tmp_path: Path, staleness: int) -> None:
    run = run_pipeline(configure(tmp_path / "run", f"staleness={staleness}", *SLOW_REPLICA, "run.steps=12"))
    assert_completed(run)
    assert max(trained_staleness(run)) <= staleness
    assert run.summary.ledger == {"trained": 12 * 6}


@pytest.mark.e2e
def test_under_drop_a_slow_replica_keeps_the_bound_and_what_is_dropped_is_replaced_and_reported(tmp_path: Path) -> None:
    run = run_pipeline(configure(tmp_path / "run", "staleness=1", "flow.policy=drop", *SLOW_REPLICA, "run.steps=20"))
    assert_completed(run)
    assert max(trained_staleness(run)) <= 1
    dropped = run.summary.ledger.get("dropped:stale", 0)
    assert dropped > 0
    assert run.summary.trained_groups == 20 * 6
    assert run.summary.dropped is not None
    assert run.summary.dropped.groups == dropped
    assert run.summary.dropped.age_mean > run.summary.trained.age_mean
    assert run.summary.dropped.tokens_mean > 0


@pytest.mark.e2e
@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_what_updates_interrupt_goes_back_to_the_queue_and_the_bound_holds(tmp_path: Path, policy: str) -> None:
    overrides = ("staleness=2", f"flow.policy={policy}", "rollout.pause_mode=abort", "run.steps=12")
    run = run_pipeline(configure(tmp_path / "run", *overrides, *SLOW_REPLICA))
    assert_completed(run)
    assert max(trained_staleness(run)) <= 2
    assert run.summary.trained_groups == 12 * 6
    assert any(event.reason == "handed_back" for event in run.events)


@pytest.mark.e2e
@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_short_last_batches_and_restarts_keep_the_bound(tmp_path: Path, policy: str) -> None:
    random = Random(5)

    def killer(launcher: LocalLauncher, over: threading.Event) -> None:
        for step in (1, 3, 5):
            if not wait_until(lambda: version(launcher) >= step and registered(launcher, "rollout-0"), over, "rollout-0"):  # noqa: B023
                return
            over.wait(random.uniform(0.0, 0.1))
            kill(launcher, "rollout-0")

    overrides = ("staleness=2", f"flow.policy={policy}", "run.steps=null", "run.total_groups=57")
    run = run_pipeline(configure(tmp_path / "run", *overrides), killer)
    assert_completed(run)
    assert max(trained_staleness(run)) <= 2
    assert run.summary.versions == 10  # nine batches of 6 and one of 3
    assert run.summary.trained_groups == 57
    assert run.summary.restarts == {"rollout-0": 3}


@pytest.mark.e2e
def test_without_a_bound_bytes_alone_gate_admission(tmp_path: Path) -> None:
    """The trainer stands still until all 48 groups are there: the last batch is then as old as the run is long, on any machine."""
    stopped_at: list[int] = []

    def hold_the_trainer(launcher: LocalLauncher, over: threading.Event) -> None:
        if not wait_until(lambda: launcher.link is not None and bool(launcher.link.directive.weights), over, "version 0 is published"):
            return
        pid = pid_of(launcher, "trainer-0")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            stopped_at.append(max(0, version(launcher)))
            wait_until(lambda: generated(launcher.config.run_dir) == 48, over, "48 whole groups")
        finally:
            with contextlib.suppress(ProcessLookupError):  # the run failed meanwhile, and says why
                os.kill(pid, signal.SIGCONT)

    run = run_pipeline(configure(tmp_path / "run", "staleness=null", SLOW_TRAINER, "run.steps=8", "limits.heartbeat_s=60"), hold_the_trainer)
    assert_completed(run)
    assert run.summary.staleness_max is not None
    assert run.summary.staleness_max >= 7 - stopped_at[0] > 2
    assert {step.permits for step in run.metrics} == {-1}
    assert run.summary.ledger == {"trained": 48}


def generated(run_dir: Path) -> int:
    """Groups that were whole at one time."""
    log = run_dir / EVENTS
    return sum(event.dst == "complete" and event.src == "generating" for event in whole_events(log)) if log.exists() else 0


@pytest.mark.e2e
def test_under_drop_a_marked_replica_whose_groups_are_dropped_still_evaluates(tmp_path: Path) -> None:
    """Its engine's last words on the dropped groups are no answers; every due version is evaluated, the last one too, and each once."""
    overrides = ("staleness=1", "flow.policy=drop", "flow.requeue=true", *SLOW_REPLICA, "run.steps=12", "evaluation.every=2", "evaluation.items=8")
    run = run_pipeline(configure(tmp_path / "run", *overrides))
    assert_completed(run)
    assert max(trained_staleness(run)) <= 1
    assert {0, 12} <= run.summary.evaluations.keys()
    assert len([event for event in run.events if event.reason == "evaluation"]) == len(run.summary.evaluations)
