"""The queue's own processes under kill -9: the controller comes back out of its journal, a shard as a new one, and the run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from asyncflow.launch.local import LocalLauncher
from tests.pipeline.harness import Meanwhile, Run, assert_completed, configure, run_pipeline
from tests.pipeline.killing import kill, pid_of, registered, version, wait_until
from tests.pipeline.test_bit_for_bit import STEPS, digests, published, reference

__all__ = ["digests"]  # the fixture

OFTEN = ("limits.restarts=1000", "limits.heartbeat_s=30", "limits.stall_s=60")  # a slow machine is not what is tested
WORKERS = ("rollout-0", "actor_forward-0", "ref_forward-0", "scorer-0", "source-0")


def killer(seed: int, steps: int, victims: Callable[[Random], Iterator[str]]) -> Meanwhile:
    """One of `victims` each `step`, at a random moment of it."""

    def run(launcher: LocalLauncher, over: threading.Event) -> None:
        random = Random(seed)
        for step, name in zip(range(steps), victims(random), strict=False):
            if not wait_until(lambda: version(launcher) >= step and is_there(launcher, name), over, f"{name} at version {step}"):  # noqa: B023
                return
            over.wait(random.uniform(0.0, 0.3))
            before = pid_of(launcher, name)
            if kill(launcher, name) and not wait_until(lambda: pid_of(launcher, name) not in (before, None), over, f"{name} again"):  # noqa: B023
                return

    return run


def is_there(launcher: LocalLauncher, name: str) -> bool:
    """The controller is no member."""
    return pid_of(launcher, name) is not None if name == "controller" else registered(launcher, name)


def always(name: str) -> Callable[[Random], Iterator[str]]:
    def victims(random: Random) -> Iterator[str]:
        while True:
            yield name

    return victims


def shard_of(shards: int) -> Callable[[Random], Iterator[str]]:
    def victims(random: Random) -> Iterator[str]:
        while True:
            yield f"shard-{random.randrange(shards)}"

    return victims


def anybody(shards: int) -> Callable[[Random], Iterator[str]]:
    """Controller, a shard, a worker in turn, so that each gets its share."""

    def victims(random: Random) -> Iterator[str]:
        while True:
            yield from ("controller", f"shard-{random.randrange(shards)}", random.choice(WORKERS))

    return victims


def restarts(run: Run, *names: str) -> int:
    return sum(run.summary.restarts.get(name, 0) for name in names)


def test_a_controller_that_is_killed_in_every_step_leaves_no_trace_in_the_weights(tmp_path: Path, digests: list[str]) -> None:
    run = run_pipeline(configure(tmp_path / "run", *OFTEN), killer(31, STEPS, always("controller")))
    assert_completed(run)
    assert restarts(run, "controller") == sum(run.summary.restarts.values()) >= STEPS - 1
    assert [published(run)[version] for version in range(1, STEPS + 1)] == digests


@pytest.mark.e2e
@pytest.mark.parametrize(("shards", "seed"), [(1, 41), (2, 42)])
def test_what_a_killed_shard_took_is_made_again_from_the_same_prompts(tmp_path: Path, digests: list[str], shards: int, seed: int) -> None:
    """Groups whose prompts went are dropped, and their prompts are put again: each batch has the groups that it would have had."""
    run = run_pipeline(configure(tmp_path / "run", *OFTEN, f"queue.shards={shards}"), killer(seed, STEPS, shard_of(shards)))
    assert_completed(run)
    assert sum(run.summary.restarts.values()) >= STEPS - 1
    assert [published(run)[version] for version in range(1, STEPS + 1)] == digests


@pytest.mark.e2e
@pytest.mark.parametrize(("staleness", "policy", "seed"), [(0, "wait", 51), (2, "wait", 52), (1, "drop", 53)])
def test_kills_of_everybody_who_can_be_replaced_keep_ledger_and_bound(tmp_path: Path, staleness: int, policy: str, seed: int) -> None:
    steps, overrides = 30, (*OFTEN, "run.steps=40", f"staleness={staleness}", f"flow.policy={policy}", "queue.shards=2")
    print(f"seed {seed}")
    run = run_pipeline(configure(tmp_path / "run", *overrides), killer(seed, steps, anybody(2)))
    assert_completed(run)
    print(run.summary.restarts, run.summary.ledger)
    assert restarts(run, "controller") >= steps // 3 - 1
    assert restarts(run, "shard-0", "shard-1") >= steps // 3 - 1
    assert run.summary.staleness_max is not None
    assert run.summary.staleness_max <= staleness
    if staleness == 0:
        assert run.summary.weights_digest == reference(tmp_path, *overrides, steps=40)[-1]
