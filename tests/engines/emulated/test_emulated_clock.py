"""Modelled time does not drift, whatever the timers of this machine do."""

from __future__ import annotations

import pytest

from asyncflow.engines.emulated.clock import STALE_S, Device, ModelClock
from tests.engines.emulated.emulation import SCALE, FakeTime


def test_a_thousand_waits_with_late_timers_take_as_long_as_one_wait_of_their_sum() -> None:
    time = FakeTime(overshoot_s=0.001)
    device, start_s = Device(time.clock()), time.now_s
    for _ in range(1000):
        device.spend(1.0)
    assert time.now_s - start_s == pytest.approx(1000 / SCALE, abs=2 * time.overshoot_s)


def test_what_the_control_plane_takes_between_two_pieces_of_work_counts() -> None:
    time = FakeTime(overshoot_s=0.001)
    device, start_s = Device(time.clock()), time.now_s
    for _ in range(100):
        device.spend(1.0)
        time.now_s += 0.002
    assert time.now_s - start_s == pytest.approx(100 / SCALE + 100 * 0.002, abs=2 * time.overshoot_s)


def test_who_was_idle_since_does_not_get_its_overshoot_back() -> None:
    time = FakeTime(overshoot_s=0.01)
    device = Device(time.clock())
    device.spend(1.0)
    time.now_s += 2 * STALE_S
    start_s = time.now_s
    device.spend(1.0)
    assert time.now_s - start_s == pytest.approx(1.0 / SCALE + time.overshoot_s)


def test_work_that_is_shorter_than_the_overshoot_is_not_waited_for_and_not_lost() -> None:
    time = FakeTime(overshoot_s=0.005)
    device, start_s = Device(time.clock()), time.now_s
    for _ in range(1000):
        device.spend(0.01)
    assert time.now_s - start_s == pytest.approx(10 / SCALE, abs=2 * time.overshoot_s)
    assert time.sleeps < 1000


def test_a_scale_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="time_scale = 0"):
        ModelClock(0)
