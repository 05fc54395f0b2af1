"""The picture of a run, as wide and as high as its terminal."""

from __future__ import annotations

from rich.console import Group

from asyncflow.observe.live.facts import facts, head, warnings
from asyncflow.observe.live.snapshot import Snapshot
from asyncflow.observe.live.workers import worker_table

FACT_LINES = 12  # head, facts (two of which may take two lines), an empty line, one line of warning


def picture(snapshot: Snapshot, width: int, height: int) -> Group:
    """At most `height` lines, unless a terminal is lower than a picture can be."""
    workers = worker_table(snapshot, width, max(2, height - FACT_LINES))
    end = [] if snapshot.ended is None else [""]  # what follows stands apart
    return Group(head(snapshot), facts(snapshot, width), "", workers, *warnings(snapshot), *end)
