"""A real run writes down what every worker did, and its three accounts of the same time agree."""

from __future__ import annotations

import itertools
from collections import defaultdict

import msgspec
import pytest

from asyncflow.observe.records import TIMELINE, StepRecord, TimelineRecord
from tests.pipeline.harness import Run, assert_completed, configure, run_pipeline

pytestmark = pytest.mark.tools
LAG_S = 2.0  # shares and costs of a step are as of the last heartbeat, and a timeline as of the last record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = run_pipeline(configure(tmp_path_factory.mktemp("timeline") / "run", "run.steps=16", "staleness=1"))
    assert_completed(run)
    return run


@pytest.fixture(scope="module")
def workers(run: Run) -> dict[str, list[TimelineRecord]]:
    found: dict[str, list[TimelineRecord]] = defaultdict(list)
    for line in (run.config.run_dir / TIMELINE).read_bytes().splitlines():
        record = msgspec.json.decode(line, type=TimelineRecord)
        found[record.member].append(record)
    return found


def spent_s(records: list[TimelineRecord], activity: str, from_s: float = 0.0, until_s: float = float("inf")) -> float:
    """Of the main thread, within [from_s, until_s]."""
    spans = [span for record in records for span in record.spans if (span.thread, span.activity) == ("main", activity)]
    return sum(max(0.0, min(span.end_s, until_s) - max(span.start_s, from_s)) for span in spans)


def share_s(steps: list[StepRecord], role: str, activity: str) -> float:
    return sum(step.shares[role][activity] * (step.t_s - before.t_s) for before, step in itertools.pairwise(steps) if role in step.shares)


def test_the_records_of_every_worker_tile_its_life(run: Run, workers: dict[str, list[TimelineRecord]]) -> None:
    roles = {records[0].role for records in workers.values()}
    assert roles == {"source", "rollout", "scorer", "actor_forward", "ref_forward", "trainer", "publisher"}
    for member, records in workers.items():
        assert all(before.until_s == pytest.approx(after.from_s, abs=1e-6) for before, after in itertools.pairwise(records)), member
        left = next(event.t_s for event in run.events if event.kind == "member" and event.reason == "left" and event.member == member)
        assert left - records[-1].until_s < 0.5, f"{member}: its last moments did not travel"


def test_busy_time_on_the_timeline_agrees_with_the_shares_in_the_metrics(run: Run, workers: dict[str, list[TimelineRecord]]) -> None:
    steps = run.metrics
    for member, records in workers.items():
        role = records[0].role
        told = spent_s(records, "busy", steps[0].t_s, steps[-1].t_s)
        assert told == pytest.approx(share_s(steps, role, "busy"), abs=LAG_S), member


def test_what_the_trainer_computed_on_the_timeline_is_what_its_steps_cost(run: Run, workers: dict[str, list[TimelineRecord]]) -> None:
    *_, last = steps = run.metrics
    train = last.costs["train"]
    heard_s = max((step.t_s for step in steps if step.t_s < last.t_s - LAG_S), default=0.0)  # the costs of this commit are surely among them
    computed = [span for record in workers["trainer-0#0"] for span in record.spans if span.what == "compute"]
    before = sum(span.end_s - span.start_s for span in computed if span.end_s < heard_s)
    assert before <= train.seconds <= sum(span.end_s - span.start_s for span in computed)
    assert sum(step.t_s <= heard_s for step in steps) <= train.calls <= len(steps)
    assert train.size > 0


def test_decode_and_prefill_cost_no_more_than_rollout_was_busy(run: Run, workers: dict[str, list[TimelineRecord]]) -> None:
    costs = run.metrics[-1].costs
    measured = costs["rollout.decode"].seconds + costs["rollout.prefill"].seconds
    busy = spent_s(workers["rollout-0#0"], "busy")
    assert 0 < measured <= busy
    assert costs["rollout.decode"].size <= costs["rollout.decode"].calls * run.config.rollout.slots
    assert {"reward", "reward.io", "advantage", "actor_forward", "ref_forward", "publish", "load"} <= costs.keys()


def test_every_response_that_the_queue_took_has_its_length_on_the_timeline(run: Run, workers: dict[str, list[TimelineRecord]]) -> None:
    lengths = [length for record in workers["rollout-0#0"] for length in record.lengths]
    assert len(lengths) == run.config.total_groups * run.config.rollout.samples_per_prompt
    assert sum(lengths) == run.summary.trained_tokens


def test_the_queue_in_front_of_every_stage_is_in_the_metrics(run: Run) -> None:
    last = run.metrics[-1]
    rows = run.config.total_groups * run.config.rollout.samples_per_prompt
    assert {name: depth.done_rows for name, depth in last.stages.items()} == dict.fromkeys(
        ("reward", "actor_forward", "ref_forward", "advantage", "train"), rows
    )
