"""From a run's directory to a RunReport. It holds for any state of the files: missing, empty, cut off in the middle, still growing."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
import numpy as np

from asyncflow.config.errors import ConfigError
from asyncflow.observe.environment import ENVIRONMENT, Environment
from asyncflow.observe.records import EVENTS, METRICS, SUMMARY, TIMELINE, StepRecord, Summary, TimelineRecord
from asyncflow.observe.report import charts as draw
from asyncflow.observe.report.advice import advice
from asyncflow.observe.report.columns import Columns, step_row
from asyncflow.observe.report.data import Ending, RoleShare, RunReport
from asyncflow.observe.report.events import EventFacts
from asyncflow.observe.report.files import Lines, Whole
from asyncflow.observe.report.headline import figures
from asyncflow.observe.report.lanes import Lanes
from asyncflow.observe.report.lengths import lengths
from asyncflow.observe.report.settings import CONFIG, facts, read_settings, steps_planned
from asyncflow.observe.report.sync import weight_sync
from asyncflow.observe.report.verdict import judge
from transfer_queue.messages import Event

COMMITS_BOUND = 20_000  # ticks on the timeline


class Read(msgspec.Struct):
    """A run's logs, walked once."""

    steps: Columns
    events: EventFacts
    lanes: Lanes
    summary: Summary | None
    notes: list[str]


def refuse_other(run_dir: Path) -> None:
    """Raises ConfigError for a path that holds no run."""
    if not run_dir.is_dir():
        raise ConfigError(f"RUN = {run_dir}: there is no such directory, so nothing to report. Name the directory of a run (train's --run-dir)")
    if not any((run_dir / name).exists() for name in (ENVIRONMENT, CONFIG, EVENTS, METRICS, SUMMARY)):
        raise ConfigError(f"RUN = {run_dir}: it holds none of {ENVIRONMENT}, {CONFIG}, {EVENTS}, {SUMMARY}, so it is no run. Name a run's directory")


def read_run(run_dir: Path) -> Read:
    """Walk the logs."""
    read = Read(Columns(), EventFacts(), Lanes(), None, [])
    events, steps, timeline = Lines(run_dir / EVENTS, Event), Lines(run_dir / METRICS, StepRecord), Lines(run_dir / TIMELINE, TimelineRecord)
    for event in events:
        read.events.apply(event)
    for step in steps:
        read.steps.row(step_row(step))
    for record in timeline:
        read.lanes.apply(record)
    summary: Whole[Summary] = Whole(run_dir / SUMMARY, Summary)
    read.summary = summary.value
    read.notes = [note for note in (events.note, steps.note, timeline.note, summary.note) if note]
    return read


def report_of(run_dir: Path) -> RunReport:
    """Everything that the page shows of one run. Raises ConfigError where there is no run."""
    refuse_other(run_dir)
    read = read_run(run_dir)
    settings, tree, note = read_settings(run_dir)
    environment: Whole[Environment] = Whole(run_dir / ENVIRONMENT, Environment)
    collected = all_charts(read)
    return RunReport(
        name=readable(run_dir.resolve().name),
        verdict=judge(run_dir, read.summary, read.events, steps_planned(tree)),
        facts=facts(tree),
        figures=figures(read.steps, read.events, read.summary, overlap(read.steps)),
        grids=collected.grids,
        charts=collected.charts,
        timeline=read.lanes.timeline(),
        commits_s=commits(read.events),
        marks=read.events.marks,
        shares=role_shares(read.steps),
        endings=endings(read.events),
        advice=advice(run_dir),
        settings=settings,
        environment=environment.value.rows() if environment.value is not None else [],
        notes=[*read.notes, *filter(None, (note, environment.note))],
    )


def readable(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8 become escapes, which a page can hold."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def all_charts(read: Read) -> draw.Charts:
    charts = draw.Charts("not recorded" if read.steps.rows else "no version was committed")
    draw.learning(charts, read.steps, read.events.evaluations)
    draw.staleness(charts, read.steps, read.events.steps)
    draw.queue(charts, read.steps)
    draw.speed(charts, read.steps)
    weight_sync(charts, read.steps, read.events, read.lanes.loads)
    lengths(charts, read.events, read.lanes.lengths)
    return charts


def commits(events: EventFacts) -> list[float]:
    """When versions were committed, seconds; every nth where there are too many to tell apart."""
    times = events.steps["t_s"]
    return [round(float(time_s), 3) for time_s in times[:: -(-len(times) // COMMITS_BOUND) or 1]]


def role_shares(steps: Columns) -> list[RoleShare]:
    """Over the whole run: the shares of the steps, each weighted by its time."""
    times = steps["t_s"]
    weights = np.diff(times, prepend=0.0) if len(times) else times
    found = []
    for role in dict.fromkeys(name.rpartition(".")[0] for name in steps.under("share.")):
        values = {activity: steps[f"share.{role}.{activity}"] for activity in ("busy", "wait", "paused")}
        known = ~np.isnan(values["busy"]) & (weights > 0)
        if known.any():
            means = {name: float(np.average(np.nan_to_num(share[known]), weights=weights[known])) for name, share in values.items()}
            found.append(RoleShare(role, **means))
    return found


def overlap(steps: Columns) -> float | None:
    """At least this share of the time rollout and trainer were busy at once; the rule is `asyncflow.observe.summary.overlap`'s."""
    busy = steps["share.rollout.busy"] + steps["share.trainer.busy"]
    times = steps["t_s"]
    spans = [(after - before, share) for (before, after), share in zip(itertools.pairwise(times), busy[1:], strict=False) if not np.isnan(share)]
    seconds = sum(span for span, _ in spans)
    return max(0.0, float(sum(span * share for span, share in spans) / seconds) - 1) if seconds > 0 else None


def endings(events: EventFacts) -> list[Ending]:
    """The ledger as the event log makes it, open states first, with the length and age of what ended."""
    order = {state: place for place, state in enumerate(("admitted", "generating", "complete", "leased", "trained"))}
    found = []
    for state, count in sorted(events.ledger.items(), key=lambda item: (order.get(item[0], len(order)), item[0])):
        ended = events.ended.get(state)
        if count:
            means = (ended.tokens / ended.groups, ended.age / ended.groups) if ended is not None else (None, None)
            found.append(Ending(state, count, *means))
    return found
