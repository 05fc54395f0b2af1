"""The timeline on the page: what was recorded is neither lost nor made up, and it always fits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncflow.observe.records import Span, TimelineRecord
from asyncflow.observe.report.data import Lane, Timeline
from asyncflow.observe.report.lanes import Lanes, reduced
from tests.observe.report.run_files import timeline

EDGES = st.lists(st.integers(0, 5000), min_size=2, max_size=60, unique=True).map(sorted)


def drawn(records: list[TimelineRecord], bound: int = 10_000) -> Timeline:
    lanes = Lanes()
    for record in records:
        lanes.apply(record)
    found = lanes.timeline(bound)
    assert found is not None
    return found


def lane(found: Timeline, worker: str, thread: str = "main") -> Lane:
    return next(candidate for candidate in found.lanes if (candidate.worker, candidate.thread) == (worker, thread))


@given(EDGES, st.sampled_from([1, 2, 8, 64, 1024]), st.integers(1, 3))
def test_putting_short_spans_together_keeps_their_time(edges: list[int], cell: int, kinds: int) -> None:
    edges = edges[: len(edges) // 2 * 2]
    start, end = np.array(edges[::2]), np.array(edges[1::2])
    kind = np.arange(len(start), dtype=np.int32) % kinds
    items = reduced(start, end, kind, cell)
    assert (np.diff(items.start) >= 0).all()
    assert ((items.share >= 1) & (items.share <= 100)).all()
    for which in range(kinds):
        recorded = (end - start)[kind == which].sum()
        kept = (items.length * items.share / 100)[items.kind == which].sum()
        cells = (items.length[items.kind == which] == cell).sum()
        assert abs(kept - recorded) <= cells * cell / 100 + 1e-6, "a share is rounded to a percent, and at least one"


@given(EDGES)
def test_spans_of_at_least_a_cell_stay_exactly_as_they_were(edges: list[int]) -> None:
    edges = edges[: len(edges) // 2 * 2]
    start, end = np.array(edges[::2]), np.array(edges[1::2])
    items = reduced(start, end, np.zeros(len(start), dtype=np.int32), 16)
    long = end - start >= 16
    kept = set(zip(items.start.tolist(), items.length.tolist(), strict=True))
    assert set(zip(start[long].tolist(), (end - start)[long].tolist(), strict=True)) <= kept


@pytest.mark.parametrize("bound", [30, 200, 2000])
def test_a_timeline_fits_its_bound_and_says_its_resolution(bound: int) -> None:
    found = drawn(timeline(seed=1, records=6, spans=30), bound)
    assert sum(len(candidate.start) for candidate in found.lanes) <= bound
    assert found.spans > 700
    assert (found.cell_s > 0) == (bound < 700)


def test_an_idle_gap_is_still_there_after_the_reduction() -> None:
    busy = [Span("main", "busy", "compute", at / 100, at / 100 + 0.009) for at in itertools.chain(range(100), range(300, 400))]
    records = [TimelineRecord("trainer-0#0", "trainer", 0.0, 4.0, busy)]
    exact, coarse = drawn(records), drawn(records, bound=40)
    assert coarse.cell_s > exact.cell_s == 0.0
    for found in (exact, coarse):
        trainer = lane(found, "trainer-0")
        begins = np.cumsum(trainer.start) * found.tick_s
        assert not ((begins > 1.0) & (begins < 3.0 - found.cell_s)).any(), "nothing is drawn in the two idle seconds"
        assert trainer.busy_share == pytest.approx(0.45, abs=0.02)


def test_time_without_a_record_is_not_time_spent_waiting() -> None:
    records = [
        TimelineRecord("rollout-0#0", "rollout", 0.5, 1.5, []),
        TimelineRecord("rollout-0#0", "rollout", 1.5, 2.0, []),
        TimelineRecord("rollout-0#1", "rollout", 5.0, 6.0, [Span("main", "busy", "compute", 5.0, 6.0)]),
    ]
    rollout = lane(drawn(records), "rollout-0")
    assert rollout.alive == [500, 2000, 5000, 6000]
    assert rollout.busy_share == pytest.approx(0.4)


def test_lanes_come_in_the_order_of_the_stream_and_workers_by_number() -> None:
    names = {"trainer-0": "trainer", "rollout-10": "rollout", "rollout-9": "rollout", "critic-0": "critic", "source-0": "source"}
    found = drawn([TimelineRecord(f"{name}#0", role, 0.0, 1.0, []) for name, role in names.items()])
    assert [candidate.worker for candidate in found.lanes] == ["source-0", "rollout-9", "rollout-10", "trainer-0", "critic-0"]


def test_nothing_recorded_is_none_and_not_an_empty_timeline() -> None:
    assert Lanes().timeline() is None
