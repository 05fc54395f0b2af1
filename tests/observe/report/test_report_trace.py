"""The trace against the rules of Chrome's JSON trace-event format, which Perfetto reads."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from asyncflow.observe.records import EVENTS, TIMELINE, Span, TimelineRecord
from asyncflow.observe.replay import read_events
from asyncflow.observe.report.trace import write_trace
from tests.observe.report.run_files import timeline, whole_run, write_lines

REQUIRED = {"X": {"ts", "dur", "tid"}, "C": {"ts", "args"}, "i": {"ts", "s"}, "M": {"args"}}
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index", "process_labels": "labels"}


def written(tmp_path: Path, *run_dirs: Path) -> list[dict[str, Any]]:
    path = tmp_path / "trace.json"
    count = write_trace(path, list(run_dirs))
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert len(document["traceEvents"]) == count
    return document["traceEvents"]


def check_format(events: list[dict[str, Any]]) -> None:
    """Raises AssertionError for the first event that breaks a rule."""
    named: set[int] = set()
    threads: set[tuple[int, int]] = set()
    slices: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        phase = event["ph"]
        assert phase in REQUIRED, event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert isinstance(event["pid"], int), event
        assert REQUIRED[phase] <= event.keys(), event
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("ts", "dur", "tid") if key in event), event
        if phase == "M":
            assert METADATA[event["name"]] in event["args"], event
            named |= {event["pid"]} if event["name"] == "process_name" else set()
            threads |= {(event["pid"], event["tid"])} if event["name"] == "thread_name" else set()
            continue
        assert event["pid"] in named, f"a process without a name: {event}"
        if phase == "C":
            assert event["args"], event
            assert all(isinstance(value, int | float) for value in event["args"].values()), event
        if phase == "i":
            assert event["s"] in ("g", "p", "t"), event
        if phase == "X":
            track = (event["pid"], event["tid"])
            assert track in threads, f"a thread without a name: {event}"
            assert event["ts"] >= slices[track], f"it overlaps the slice before it: {event}"
            assert event["dur"] > 0, event
            slices[track] = event["ts"] + event["dur"]


def test_a_trace_keeps_the_rules_of_the_format(tmp_path: Path) -> None:
    events = written(tmp_path, whole_run(tmp_path))
    check_format(events)
    assert {event["ph"] for event in events} == {"X", "C", "i", "M"}


def test_a_trace_has_a_process_a_worker_a_thread_a_thread_and_a_counter_a_number(tmp_path: Path) -> None:
    events = written(tmp_path, whole_run(tmp_path))
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"run", "rollout-0", "rollout-1", "trainer-0", "publisher-0"} <= set(processes.values())
    threads = {(processes[event["pid"]], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert {("rollout-0", "main"), ("rollout-0", "receiver"), ("trainer-0", "main")} <= threads
    assert {"permits", "ready rows", "staleness", "queue rows"} <= {event["name"] for event in events if event["ph"] == "C"}


def test_every_commit_is_an_instant_at_its_time(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    marks = {event["name"]: event["ts"] for event in written(tmp_path, run_dir) if event.get("cat") == "commit"}
    assert marks == {f"commit {event.version}": round(event.t_s * 1e6) for event in read_events(run_dir / EVENTS) if event.kind == "commit"}
    assert len(marks) == 6


def test_the_slices_add_up_to_what_was_recorded(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    spans = [span for record in timeline(0) for span in record.spans]
    slices = [event for event in written(tmp_path, run_dir) if event["ph"] == "X"]
    assert sum(event["dur"] for event in slices) == pytest.approx(1e6 * sum(span.end_s - span.start_s for span in spans), rel=1e-4)


def test_spans_that_overlap_by_rounding_are_cut_and_not_nested(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    spans = [Span("main", "busy", "compute", 0.0, 0.5000004), Span("main", "busy", "put", 0.4999996, 0.6), Span("main", "busy", "put", 0.6, 0.6)]
    write_lines(run_dir / TIMELINE, [TimelineRecord("trainer-0#0", "trainer", 0.0, 1.0, spans)])
    events = written(tmp_path, run_dir)
    check_format(events)
    assert [event["name"] for event in events if event["ph"] == "X"] == ["compute", "put"]


def test_two_runs_share_a_trace_without_sharing_a_process(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    runs = [whole_run(tmp_path / name) for name in ("a", "b")]
    events = written(tmp_path, *runs)
    check_format(events)
    processes = [event["pid"] for event in events if event["name"] == "process_name"]
    assert len(processes) == len(set(processes)) >= 10


def test_the_check_of_the_format_sees_what_it_looks_for(tmp_path: Path) -> None:
    events = written(tmp_path, whole_run(tmp_path))
    slices = [event for event in events if event["ph"] == "X"]
    for damage in ({"ts": slices[0]["ts"] - 10**9}, {"dur": 10**9}, {"pid": 77}, {"ph": "Q"}):
        broken = [event | damage if event is slices[3] else event for event in events]
        with pytest.raises(AssertionError):
            check_format(broken)
