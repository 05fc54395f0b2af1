"""The simulation against arithmetic that needs none: equal lengths and one bottleneck at a time, or one tail, within 5 %."""

from __future__ import annotations

import numpy as np
import pytest

from asyncflow.sizing.costs import CostTable, Split
from asyncflow.sizing.lengths import ResponseLengths
from asyncflow.sizing.simulate import Policy, simulate
from asyncflow.sizing.synchronous import simulate_synchronous
from tests.sizing.tables import equal

LENGTH = 500
STEPS = 40


def batch_tokens(costs: CostTable) -> int:
    return costs.batch_groups * costs.group_rows * LENGTH


def gap(costs: CostTable, split: Split, staleness: int | None, policy: Policy, expected_s: float) -> float:
    """Simulated over expected seconds a step, less 1."""
    run = simulate(costs, split, staleness, policy, steps=STEPS)
    assert [step.tokens for step in run.steps] == [batch_tokens(costs)] * len(run.steps)
    return run.seconds / STEPS / expected_s - 1


@pytest.mark.parametrize("policy", ["wait", "drop"])
@pytest.mark.parametrize(("actor", "ref", "staleness"), [(1, 6, 1), (2, 8, 4), (1, 3, None)])
def test_actor_forward_alone_sets_the_pace(policy: Policy, actor: int, ref: int, staleness: int | None) -> None:
    costs = equal(actor_forward={"tokens_per_s": 400.0, "call_s": 0.0})
    assert abs(gap(costs, Split(40, actor, ref, 32), staleness, policy, batch_tokens(costs) / (400.0 * actor))) < 0.05


@pytest.mark.parametrize(("actor", "ref"), [(6, 1), (8, 2)])
def test_ref_forward_with_a_cost_a_call_sets_the_pace(actor: int, ref: int) -> None:
    costs = equal(ref_forward={"tokens_per_s": 400.0, "call_s": 2.0}, forward_rows=4)
    calls = costs.batch_groups * costs.group_rows / costs.forward_rows
    expected_s = (batch_tokens(costs) / 400.0 + calls * 2.0) / ref
    assert abs(gap(costs, Split(40, actor, ref, 32), 4, "wait", expected_s)) < 0.05


@pytest.mark.parametrize("trainer", [1, 2])
@pytest.mark.parametrize("counted", ["response", "sequence"])
def test_the_trainer_sets_the_pace(trainer: int, counted: str) -> None:
    train = {"tokens_per_s": 150.0, "minibatch_groups": 2, "minibatch_s": 3.0}
    costs = equal(counted=counted, train=train, pause={"seconds": 7.0, "who": ("trainer",)})
    rows = costs.batch_groups * costs.group_rows
    expected_s = rows * costs.row_tokens(LENGTH) / (150.0 * trainer) + 4 * 3.0 + 7.0
    assert abs(gap(costs, Split(40, 8, 8, trainer), 4, "wait", expected_s)) < 0.05


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("slots", [8, 16])
def test_full_slots_set_the_pace(replicas: int, slots: int) -> None:
    """Every replica runs waves of `slots` rows: prefill of all, then LENGTH steps at n = slots; and a pause a version."""
    costs = equal(decode={"max_running": slots}, pause={"seconds": 1.0, "who": ("rollout",)})
    rows = costs.batch_groups * costs.group_rows
    step_s = costs.decode.step_s + costs.decode.per_running_s * slots
    wave_s = slots * costs.prefill_s + LENGTH * step_s
    expected_s = rows / (replicas * slots) * wave_s + 1.0
    assert abs(gap(costs, Split(2 * replicas, 16, 16, 64), 8, "drop", expected_s)) < 0.05


