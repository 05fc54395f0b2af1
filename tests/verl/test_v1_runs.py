"""verl's own V1 trainer, unmodified, trains on a CPU: over which queue, with which checkpoint engine, and what is left when it ends."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from tests.verl.timed_queue import WAITING, queue_seconds
from tests.verl.v1_run import trained
from tests.verl.v1_settings import BASELINE, V1

pytestmark = pytest.mark.verl
STEPS = 30
RISE = 0.3


@pytest.fixture(scope="module")
def sync(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("sync")
    return trained(V1("sync", 3, "baseline", "plain", out, out / "checkpoints"))


def separate(tmp_path_factory: pytest.TempPathFactory, queue: str, engine: str) -> tuple[V1, dict[str, Any]]:
    out = tmp_path_factory.mktemp(engine)
    asked = V1("separate_async", STEPS, queue, engine, out, out / "checkpoints", timed=True)
    return asked, trained(asked)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[V1, dict[str, Any]]:
    return separate(tmp_path_factory, "baseline", "plain")


@pytest.fixture(scope="module")
def asyncflow(tmp_path_factory: pytest.TempPathFactory) -> tuple[V1, dict[str, Any]]:
    return separate(tmp_path_factory, "baseline", "asyncflow")


def rise(rewards: list[float]) -> float:
    return statistics.mean(rewards[-5:]) - statistics.mean(rewards[:3])


def test_sync_trains_over_the_real_transfer_queue_and_leaves_nothing(sync: dict[str, Any]) -> None:
    assert sync["transfer_queue"].startswith(str(BASELINE))
    assert sync["steps"] == [1, 2, 3]
    assert all(0 <= reward <= 1 for reward in sync["rewards"])
    assert sync["killed"] == []


def test_separate_async_learns_with_a_plain_engine(plain: tuple[V1, dict[str, Any]]) -> None:
    _, run = plain
    assert run["steps"] == list(range(1, STEPS + 1))
    assert rise(run["rewards"]) > RISE, run["rewards"]
    assert run["killed"] == []


def test_separate_async_learns_as_well_with_our_engine(plain: tuple[V1, dict[str, Any]], asyncflow: tuple[V1, dict[str, Any]]) -> None:
    asked, run = asyncflow
    assert run["steps"] == list(range(1, STEPS + 1))
    assert rise(run["rewards"]) > RISE, run["rewards"]
    assert statistics.mean(run["rewards"][-5:]) > statistics.mean(plain[1]["rewards"][-5:]) - 0.15
    assert run["killed"] == []
    metrics = [json.loads(line)["data"] for line in asked.metrics.read_text().splitlines()]
    versions = [entry["asyncflow/version"] for entry in metrics if "asyncflow/version" in entry]
    assert versions == run["steps"], "each step's weights went by our engine, under its number"


def test_the_seconds_in_the_queue_are_counted_in_every_process_that_uses_it(asyncflow: tuple[V1, dict[str, Any]]) -> None:
    found = queue_seconds(asyncflow[0].times, 10, STEPS)
    assert found.keys() >= {"TaskRunnerV1", "WorkerDict", "AgentLoopWorkerTQ"}
    for role, call in (("TaskRunnerV1", "kv_batch_get"), ("WorkerDict", "async_get_data"), ("AgentLoopWorkerTQ", "async_kv_batch_put")):
        assert call not in WAITING
        assert all(0 < spent < 30 for spent in found[role][call]), (role, call, found[role][call])
