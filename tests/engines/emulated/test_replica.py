"""Next-finish events give what single decode steps would give."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncflow.engines.emulated.replica import Replica, Running
from asyncflow.sizing.costs import Decode

COSTS = Decode(step_s=1.0, per_running_s=0.5, max_running=4, devices=2, prefill_s=0.0)


def run_out(replica: Replica) -> dict[str, float]:
    """Until nothing runs: id → when it finished."""
    ends: dict[str, float] = {}
    while (at_s := replica.next_finish_s()) < math.inf:
        ends |= {request.id: at_s for request in replica.advance(at_s)}
    return ends


def step_by_step(lengths: list[int]) -> dict[str, float]:
    """The same model, one decode step at a time: who finishes makes room for the next."""
    queued, left, now_s, ends = list(enumerate(lengths)), dict[int, int](), 0.0, dict[str, float]()
    while queued or left:
        while queued and len(left) < COSTS.max_running:
            index, length = queued.pop(0)
            left[index] = length
        now_s += COSTS.step_s + COSTS.per_running_s * len(left)
        left = {index: more - 1 for index, more in left.items()}
        ends |= {str(index): now_s for index, more in left.items() if not more}
        left = {index: more for index, more in left.items() if more}
    return ends


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_finishes_come_when_single_steps_would_bring_them(lengths: list[int]) -> None:
    replica = Replica(COSTS)
    for index, length in enumerate(lengths):
        replica.add(Running(str(index), length, prompt=0), now_s=0.0)
    assert run_out(replica) == pytest.approx(step_by_step(lengths))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.lists(st.floats(0.1, 40.0), max_size=20))
def test_looking_in_between_changes_nothing(lengths: list[int], looks: list[float]) -> None:
    replica = Replica(COSTS)
    for index, length in enumerate(lengths):
        replica.add(Running(str(index), length, prompt=0), now_s=0.0)
    finished: list[str] = []
    for look in sorted(looks):
        finished += [request.id for request in replica.advance(look)]
    ends, due = run_out(replica), step_by_step(lengths)
    assert {id_: due[id_] for id_ in ends} == pytest.approx(ends)
    assert set(finished) | ends.keys() == due.keys()


def test_prefill_and_pauses_hold_everybody() -> None:
    costs = Decode(step_s=1.0, per_running_s=0.0, max_running=4, devices=1, prefill_s=0.5)
    replica = Replica(costs)
    replica.add(Running("a", 10, prompt=4), now_s=0.0)  # decodes from 2 on
    replica.advance(5.0)
    replica.add(Running("b", 1, prompt=2), now_s=5.0)  # holds until 6
    assert replica.hold(5.0, 3.0) == 9.0
    assert run_out(replica) == {"b": 10.0, "a": 16.0}


def test_who_is_taken_out_frees_its_slot_and_speeds_the_others_up() -> None:
    replica = Replica(COSTS)
    for name in "ab":
        replica.add(Running(name, 10, prompt=0), now_s=0.0)
    replica.advance(10.0)  # 5 steps of 2 s
    assert replica.remove("a") is not None
    assert replica.remove("a") is None
    assert run_out(replica) == {"b": 10.0 + 5 * 1.5}
