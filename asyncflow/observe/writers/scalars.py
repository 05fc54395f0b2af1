"""A step as named numbers, "chart/line", for writers that know nothing else. What was not measured is not there."""

from __future__ import annotations

from collections.abc import Iterator

from asyncflow.observe.records import StepRecord

ELSEWHERE = ("reward_mean", "staleness_mean", "staleness_p95", "staleness_max", "epoch", "step")  # of `info`: under another name, or no measure
ACCURACY = "evaluation/accuracy"


def scalars(record: StepRecord) -> dict[str, float]:
    """Every number of the step by its name."""
    return {name: float(value) for name, value in _all(record) if value is not None}


def _all(record: StepRecord) -> Iterator[tuple[str, float | None]]:
    yield "reward/mean", record.reward_mean
    yield "staleness/mean", record.staleness_mean
    yield "staleness/p95", record.staleness_p95
    yield "staleness/max", record.staleness_max
    yield "throughput/tokens_per_s", record.tokens_per_s
    yield "throughput/tokens_per_s_device", record.tokens_per_s_device
    yield "time/seconds", record.t_s
    yield "flow/permits_free", record.permits if record.permits >= 0 else None  # -1: bytes alone bound them
    yield "flow/open_groups", record.open_groups
    yield "flow/prompts_waiting", record.prompts_waiting
    yield "queue/rows", record.queue_rows
    yield "queue/bytes", record.queue_bytes
    yield from ((f"groups/{state.replace(':', '_')}", count) for state, count in record.ledger.items())
    yield from ((f"workers/{role}_{activity}", share) for role, shares in record.shares.items() for activity, share in shares.items())
    for name, depth in record.stages.items():
        yield f"stages/{name}_ready_rows", depth.ready_rows
        yield f"stages/{name}_leased_rows", depth.leased_rows
    yield from ((f"trainer/{name}", value) for name, value in record.info.items() if name not in ELSEWHERE)
