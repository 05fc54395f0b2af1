"""Emulated stages and training take the table's time and make columns of the right shapes."""

from __future__ import annotations

import numpy as np
import pytest

from asyncflow.contracts.batch import StageBatch
from asyncflow.engines.emulated.clock import Device
from asyncflow.engines.emulated.stages import EmulatedForward, EmulatedReward
from asyncflow.engines.emulated.train import EmulatedMicroBatches, EmulatedTrainEngine
from tests.engines.emulated.emulation import SCALE, FakeTime, costs, emulation, weights
from transfer_queue.columns import Jagged


def batch(*lengths: int) -> StageBatch:
    rows = len(lengths)
    responses = Jagged.of([[7] * length for length in lengths], "int32")
    versions = np.zeros(rows, dtype=np.int64)
    return StageBatch(np.arange(rows, dtype=np.int64), np.zeros(rows, dtype=np.int32), versions, versions, {"response_ids": responses})


def test_a_forward_pass_takes_its_call_and_its_tokens_and_gives_one_number_a_token() -> None:
    time = FakeTime()
    forward = EmulatedForward("old_logprobs", costs().actor_forward, 0.0, costs(), time.clock())
    begin_s = time.now_s
    column = forward(batch(30, 1, 69))["old_logprobs"]
    assert time.now_s - begin_s == pytest.approx((1.0 + 100 / 100.0) / SCALE)
    assert column.lengths.tolist() == [30, 1, 69]
    assert column.values.dtype == np.float32


def test_loading_holds_a_forward_worker_only_if_the_table_says_so_and_never_the_first_time() -> None:
    time = FakeTime()
    forward = EmulatedForward("old_logprobs", costs().actor_forward, 5.0, costs(), time.clock())
    begin_s = time.now_s
    forward.load_weights(weights(0), [])
    assert time.now_s == begin_s
    forward.load_weights(weights(1), [])
    assert time.now_s - begin_s == pytest.approx(5.0 / SCALE)


def test_a_reward_is_one_number_a_row() -> None:
    rewards = EmulatedReward()(batch(3, 4))["rewards"]
    assert rewards.tolist() == [1.0, 0.0]


def test_all_devices_of_the_trainer_share_a_minibatch_and_its_fixed_time_stays() -> None:
    time = FakeTime()
    device = Device(time.clock())
    engine, accumulate = EmulatedTrainEngine(emulation(), device), EmulatedMicroBatches(emulation(), device)
    begin_s = time.now_s
    done = accumulate(batch(300, 100))
    assert time.now_s - begin_s == pytest.approx((2.0 + 400 / (2 * 100.0)) / SCALE)
    assert done.denominator == 2.0
    before = {name: tensor.copy() for name, tensor in engine.get_per_tensor_param()}
    engine.optimizer_step(done.denominator)
    assert all((tensor != before[name]).all() for name, tensor in engine.get_per_tensor_param())
