"""What decoding costs is taken from the engine's own account, and only while it serves."""

from __future__ import annotations

from asyncflow.workers.costs import CostMeter
from asyncflow.workers.decode_meter import DecodeMeter
from tests.engines.rollout.rollout_harness import new_engine, new_requests


def test_prefill_and_decode_are_measured_apart_and_an_evaluation_is_not() -> None:
    engine, costs = new_engine(), CostMeter()
    meter = DecodeMeter(engine, costs)
    requests = new_requests(3)
    engine.generate(requests)
    meter.chunks()
    sums = costs.sums()
    assert (sums["rollout.prefill"].calls, sums["rollout.prefill"].size) == (1.0, float(sum(len(request.token_ids) for request in requests)))
    assert (sums["rollout.decode"].calls, sums["rollout.decode"].size) == (1.0, 3.0)
    assert min(sums["rollout.prefill"].seconds, sums["rollout.decode"].seconds) > 0.0
    engine.chunks()  # as the evaluator calls it
    assert costs.sums() == sums


def test_equal_calls_may_be_told_at_once() -> None:
    one_by_one, at_once = CostMeter(), CostMeter()
    for _ in range(4):
        one_by_one.add("rollout.decode", 8.0, 0.25)
    at_once.add("rollout.decode", 8.0, 0.25, calls=4.0)
    assert one_by_one.sums() == at_once.sums()
