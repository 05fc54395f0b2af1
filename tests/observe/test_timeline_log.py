"""From what workers send to timeline.jsonl: on the controller's clock, each moment once, and nothing that is sent ends the controller."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.observe.recorder import BAD_TRACE, Recorder
from asyncflow.observe.records import EVENTS, TIMELINE, CostSums, Span, TimelineRecord
from asyncflow.observe.replay import read_events
from asyncflow.observe.timeline import TimelineLog
from asyncflow.observe.trace import Trace, TraceSpan, decode_trace, encode_trace


def records(run_dir: Path) -> list[TimelineRecord]:
    return [msgspec.json.decode(line, type=TimelineRecord) for line in (run_dir / TIMELINE).read_bytes().splitlines()]


def trace(start_s: float, end_s: float, *spans: tuple[float, float], costs: dict[str, CostSums] | None = None) -> bytes:
    """`spans` of the main thread, seconds of the worker's clock."""
    found = [TraceSpan("busy", "compute", round(start * 1e6), round(end * 1e6)) for start, end in spans]
    return encode_trace(Trace(round(start_s * 1e6), round(end_s * 1e6), {"main": found}, [3], costs or {}))


def test_a_record_lies_on_the_controllers_clock_where_it_arrived(tmp_path: Path) -> None:
    log = TimelineLog(tmp_path)
    assert log.add("rollout-0#0", "rollout", trace(0.0, 1.0, (0.2, 0.9)), arrived_s=101.0) is None
    assert log.add("rollout-0#0", "rollout", trace(1.0, 2.0, (1.0, 2.0)), arrived_s=102.0) is None
    log.close()
    assert records(tmp_path) == [
        TimelineRecord("rollout-0#0", "rollout", 100.0, 101.0, [Span("main", "busy", "compute", 100.2, 100.9)], [3]),
        TimelineRecord("rollout-0#0", "rollout", 101.0, 102.0, [Span("main", "busy", "compute", 101.0, 102.0)], [3]),
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0.0, 0.5)), min_size=1, max_size=20))
def test_heartbeats_that_travel_unevenly_leave_records_that_touch_and_never_overlap(tmp_path_factory: pytest.TempPathFactory, beats: list) -> None:
    """(time between two heartbeats, time this one was under way). Only what the fastest so far corrects is cut off."""
    run_dir = tmp_path_factory.mktemp("run")
    log = TimelineLog(run_dir)
    at_s = 0.0
    for between_s, travel_s in beats:
        data = trace(at_s, at_s + between_s, (at_s, at_s + between_s))
        assert log.add("w#0", "scorer", data, arrived_s=50.0 + at_s + between_s + travel_s) is None
        at_s += between_s
    log.close()
    found = records(run_dir)
    assert all(before.until_s <= after.from_s + 1e-6 for before, after in itertools.pairwise(found))
    assert all(record.from_s <= span.start_s <= span.end_s <= record.until_s for record in found for span in record.spans)
    told = sum(span.end_s - span.start_s for record in found for span in record.spans)
    assert at_s - beats[0][1] - 1e-4 <= told <= at_s + 1e-4


def test_the_same_time_told_twice_is_refused_and_not_written(tmp_path: Path) -> None:
    log = TimelineLog(tmp_path)
    data = trace(0.0, 1.0, (0.2, 0.9), costs={"train": CostSums(1.0, 5.0, 25.0, 2.0, 10.0)})
    assert log.add("w#0", "scorer", data, 10.0) is None
    assert "told twice" in (log.add("w#0", "scorer", data, 10.5) or "")
    assert log.refused == {"w#0": 1}
    assert log.costs["train"].calls == 1.0
    log.close()
    assert len(records(tmp_path)) == 1


def test_costs_are_summed_over_workers_and_over_the_lives_of_a_worker(tmp_path: Path) -> None:
    log = TimelineLog(tmp_path)
    one, two = CostSums(1.0, 5.0, 25.0, 2.0, 10.0), CostSums(2.0, 10.0, 50.0, 4.0, 20.0)
    log.add("a#0", "scorer", trace(0.0, 1.0, costs={"reward": one}), 1.0)
    log.add("a#0", "scorer", trace(1.0, 2.0, costs={"reward": two}), 2.0)  # cumulative: one call more
    log.forget(["b#0"])
    log.add("a#1", "scorer", trace(0.0, 1.0, costs={"reward": one}), 3.0)  # restarted: it counts from 0 again
    log.add("b#0", "scorer", trace(0.0, 1.0, costs={"reward": two, "advantage": one}), 3.0)
    log.close()
    assert log.costs == {"reward": CostSums(5.0, 25.0, 125.0, 10.0, 50.0), "advantage": one}


BAD = [
    b"",
    b"\xc1",
    encode_trace(Trace(5, 4, {})),  # ends before it starts
    encode_trace(Trace(0, 10, {"main": [TraceSpan("busy", "put", 5, 11)]})),  # after its end
    encode_trace(Trace(3, 10, {"main": [TraceSpan("busy", "put", 2, 4)]})),  # before its start
    encode_trace(Trace(0, 10, {"main": [TraceSpan("busy", "put", 0, 4), TraceSpan("busy", "put", 3, 5)]})),  # an overlap
    encode_trace(Trace(-1, 10, {})),
    encode_trace(Trace(0, 10, {"third": []})),  # type: ignore[dict-item]
    encode_trace(Trace(0, 10, {"main": [TraceSpan("asleep", "put", 0, 4)]})),  # type: ignore[arg-type]
    encode_trace(Trace(0, 10, {}, [], {"train": CostSums(seconds=float("nan"))})),
    encode_trace(Trace(0, 10, {}, [], {"train": CostSums(seconds=float("inf"))})),
    msgspec.msgpack.encode({"start": 0, "end": 1, "threads": {}, "more": 1}),
    b"\x91" * 5000,  # nested too deep to follow
]


@pytest.mark.parametrize("data", BAD)
def test_what_is_no_trace_is_counted_told_once_and_leaves_no_line(tmp_path: Path, data: bytes) -> None:
    with Recorder(tmp_path, devices=1) as recorder:
        for t_s in (1.0, 2.0):
            recorder.on_trace("rollout-0#0", "rollout", data, t_s)
        recorder.on_trace("rollout-0#0", "rollout", trace(0.0, 1.0), 3.0)
        assert recorder._timeline.refused == {"rollout-0#0": 2}
    told = list(read_events(tmp_path / EVENTS))
    assert [(event.reason, event.member) for event in told] == [(BAD_TRACE, "rollout-0#0")]
    assert len(records(tmp_path)) == 1


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_taken_or_refused(noise: bytes, at: int) -> None:
    """Noise alone, and noise in the middle of a good one: nothing else than a refusal comes out."""
    good = trace(0.0, 1.0, (0.2, 0.9), costs={"train": CostSums(1.0, 5.0, 25.0, 2.0, 10.0)})
    for data in (noise, good[:at] + noise + good[at + len(noise) :]):
        try:
            decoded = decode_trace(data)
        except (msgspec.DecodeError, ValueError):
            continue
        assert 0 <= decoded.start <= decoded.end


def test_sums_stay_finite_and_their_keys_few_whatever_workers_send(tmp_path: Path) -> None:
    log = TimelineLog(tmp_path)
    huge = trace(0.0, 1.0, costs={"train": CostSums(seconds=1e308)})
    assert log.add("a#0", "trainer", huge, 1.0) is not None
    assert log.add("b#0", "trainer", trace(0.0, 1.0, costs={f"key {place}": CostSums(1.0) for place in range(1000)}), 1.0) is not None
    log.close()
    assert log.costs == {}
