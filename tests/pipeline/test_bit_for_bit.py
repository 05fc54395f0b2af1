"""Invariant 6: at staleness 0 the pipeline makes the same weights as the synchronous loop, bit for bit, whoever produced or died on the way."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import asyncflow.engines.reference
from asyncflow.engines.reference import ReferenceLoop
from asyncflow.launch.local import LocalLauncher
from tests.pipeline.harness import Run, assert_completed, configure, run_pipeline
from tests.pipeline.killing import kill, registered, version, wait_until
from tests.pipeline.model import prepare

STEPS = 6


def reference(folder: Path, *overrides: str, steps: int = STEPS) -> list[str]:
    """Digests of versions 1…steps."""
    config = configure(folder / "reference", *overrides)
    loop = ReferenceLoop(config, prepare(config, "policy"))
    return [record.digest for record in loop.run(steps)]


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return reference(tmp_path_factory.mktemp("bits"))


def published(run: Run) -> dict[int, str]:
    return {event.version: str(event.data["digest"]) for event in run.events if event.kind == "published"}


def producers(run: Run) -> set[str]:
    return {event.member.partition("#")[0] for event in run.events if event.kind == "group" and event.dst == "complete"}


def refilled(run: Run) -> bool:
    """Whether some replica made more rows of one batch than it has slots, so that slots were refilled in mid-batch."""
    size, rows = run.config.batch_size, run.config.rollout.samples_per_prompt
    made = Counter((event.member, event.gid // size) for event in run.events if event.kind == "group" and event.dst == "complete")
    return max(made.values()) * rows > run.config.rollout.slots


def test_one_replica_makes_the_weights_of_the_synchronous_loop(tmp_path: Path, digests: list[str]) -> None:
    run = run_pipeline(configure(tmp_path / "run"))
    assert_completed(run)
    assert run.summary.weights_digest == digests[-1]
    assert refilled(run)
    assert [published(run)[version] for version in sorted(published(run)) if version > 0] == digests


def test_two_replicas_make_the_same_weights_and_both_produced(tmp_path: Path, digests: list[str]) -> None:
    run = run_pipeline(configure(tmp_path / "run", "resources.rollout.workers=2"))
    assert_completed(run)
    assert run.summary.weights_digest == digests[-1]
    assert producers(run) == {"rollout-0", "rollout-1"}
    assert refilled(run)


@pytest.mark.parametrize("override", ["run.seed=2", "algorithm.micro_batch_groups=3", "rollout.prompt_width=19"])
def test_another_seed_split_or_padding_changes_the_digest(tmp_path: Path, digests: list[str], override: str) -> None:
    assert reference(tmp_path, override)[-1] != digests[-1]


def test_another_order_of_the_micro_batches_changes_the_digest(tmp_path: Path, digests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    in_order = asyncflow.engines.reference._micro_batches
    monkeypatch.setattr(asyncflow.engines.reference, "_micro_batches", lambda *args: reversed(list(in_order(*args))))
    assert reference(tmp_path)[-1] != digests[-1]


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.e2e)])
def test_kills_of_every_restartable_role_leave_no_trace_in_the_weights(tmp_path: Path, digests: list[str], seed: int) -> None:
    """Every role dies once, each in another step, at a random moment of it."""
    print(f"seed {seed}")
    random = Random(seed)
    victims = ["rollout-0", "actor_forward-0", "ref_forward-0", "scorer-0", "source-0"]
    random.shuffle(victims)

    def killer(launcher: LocalLauncher, over: threading.Event) -> None:
        for step, name in enumerate(victims):
            if not wait_until(lambda: version(launcher) >= step and registered(launcher, name), over, f"{name} at version {step}"):  # noqa: B023
                return
            over.wait(random.uniform(0.0, 0.1))
            kill(launcher, name)

    run = run_pipeline(configure(tmp_path / "run"), killer)
    assert_completed(run)
    assert run.summary.restarts == dict.fromkeys(victims, 1)
    assert run.summary.weights_digest == digests[-1]
