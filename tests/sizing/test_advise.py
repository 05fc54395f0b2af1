"""Advice against the search of all splits, and what it says in cases whose answer is known."""

from __future__ import annotations

import math
import random

import pytest

from asyncflow.sizing.advise import WINDOW, advise
from asyncflow.sizing.capacity import splits
from asyncflow.sizing.costs import CostTable, Lengths, Split
from asyncflow.sizing.lengths import response_lengths
from asyncflow.sizing.search import SLACK, Objective, exhaustive
from asyncflow.sizing.simulate import Policy
from tests.sizing.tables import changed, default, equal, tailed

pytestmark = pytest.mark.tools

WITHIN = 0.95  # of the best that exists
CASES = [(1, "wait"), (1, "drop"), (4, "wait"), (4, "drop")]


def share_of_the_best(costs: CostTable, devices: int, staleness: int, policy: Policy, *, relax: bool, steps: int) -> float:
    """Throughput of the advised split over the most that any split of so many devices can have. What the floor leaves out could not fail `WITHIN`."""
    lengths = response_lengths(costs)
    objective = Objective(costs, staleness, policy, steps, lengths)
    advised = objective(advise(costs, staleness, policy, devices, lengths).best.split)
    found = exhaustive(objective, devices, floor=advised / WITHIN if relax else 0.0, relax=relax)
    print(f"{devices} devices, k = {staleness}, {policy}: advised {advised:.0f}, {found}")
    return advised / found.ceiling


@pytest.mark.parametrize(("staleness", "policy"), [(1, "wait"), (4, "drop")])
def test_the_advice_is_within_5_percent_of_the_best_of_all_splits_of_9_devices(staleness: int, policy: Policy) -> None:
    """Nothing is left out here but by capacity, which is a bound."""
    assert share_of_the_best(tailed(16), 9, staleness, policy, relax=False, steps=8) >= WITHIN


@pytest.mark.parametrize(("staleness", "policy"), [(1, "drop"), (4, "wait")])
def test_the_advice_is_within_5_percent_of_the_best_of_all_splits_of_16_devices(staleness: int, policy: Policy) -> None:
    assert share_of_the_best(tailed(), 16, staleness, policy, relax=True, steps=10) >= WITHIN


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("staleness", "policy"), CASES)
def test_the_advice_is_within_5_percent_of_the_best_of_all_splits_of_64_devices(staleness: int, policy: Policy) -> None:
    """The gate: the emulated default, all 19,375 splits. About 10 s of CPU a case."""
    assert share_of_the_best(default(), 64, staleness, policy, relax=True, steps=12) >= WITHIN


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("staleness", "policy"), CASES)
def test_no_split_of_16_devices_is_above_the_bounds_that_leave_splits_out(staleness: int, policy: Policy) -> None:
    """Every one of them simulated: about 10 s of CPU a case."""
    objective = Objective(tailed(), staleness, policy, 10)
    every = splits(tailed(), 16)
    relaxed = {split: min(objective.most(split, 16, math.inf), objective.most(split, 16, 0.0)) for split in every}
    gains = {split: objective(split) / relaxed[split] * (1 + SLACK) - 1 for split in every}
    print(f"largest gain of a slower stage: {max(gains.values()):.4f}; SLACK {SLACK}")
    assert max(gains.values()) <= SLACK
    assert all(objective(split) <= objective.bound(split) for split in gains)


@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_random_splits_of_64_devices_stay_below_both_bounds(policy: Policy) -> None:
    objective = Objective(default(), 4, policy, 3)
    seed = 7
    for split in random.Random(seed).sample(splits(default(), 64), 2):
        assert objective(split) <= min(objective.bound(split), objective.most(split, 64, math.inf)), (seed, split)


@pytest.mark.parametrize("stage", ["actor_forward", "ref_forward", "trainer"])
def test_the_starved_stage_is_named(stage: str) -> None:
    slow = {"train" if stage == "trainer" else stage: {"tokens_per_s": 150.0}}
    costs = changed(equal(), **slow, split=Split(8, 2, 2, 4 if stage != "trainer" else 2))
    advice = advise(costs, 4, "wait")
    assert advice.bottleneck == stage
    assert getattr(advice.best.split, stage) > getattr(costs.split, stage)
    assert advice.gain > 1.1


@pytest.mark.parametrize(("costs", "staleness"), [(default(), 4), (default(), None), (changed(equal(), split=Split(8, 2, 2, 2)), 4)])
def test_no_stage_is_said_to_need_more_than_its_capacity(costs: CostTable, staleness: int | None) -> None:
    """What a run of a few steps spends of its buffers is no throughput."""
    advice = advise(costs, staleness, "wait", devices=costs.split.devices)
    assert max(stage.load for stage in advice.stages) <= 1 + 1e-9
    for stage in advice.stages:
        assert stage.load * stage.capacity == pytest.approx(advice.present.tokens_per_s)


def test_starved_rollout_is_named() -> None:
    costs = equal(decode={"max_running": 8}, split=Split(2, 6, 6, 8))
    advice = advise(costs, 8, "drop")
    assert advice.bottleneck == "rollout"
    assert advice.best.split.rollout > 2


def test_a_tail_under_a_tight_bound_is_no_stages_fault() -> None:
    assert advise(tailed(8), 1, "wait").bottleneck == WINDOW


def test_where_all_responses_are_alike_and_staleness_is_0_asynchrony_does_not_pay() -> None:
    costs = changed(tailed(8), lengths=Lengths(law="constant", mean=1000, sigma=0.0, cap=2000, prompt=2048, seed=0))
    advice = advise(costs, 0, "wait")
    assert not advice.pays
    assert advice.best.tokens_per_s_device < advice.synchronous
    assert advise(tailed(8), 4, "wait").pays


def test_the_present_split_is_never_better_than_the_best() -> None:
    for costs in (tailed(16), changed(tailed(16), split=Split(8, 2, 2, 4))):
        assert advise(costs, 2, "drop").gain >= 1.0


def test_advice_is_the_same_every_time_and_for_other_numbers_of_devices() -> None:
    once = advise(tailed(16), 1, "drop", 9)
    assert once == advise(tailed(16), 1, "drop", 9)
    assert once.best.split.devices == 9
    assert advise(tailed(16), 1, "drop", 5).best.split == Split(2, 1, 1, 1)
