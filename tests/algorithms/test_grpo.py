"""Advantages by hand, and the rules that hold for any rewards."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.algorithms.grpo import group_advantages
from asyncflow.contracts.batch import StageBatch
from asyncflow.stages.advantage import AdvantageStage


def test_advantages_by_hand() -> None:
    rewards, gids = np.array([1.0, 0.0, 0.0, 0.0, 2.0, 4.0], dtype=np.float32), np.array([3, 3, 3, 3, 1, 1])
    plain = group_advantages(rewards, gids, normalise_std=False)
    assert plain.tolist() == [0.75, -0.25, -0.25, -0.25, -1.0, 1.0]
    scaled = group_advantages(rewards, gids, normalise_std=True)
    np.testing.assert_allclose(scaled, [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5), -1.0, 1.0], rtol=1e-6)
    assert scaled.dtype == np.float32


@pytest.mark.parametrize("normalise_std", [True, False])
def test_a_group_with_nothing_to_compare_gets_zero(normalise_std: bool) -> None:
    rewards, gids = np.array([1.0, 1.0, 0.3, 0.3, 0.7], dtype=np.float32), np.array([0, 0, 1, 1, 2])
    assert group_advantages(rewards, gids, normalise_std=normalise_std).tolist() == [0.0] * 5


@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=9), min_size=1, max_size=8))
@settings(max_examples=80, deadline=None)
def test_a_group_sums_to_zero_whatever_company_it_has(groups: list[list[float]]) -> None:
    rewards = np.array([reward for group in groups for reward in group], dtype=np.float32)
    gids = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    together = group_advantages(rewards, gids, normalise_std=True)
    for gid, group in enumerate(groups):
        alone = group_advantages(np.array(group, dtype=np.float32), np.zeros(len(group), dtype=np.int64), normalise_std=True)
        np.testing.assert_allclose(together[gids == gid], alone, atol=1e-5)
        assert abs(float(alone.sum())) < 1e-3


def test_missing_rewards_and_torn_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="reward of group 4 is nan"):
        group_advantages(np.array([1.0, np.nan]), np.array([4, 4]), normalise_std=True)
    with pytest.raises(ValueError, match="not adjacent"):
        group_advantages(np.array([1.0, 0.0, 1.0]), np.array([4, 5, 4]), normalise_std=True)
    with pytest.raises(ValueError, match="no rows"):
        group_advantages(np.zeros(0), np.zeros(0, dtype=np.int64), normalise_std=True)


def batch_of(rewards: list[float], gids: list[int]) -> StageBatch:
    numbers = np.array(gids, dtype=np.int64)
    return StageBatch(numbers, np.zeros(len(gids), dtype=np.int32), numbers, numbers, {"rewards": np.array(rewards, dtype=np.float32)})


def test_control_runs_take_the_signal_away_and_leave_the_rewards_alone() -> None:
    batch = batch_of([1.0, 0.0] * 32, [gid for gid in range(16) for _ in range(4)])
    honest = AdvantageStage(normalise_std=True)(batch)["advantages"]
    zero = AdvantageStage(normalise_std=True, control="zero_advantages")(batch)["advantages"]
    shuffled = AdvantageStage(normalise_std=True, control="shuffle_rewards", seed=3)(batch)["advantages"]
    assert not zero.any()
    assert abs(np.corrcoef(honest, batch.scalar("rewards"))[0, 1]) > 0.99
    assert abs(np.corrcoef(shuffled, batch.scalar("rewards"))[0, 1]) < 0.5
    assert shuffled.any()
    assert batch.scalar("rewards").tolist() == [1.0, 0.0] * 32
    again = AdvantageStage(normalise_std=True, control="shuffle_rewards", seed=3)(batch)["advantages"]
    assert shuffled.tolist() == again.tolist()


def test_the_advantage_stage_imports_no_torch() -> None:
    code = "import sys, asyncflow.stages.advantage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