@pytest.mark.parametrize("split", [Split(8, 1, 1, 1), Split(4, 2, 1, 3), Split(2, 1, 4, 8)])
def test_at_staleness_0_the_phases_follow_one_another(split: Split) -> None:
    costs = equal(pause={"seconds": 6.0, "who": ("rollout",)}, forward_rows=1)
    rows, replicas = costs.batch_groups * costs.group_rows, split.rollout // costs.decode.devices
    each = rows // replicas
    generate_s = each * costs.prefill_s + LENGTH * (costs.decode.step_s + costs.decode.per_running_s * each)
    forward_s = max(
        rows * LENGTH / (costs.actor_forward.tokens_per_s * split.actor_forward), rows * LENGTH / (costs.ref_forward.tokens_per_s * split.ref_forward)
    )
    train_s = rows * LENGTH / (costs.train.tokens_per_s * split.trainer) + 4 * 0.5
    assert abs(gap(costs, split, 0, "wait", 6.0 + generate_s + forward_s + train_s)) < 0.05


@pytest.mark.parametrize("staleness", [0, 1, 2, 4, 5, 7])
def test_the_longest_response_sets_the_pace_of_a_whole_window(staleness: int) -> None:
    """One row of every group is long. What starts with version v is trained k steps later: k + 1 steps take one long life and the last mini-batch."""
    costs = equal(LENGTH * 20, decode={"per_running_s": 0.0, "prefill_s": 0.0}, pause={"seconds": 0.0})
    lengths = ResponseLengths(np.array([LENGTH * 20, LENGTH, LENGTH, LENGTH]), costs.group_rows)
    tokens, split = costs.batch_groups * sum(lengths.group(0)), Split(8, 8, 8, 64)
    last_s = tokens / 4 / (costs.train.tokens_per_s * split.trainer) + costs.train.minibatch_s
    forward_s = LENGTH * 20 / costs.actor_forward.tokens_per_s
    window_s = LENGTH * 20 * costs.decode.step_s + forward_s + last_s
    run = simulate(costs, split, staleness, "wait", lengths=lengths)
    assert run.tokens_per_s == pytest.approx((staleness + 1) * tokens / window_s, rel=0.05)


def test_one_request_after_another_is_exact() -> None:
    """One row, one replica, nothing else takes time: prefill, then LENGTH steps at n = 1, then one pause."""
    costs = equal(
        batch_groups=1,
        group_rows=1,
        actor_forward={"tokens_per_s": 1e12},
        ref_forward={"tokens_per_s": 1e12},
        train={"tokens_per_s": 1e12, "minibatch_groups": 1, "minibatch_s": 0.25},
        pause={"seconds": 2.5, "who": ("rollout",)},
    )
    expected_s = costs.prefill_s + LENGTH * (costs.decode.step_s + costs.decode.per_running_s) + 0.25 + 2.5
    assert abs(gap(costs, Split(2, 1, 1, 1), 0, "wait", expected_s)) < 1e-6


@pytest.mark.parametrize("devices", [4, 8, 16])
def test_the_synchronous_loop_is_the_sum_of_its_phases(devices: int) -> None:
    costs = equal()
    rows, each = costs.batch_groups * costs.group_rows, costs.batch_groups * costs.group_rows // (devices // costs.decode.devices)
    tokens = rows * LENGTH
    rates = (costs.actor_forward.tokens_per_s, costs.ref_forward.tokens_per_s, costs.train.tokens_per_s)
    seconds = each * costs.prefill_s + LENGTH * (costs.decode.step_s + costs.decode.per_running_s * each)
    seconds += sum(tokens / (rate * devices) for rate in rates) + 4 * costs.train.minibatch_s + costs.pause.seconds + 2 * costs.switch_s
    assert simulate_synchronous(costs, devices, steps=3) == pytest.approx(tokens / seconds / devices, rel=1e-9)


def test_a_synchronous_batch_that_finds_no_slot_goes_in_waves() -> None:
    costs = equal(decode={"max_running": 8})
    waves_s = 4 * (8 * costs.prefill_s + LENGTH * (costs.decode.step_s + costs.decode.per_running_s * 8))
    rest = sum(32 * LENGTH / (rate * 2) for rate in (costs.actor_forward.tokens_per_s, costs.ref_forward.tokens_per_s, costs.train.tokens_per_s))
    seconds = waves_s + rest + 4 * costs.train.minibatch_s + costs.pause.seconds + 2 * costs.switch_s
    assert simulate_synchronous(costs, 2, steps=2) == pytest.approx(32 * LENGTH / seconds / 2, rel=1e-9)
