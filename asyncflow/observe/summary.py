"""`summary.json`: what a run came to, read off its event log, so that it exists and is true even when the controller was killed."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

import msgspec

from asyncflow.observe.outcomes import Outcomes
from asyncflow.observe.records import EVENTS, METRICS, SUMMARY, StepRecord, Summary
from asyncflow.observe.replay import Inconsistent, Replay, whole_events
from transfer_queue.messages import Event

DAMAGED = (OSError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError, Inconsistent)  # msgspec's are ValueErrors
EXPORTS = "weights"  # folder of a run directory with one folder an exported version


class Totals:
    """Sums over the event log."""

    def __init__(self) -> None:
        self.replay = Replay()
        self.outcomes = Outcomes()
        self.seconds = 0.0
        self.versions = 0
        self.tokens = self.rows = self.mixed_rows = 0.0
        self.staleness_max: float | None = None
        self.digest: str | None = None
        self.evaluations: dict[int, float] = {}
        self.traceback: str | None = None

    def apply(self, event: Event) -> None:
        self.replay.apply(event)
        self.outcomes.apply(event)
        self.seconds = event.t_s
        if event.kind == "commit":
            self._commit(event)
        elif event.kind == "published":
            self.digest = str(event.data.get("digest", "")) or self.digest
        elif event.kind == "run" and "traceback" in event.data:
            self.traceback = self.traceback or str(event.data["traceback"])
        elif event.kind == "report" and "accuracy" in event.data:
            self.evaluations[int(event.data["version"])] = float(event.data["accuracy"])

    def _commit(self, event: Event) -> None:
        self.versions = max(self.versions, event.version)
        self.tokens += float(event.data.get("tokens", 0))
        self.rows += float(event.data.get("rows", 0))
        self.mixed_rows += float(event.data.get("mixed_version_rows", 0))
        staleness = event.data.get("staleness_max")
        if staleness is not None:
            self.staleness_max = float(staleness) if self.staleness_max is None else max(self.staleness_max, float(staleness))

    @property
    def accuracy_before(self) -> float | None:
        return self.evaluations.get(0)

    @property
    def accuracy_after(self) -> float | None:
        """Of the last version; None when that one was not evaluated."""
        return self.evaluations.get(self.versions)


def summarise(run_dir: Path, exit_reason: str, seconds_total: float, restarts: dict[str, int]) -> Summary:
    """Read the logs of a run. A run without any log yields a summary without measurements; of a log that is damaged (its disk was full), what comes
    before the damage counts, and the reason says so: such a run is not completed."""
    totals = Totals()
    steps: list[StepRecord] = []
    try:
        for event in whole_events(run_dir / EVENTS) if (run_dir / EVENTS).exists() else ():
            totals.apply(event)
    except DAMAGED as error:
        exit_reason += f"; {EVENTS} is damaged behind line {totals.replay.lines} ({error}), and what comes there is not counted"
    try:
        steps = read_metrics(run_dir)
    except DAMAGED as error:
        exit_reason += f"; {METRICS} cannot be read ({error})"
    exported = last_export(run_dir)
    return Summary(
        exit_reason=exit_reason,
        accuracy_before=totals.accuracy_before,
        accuracy_after=totals.accuracy_after,
        seconds=round(totals.seconds, 3),
        seconds_total=round(seconds_total, 3),
        versions=totals.versions,
        staleness_max=totals.staleness_max,
        ledger=totals.replay.ledger(),
        weights_digest=totals.digest,
        trained_groups=len(totals.replay.trained),
        trained_tokens=int(totals.tokens),
        mixed_version_share=totals.mixed_rows / totals.rows if totals.rows else None,
        overlap=overlap(steps),
        trained=totals.outcomes.of("trained"),
        dropped=totals.outcomes.of("dropped"),
        evaluations=totals.evaluations,
        restarts=restarts,
        events=totals.replay.lines,
        traceback=totals.traceback,
        exported=str(exported) if exported is not None else None,
        exported_version=exported_version(exported) if exported is not None else None,
        run_dir=str(run_dir),
    )


def overlap(steps: list[StepRecord]) -> float | None:
    """Two parts that are busy for shares a and b of the same time are busy together for at least a + b − 1 of it. Over the whole run, for the
    shares of single steps lag by up to a heartbeat. None without two steps or without one of the roles."""
    spans = [(step.t_s - before.t_s, step.shares) for before, step in itertools.pairwise(steps) if {"rollout", "trainer"} <= step.shares.keys()]
    seconds = sum(span for span, _ in spans)
    if seconds <= 0:
        return None
    busy = sum(span * (shares["rollout"]["busy"] + shares["trainer"]["busy"]) for span, shares in spans)
    return round(max(0.0, busy / seconds - 1), 4)


def write_summary(run_dir: Path, summary: Summary) -> Path:
    """Atomically: a reader sees all of it or the old one."""
    path = run_dir / SUMMARY
    draft = path.with_suffix(".tmp")
    try:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    return path


def last_export(run_dir: Path) -> Path | None:
    """The newest complete directory of exported Hugging Face files."""
    exports = [path.parent for path in (run_dir / EXPORTS).glob("*/weights_id.json")]
    return max(exports, key=lambda path: path.stat().st_mtime_ns, default=None)


def exported_version(export: Path) -> int:
    """Which version an exported directory holds. (Its identity is `checkpoint_engine.export.read_weights_id`'s to read, which loads torch.)"""
    return int(msgspec.json.decode((export / "weights_id.json").read_bytes())["version"])


def read_metrics(run_dir: Path) -> list[StepRecord]:
    """Whole lines of metrics.jsonl."""
    path = run_dir / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=StepRecord) for line in lines if line.endswith(b"\n")]
