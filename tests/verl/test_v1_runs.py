"""verl's own V1 trainer, unmodified, over our queue and on a CPU: each of its modes trains, separate trainers and rollouts learn with our checkpoint
engine as they do over TransferQueue with a plain one, a checkpoint is gone on from, and nothing is left of a run."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest

from tests.verl.children import ROOT
from tests.verl.timed_queue import WAITING, queue_seconds
from tests.verl.v1_run import trained
from tests.verl.v1_settings import BASELINE, V1

pytestmark = [pytest.mark.verl, pytest.mark.timeout(1200)]  # a run takes 100 s alone and some minutes beside others; two of them belong to a test
STEPS = 30
RISE = 0.3
NEAR = 0.15
OURS = str(ROOT / "transfer_queue/__init__.py")
Run = tuple[V1, dict[str, Any]]


def separate(tmp_path_factory: pytest.TempPathFactory, queue: str, engine: str, save_every: int = 0) -> Run:
    out = tmp_path_factory.mktemp(queue)
    asked = V1("separate_async", STEPS, queue, engine, out, out / "checkpoints", save_every, timed=True)
    return asked, trained(asked)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return separate(tmp_path_factory, "baseline", "plain")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return separate(tmp_path_factory, "ours", "asyncflow", save_every=STEPS)


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_three_steps_where_trainer_and_rollout_share_a_device(mode: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp(mode)
    run = trained(V1(mode, 3, "ours", "asyncflow", out, out / "checkpoints"))
    assert run["transfer_queue"] == OURS
    assert run["steps"] == [1, 2, 3]
    assert run["killed"] == []


def test_the_reward_rises_over_our_queue_and_with_our_engine(ours: Run) -> None:
    asked, run = ours
    assert run["transfer_queue"] == OURS
    assert run["steps"] == list(range(1, STEPS + 1))
    assert rise(run) > RISE, run["rewards"]
    assert run["killed"] == []
    metrics = [json.loads(line)["data"] for line in asked.metrics.read_text().splitlines()]
    versions = [entry["asyncflow/version"] for entry in metrics if "asyncflow/version" in entry]
    assert versions == run["steps"], "each step's weights went by our engine, under its number"


def test_a_run_goes_on_from_its_checkpoint(ours: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    asked, before = ours
    assert (asked.checkpoints / f"global_step_{STEPS}/transfer_queue").is_dir()
    again = trained(replace(asked, steps=STEPS + 3, out=tmp_path_factory.mktemp("resumed"), save_every=0, resume=True, timed=False))
    assert again["steps"] == [STEPS + 1, STEPS + 2, STEPS + 3]
    assert statistics.mean(again["rewards"]) > late(before) - NEAR, "what it had learnt is still there"
    assert again["killed"] == []


def test_it_rises_as_it_does_over_transfer_queue_with_a_plain_engine(ours: Run, theirs: Run) -> None:
    _, run = theirs
    assert run["transfer_queue"].startswith(str(BASELINE))
    assert run["steps"] == list(range(1, STEPS + 1))
    assert rise(run) > RISE, run["rewards"]
    assert late(ours[1]) > late(run) - NEAR
    assert run["killed"] == []


@pytest.mark.parametrize("queue", ["ours", "theirs"])
def test_the_seconds_in_the_queue_are_counted_in_every_process_that_uses_it(queue: str, request: pytest.FixtureRequest) -> None:
    found = queue_seconds(request.getfixturevalue(queue)[0].times, 10, STEPS)
    assert found.keys() >= {"TaskRunnerV1", "WorkerDict", "AgentLoopWorkerTQ"}
    for role, call in (("TaskRunnerV1", "kv_batch_get"), ("WorkerDict", "async_get_data"), ("AgentLoopWorkerTQ", "async_kv_batch_put")):
        assert call not in WAITING
        assert sum(found[role][call]) > 0, (role, call)


def rise(run: dict[str, Any]) -> float:
    return late(run) - statistics.mean(run["rewards"][:3])


def late(run: dict[str, Any]) -> float:
    return statistics.mean(run["rewards"][-5:])
