"""verl's own V1 trainer, unmodified, over our queue: each mode trains, learns as over TransferQueue, and goes on from its checkpoint."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from tests.verl.children import ROOT
from tests.verl.test_v1_runs import RISE, STEPS, plain, rise  # noqa: F401  # a fixture of both
from tests.verl.v1_run import trained
from tests.verl.v1_settings import V1

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[V1, dict[str, Any]]:
    out = tmp_path_factory.mktemp("ours")
    asked = V1("separate_async", STEPS, "ours", "asyncflow", out, out / "checkpoints", save_every=STEPS, timed=True)
    return asked, trained(asked)


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_three_steps_where_trainer_and_rollout_share_a_device(mode: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp(mode)
    run = trained(V1(mode, 3, "ours", "asyncflow", out, out / "checkpoints"))
    assert run["transfer_queue"] == str(ROOT / "transfer_queue/__init__.py")
    assert run["steps"] == [1, 2, 3]
    assert run["killed"] == []


def test_the_reward_rises_as_it_does_over_transfer_queue(ours: tuple[V1, dict[str, Any]], plain: tuple[V1, dict[str, Any]]) -> None:  # noqa: F811
    _, run = ours
    assert run["transfer_queue"] == str(ROOT / "transfer_queue/__init__.py")
    assert run["steps"] == list(range(1, STEPS + 1))
    assert rise(run["rewards"]) > RISE, run["rewards"]
    assert statistics.mean(run["rewards"][-5:]) > statistics.mean(plain[1]["rewards"][-5:]) - 0.15
    assert run["killed"] == []


def test_a_run_goes_on_from_its_checkpoint(ours: tuple[V1, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    asked, before = ours
    assert (asked.checkpoints / f"global_step_{STEPS}/transfer_queue").is_dir()
    again = trained(replace(asked, steps=STEPS + 3, out=tmp_path_factory.mktemp("resumed"), save_every=0, resume=True, timed=False))
    assert again["steps"] == [STEPS + 1, STEPS + 2, STEPS + 3]
    assert statistics.mean(again["rewards"]) > statistics.mean(before["rewards"][-5:]) - 0.15, "what it had learnt is still there"
    assert again["killed"] == []
