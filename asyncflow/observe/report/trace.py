"""A trace that Perfetto opens (ui.perfetto.dev; the format is Chrome's JSON trace events): one process a worker, one thread a thread.

Source of the format: the "Trace Event Format" document of the Chromium project; keys ph, ts, dur, pid, tid, name, args, s, times in microseconds.
It is written as it is read, so a run of any length needs no memory for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from asyncflow.observe.records import EVENTS, METRICS, TIMELINE, Span, StepRecord, TimelineRecord
from asyncflow.observe.report.build import readable
from asyncflow.observe.report.events import number
from asyncflow.observe.report.files import Lines
from asyncflow.observe.report.lanes import THREADS
from transfer_queue.messages import Event

RUN_PID = 1  # the process that holds what belongs to no worker: counters and commits
MOMENT_BOUND = 2.0**53
TRACKS_A_RUN = 1_000_000  # process ids of the second run begin here
Value = float | int | str


class TraceEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of `traceEvents`. `ts` and `dur` in microseconds."""

    ph: str  # X complete, C counter, i instant, M metadata
    name: str
    pid: int
    tid: int = -1
    ts: int = -1
    dur: int = -1
    s: str = ""  # scope of an instant: g global, p process, t thread
    cat: str = ""
    args: dict[str, Value] = {}


class Tracks:
    """Process and thread numbers; every new one is announced by a metadata event before its first use."""

    def __init__(self, run_dir: Path, number_of_run: int, prefix: str) -> None:
        self._base = number_of_run * TRACKS_A_RUN
        self._prefix = prefix
        self._pids: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._ends: dict[tuple[int, int], int] = {}  # slices of a thread must not overlap: Perfetto would drop or nest them
        self.run_dir = run_dir

    def process(self, name: str, label: str = "") -> Iterator[TraceEvent]:
        if name not in self._pids:
            pid = self._pids[name] = self._base + RUN_PID + len(self._pids)
            yield TraceEvent("M", "process_name", pid, args={"name": f"{self._prefix}{name}"})
            yield TraceEvent("M", "process_sort_index", pid, args={"sort_index": pid})
            if label:
                yield TraceEvent("M", "process_labels", pid, args={"labels": label})

    def pid(self, name: str) -> int:
        return self._pids[name]

    def thread(self, worker: str, name: str) -> Iterator[TraceEvent]:
        key = (self._pids[worker], name)
        if key not in self._threads:
            self._threads[key] = THREADS.index(name) + 1 if name in THREADS else 1 + len(THREADS) + len(self._threads)
            yield TraceEvent("M", "thread_name", key[0], tid=self._threads[key], args={"name": name})

    def slice(self, worker: str, span: Span) -> Iterator[TraceEvent]:
        """A span, cut where it would reach into the one before (by rounding to microseconds)."""
        yield from self.thread(worker, span.thread)
        pid = self._pids[worker]
        tid = self._threads[pid, span.thread]
        start = max(micro(span.start_s), self._ends.get((pid, tid), 0))
        end = micro(span.end_s)
        if end > start:
            self._ends[pid, tid] = end
            name = span.what if span.activity == "busy" else f"{span.activity}: {span.what}"
            yield TraceEvent("X", name, pid, tid=tid, ts=start, dur=end - start, cat=span.activity)


def micro(seconds: float) -> int:
    """Whole, not negative, and within what a reader's doubles hold exactly: a damaged line may say anything."""
    return round(min(max(0.0, seconds * 1e6), MOMENT_BOUND))


def write_trace(path: Path, run_dirs: list[Path]) -> int:
    """Write the trace of these runs into one file. Returns the number of events. Raises OSError where the file cannot be written."""
    encoder = msgspec.json.Encoder()
    count = 0
    with path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for place, run_dir in enumerate(run_dirs):
            prefix = f"{readable(run_dir.resolve().name)} " if len(run_dirs) > 1 else ""
            for event in trace_events(Tracks(run_dir, place, prefix)):
                file.write((b",\n" if count else b"") + encoder.encode(event))
                count += 1
        file.write(b"\n]}\n")
    return count


def trace_events(tracks: Tracks) -> Iterator[TraceEvent]:
    """Everything of one run. What cannot be read is left out, as on the page."""
    yield from tracks.process("run")
    for record in Lines(tracks.run_dir / TIMELINE, TimelineRecord):
        worker = record.member.partition("#")[0]
        yield from tracks.process(worker, record.role)
        for span in sorted(record.spans, key=lambda span: span.start_s):
            yield from tracks.slice(worker, span)
    for step in Lines(tracks.run_dir / METRICS, StepRecord):
        yield from counters(tracks.pid("run"), step)
    for event in Lines(tracks.run_dir / EVENTS, Event):
        yield from instants(tracks, event)


def counters(pid: int, step: StepRecord) -> Iterator[TraceEvent]:
    """Tracks for permits, the queue in front of every stage, staleness, rows, throughput, reward. What was not measured has no sample."""
    groups = {"open": step.open_groups} | ({"free": step.permits} if step.permits >= 0 else {})
    tracks: dict[str, dict[str, float | None]] = {
        "permits": {name: float(count) for name, count in groups.items()},
        "ready rows": {stage: float(depth.ready_rows) for stage, depth in step.stages.items()},
        "staleness": {"mean": step.staleness_mean, "max": step.staleness_max},
        "queue rows": {"rows": float(step.queue_rows)},
        "tokens/s": {"trained": step.tokens_per_s},
        "reward": {"mean": step.reward_mean},
    }
    for name, values in tracks.items():
        known: dict[str, Value] = {series: value for series, value in values.items() if value is not None}
        if known:
            yield TraceEvent("C", name, pid, ts=micro(step.t_s), args=known)


def instants(tracks: Tracks, event: Event) -> Iterator[TraceEvent]:
    """Commits, publications, members that come and go, evaluations, the end."""
    at, run = micro(event.t_s), tracks.pid("run")
    if event.kind == "commit":
        yield TraceEvent("i", f"commit {event.version}", run, tid=0, ts=at, s="g", cat="commit", args={"version": event.version})
    elif event.kind == "published":
        yield TraceEvent("i", f"published {event.version}", run, tid=0, ts=at, s="p", cat="published", args={"version": event.version})
    elif event.kind == "report" and (accuracy := number(event.data.get("accuracy"))) is not None:
        yield TraceEvent("i", f"accuracy {accuracy:.3f}", run, tid=0, ts=at, s="p", cat="evaluation", args={"accuracy": accuracy})
    elif event.kind == "member":
        worker = event.member.partition("#")[0]
        yield from tracks.process(worker)
        yield TraceEvent("i", f"{event.member} {event.reason}", tracks.pid(worker), tid=0, ts=at, s="p", cat="member")
    elif event.kind in ("run", "stall"):
        yield TraceEvent("i", f"{event.kind}: {event.reason}"[:200], run, tid=0, ts=at, s="g", cat=event.kind)
