"""What a worker records of its own time: all of it once, bounded, and whatever is joined is told as little wrongly as possible."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.observe.trace import decode_trace
from asyncflow.workers.clock import ActivityClock
from asyncflow.workers.costs import CostMeter
from asyncflow.workers.phase import PHASES, THREADS, Activity, PhaseMarks, Thread, read_phases
from asyncflow.workers.recording import Recording
from asyncflow.workers.timeline import JOIN_S, MOST_LENGTHS, MOST_SPANS, Stretch, Taken, Timeline, coarser
from transfer_queue.messages.members import MAX_TRACE_BYTES

ACTIVITIES: tuple[Activity, ...] = ("busy", "wait", "paused")
Part = tuple[Literal["busy", "paused"], Literal["compute", "put"], float, float]  # then the gap before it, and how long it lasts
seconds = st.floats(1e-6, 2.0)
marks = st.tuples(st.just("mark"), st.sampled_from(THREADS), st.sampled_from(ACTIVITIES), st.sampled_from(PHASES), seconds)
takes = st.tuples(st.just("take"), seconds)


class Now:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def play(steps: list[tuple], now: Now, timeline: Timeline) -> tuple[list[Taken], dict[tuple[Thread, Activity], float]]:
    """Everything that was taken, and the seconds of each thread and activity as this test counts them."""
    taken: list[Taken] = []
    spent = {(thread, activity): 0.0 for thread in THREADS for activity in ACTIVITIES}
    doing: dict[Thread, Activity] = dict.fromkeys(THREADS, "wait")
    for step in [*steps, ("take", 0.5)]:
        now.s += step[-1]
        for thread, activity in doing.items():
            spent[thread, activity] += step[-1]
        if step[0] == "take":
            taken.append(timeline.take())
        else:
            timeline.switch(step[1], step[2], step[3])
            doing[step[1]] = step[2]
    return taken, spent


@settings(deadline=None)
@given(st.lists(marks | takes, max_size=120))
def test_spans_tile_the_time_and_sum_to_the_clock_whatever_a_worker_does(steps: list[tuple]) -> None:
    now = Now()
    timeline = Timeline(now)
    taken, spent = play(steps, now, timeline)
    assert taken[0].from_s == 0.0
    assert all(before.until_s == after.from_s for before, after in itertools.pairwise(taken))
    assert taken[-1].until_s == pytest.approx(now.s - 1000.0)
    assert timeline.totals() == pytest.approx({activity: spent["main", activity] for activity in ACTIVITIES})
    for thread in THREADS:
        for part in taken:
            edges = [edge for stretch in part.stretches[thread] for edge in (stretch.start_s, stretch.end_s)]
            assert edges == sorted(edges)
            assert all(part.from_s - 1e-9 <= edge <= part.until_s + 1e-9 for edge in edges)
        for activity in ("busy", "paused"):
            told = sum(stretch.seconds for part in taken for stretch in part.stretches[thread] if stretch.activity == activity)
            joined = JOIN_S * len(steps)  # a wait shorter than this between two equal spans counts to them
            assert spent[thread, activity] - 1e-6 <= told <= spent[thread, activity] + joined


def test_what_is_open_at_a_heartbeat_is_cut_there_and_goes_on_in_the_next() -> None:
    now = Now()
    timeline = Timeline(now)
    timeline.switch("main", "busy", "compute")
    now.s += 1.0
    first = timeline.take()
    now.s += 0.5
    second = timeline.take()
    assert first.stretches["main"] == [Stretch("busy", "compute", 0.0, 1.0)]
    assert second.stretches["main"] == [Stretch("busy", "compute", 1.0, 1.5)]


def test_equal_spans_with_hardly_a_gap_are_one_and_others_stay_apart() -> None:
    now = Now()
    timeline = Timeline(now)
    for what, gap_s in (("compute", 0.0019), ("compute", 0.0021), ("compute", 0.0), ("put", 1.0)):
        timeline.switch("main", "busy", what)
        now.s += 0.01
        timeline.switch("main", "wait", "idle")
        now.s += gap_s
    found = [(stretch.what, round(stretch.start_s, 4), round(stretch.end_s, 4)) for stretch in timeline.take().stretches["main"]]
    assert found == [("compute", 0.0, 0.0219), ("compute", 0.024, 0.034), ("put", 0.034, 0.044)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["busy", "paused"]), st.sampled_from(["compute", "put"]), seconds, seconds), min_size=1, max_size=80),
    st.integers(1, 40),
)
def test_joining_never_grows_and_never_loses_busy_time(parts: list[Part], most: int) -> None:
    at_s = 0.0
    fine: list[Stretch] = []
    for activity, what, gap_s, length_s in parts:
        fine.append(Stretch(activity, what, at_s + gap_s, at_s + gap_s + length_s))
        at_s += gap_s + length_s
    coarse = coarser(fine, most)
    assert len(coarse) == min(most, len(fine))
    assert (coarse[0].start_s, coarse[-1].end_s) == (fine[0].start_s, fine[-1].end_s)
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(coarse))
    for stretch in fine:
        if stretch.activity == "busy":
            assert any(wide.activity == "busy" and wide.start_s <= stretch.start_s and stretch.end_s <= wide.end_s for wide in coarse)


def test_the_shortest_gaps_are_joined_first() -> None:
    fine = [Stretch("busy", "put", start, start + 1.0) for start in (0.0, 1.5, 2.6, 9.0)]
    assert coarser(fine, 2) == [Stretch("busy", "put", 0.0, 3.6), Stretch("busy", "put", 9.0, 10.0)]


def test_a_worker_that_nobody_asks_keeps_a_bounded_record_and_a_heartbeat_stays_small() -> None:
    now = Now()
    timeline, costs = Timeline(now), CostMeter()
    for turn in range(20_000):
        for thread in THREADS:
            timeline.switch(thread, "paused", PHASES[turn % len(PHASES)])
        now.s += 0.11
        timeline.finished([1 << 20])
    for stage in range(20):
        costs.add(f"a stage with rather a long name {stage:<30}", 1e9, 1e9)
    assert all(len(track.stretches) < 2 * MOST_SPANS for track in timeline._tracks.values())
    data = Recording(timeline, costs).take()
    trace = decode_trace(data)
    assert len(data) < MAX_TRACE_BYTES / 2
    assert [len(spans) for spans in trace.threads.values()] == [MOST_SPANS] * 3
    assert MOST_LENGTHS / 2 <= len(trace.lengths) <= MOST_LENGTHS


def test_too_many_lengths_are_thinned_evenly() -> None:
    timeline = Timeline()
    timeline.finished(list(range(10_000)))
    lengths = timeline.take().lengths
    steps = {after - before for before, after in itertools.pairwise(lengths)}
    assert steps == {8}
    timeline.finished([7, 8])
    assert timeline.take().lengths == [7, 8]


def test_a_recording_is_taken_no_more_often_than_asked() -> None:
    now = Now()
    recording = Recording(Timeline(now), CostMeter())
    assert recording.take(0.5) == b""
    now.s += 0.6
    assert decode_trace(recording.take(0.5)).end == 600_000
    assert recording.take(0.5) == b""
    assert decode_trace(recording.take()).start == 600_000


def test_the_clock_marks_the_phase_for_whoever_looks_from_outside_and_restores_it(tmp_path: Path) -> None:
    clock = ActivityClock(PhaseMarks(tmp_path, "rollout-0"), Timeline())
    with clock.during("busy", "read"):
        with clock.during("busy", "put"):
            assert read_phases(tmp_path, "rollout-0")["main"] == "put"
        assert read_phases(tmp_path, "rollout-0") == {"main": "read", "writer": "idle", "receiver": "idle"}
    clock.set("busy", "receive", "receiver")
    assert read_phases(tmp_path, "rollout-0") == {"main": "idle", "writer": "idle", "receiver": "receive"}


def test_costs_are_the_sums_a_straight_line_is_fitted_from() -> None:
    costs = CostMeter()
    for size in (1.0, 2.0, 4.0):
        costs.add("train", size, 3.0 + 0.5 * size)
    sums = costs.sums()["train"]
    slope = (sums.calls * sums.size_seconds - sums.size * sums.seconds) / (sums.calls * sums.size_squared - sums.size**2)
    assert slope == pytest.approx(0.5)
    assert (sums.seconds - slope * sums.size) / sums.calls == pytest.approx(3.0)


def test_a_call_that_raises_has_no_cost() -> None:
    costs = CostMeter()
    with pytest.raises(ValueError, match="no"), costs.call("load"):
        raise ValueError("no")
    assert costs.sums() == {}
