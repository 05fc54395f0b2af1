"""How a run went, in one sentence that a person reads first. One without a summary is in progress or was killed; it says what is known."""

from __future__ import annotations

import time
from pathlib import Path

from asyncflow.observe.records import COMPLETED, EVENTS, INTERRUPTED, METRICS, STALL, TIMELINE, Summary
from asyncflow.observe.report.data import Verdict
from asyncflow.observe.report.events import EventFacts
from asyncflow.observe.report.files import Whole, refuse_other_kind
from asyncflow.observe.stall import STALL_TEXT
from transfer_queue.messages import StallReport
from transfer_queue.waits import render

QUIET_S = 30.0  # a run in progress writes more often than this


def judge(run_dir: Path, summary: Summary | None, events: EventFacts, planned: int | None) -> Verdict:
    """`planned`: versions that the run was to make."""
    version = int(events.steps["version"][-1]) if events.steps.rows else 0
    reached = f"{version} of {planned} versions" if planned is not None else f"{version} versions"
    traceback = (summary.traceback if summary is not None else None) or events.traceback
    stall = stall_text(run_dir) or events.stall
    if summary is not None and summary.exit_reason == COMPLETED:
        return Verdict("good", "Completed", f"{reached} in {_took(summary)}.", traceback, stall)
    if summary is not None and summary.exit_reason == INTERRUPTED:
        return Verdict("plain", "Interrupted", f"Stopped by hand after {reached}, {_took(summary)}.", traceback, stall)
    if summary is not None:
        return Verdict("bad", "Failed", f"{summary.exit_reason.rstrip('.')}. After {reached}.", traceback, stall)
    return _without_summary(run_dir, events, reached, traceback, stall)


def _took(summary: Summary) -> str:
    """The time that the page counts in, and what the launcher needed before and after it."""
    return f"{duration(summary.seconds)} (with preparation and end {duration(summary.seconds_total)})"


def _without_summary(run_dir: Path, events: EventFacts, reached: str, traceback: str, stall: str) -> Verdict:
    if events.traceback or events.stall:
        return Verdict("bad", "Failed", f"{events.stop_reason or 'A worker raised'}. After {reached}; there is no summary yet.", traceback, stall)
    if events.stop_reason == COMPLETED:
        sentence = f"{reached} trained, but the launcher was killed before it wrote summary.json."
        return Verdict("plain", "Ended without a summary", sentence, traceback, stall)
    quiet_s = quiet(run_dir)
    if quiet_s is None:
        return Verdict("plain", "Not started", "Nothing is recorded yet.", traceback, stall)
    if quiet_s <= QUIET_S:
        return Verdict("live", "In progress", f"{reached} so far, {duration(events.until_s)} after the start.", traceback, stall)
    since = f"nothing was recorded for the last {duration(quiet_s)}"
    return Verdict("bad", "Ended without a summary", f"{reached}; {since}: killed, or its host is gone.", traceback, stall)


def quiet(run_dir: Path) -> float | None:
    """Seconds since any of the logs grew; None where there is no log."""
    ages = []
    for name in (EVENTS, METRICS, TIMELINE):
        try:
            found = (run_dir / name).stat()
        except OSError:
            continue
        if found.st_size:
            ages.append(time.time() - found.st_mtime)
    return max(0.0, min(ages)) if ages else None


def stall_text(run_dir: Path) -> str:
    """The stall report as it was printed, else as it was saved; "" where the run never stalled."""
    try:
        refuse_other_kind(run_dir / STALL_TEXT)
        text = (run_dir / STALL_TEXT).read_text(errors="replace").strip()
    except OSError:
        text = ""
    if text:
        return text
    saved: Whole[StallReport] = Whole(run_dir / STALL, StallReport)
    return render(saved.value) if saved.value is not None else saved.note


def duration(seconds: float) -> str:
    """12.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
