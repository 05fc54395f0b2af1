"""Weights on their way, version by version: copied out, published, sent, received and verified, loaded."""

from __future__ import annotations

import numpy as np

from asyncflow.observe.report.charts import Charts, curve
from asyncflow.observe.report.columns import Columns
from asyncflow.observe.report.data import Chart
from asyncflow.observe.report.events import EventFacts

PHASES = {
    "copy_s": "copy out",
    "publish_s": "commit → published",
    "form_s": "form the group",
    "send_s": "transfer",
    "receive": "receive and verify",
    "load": "load",
    "loaded_s": "commit → loaded",
}


def weight_sync(charts: Charts, steps: Columns, events: EventFacts, loads: list[tuple[float, float, str]]) -> None:
    """One row a version. `loads`: spans (start, end, "load" | "receive") of all workers; the version of one is the newest published by its end."""
    versions, rows = sync_rows(steps, events, loads)
    table = Columns()
    for version in versions:
        table.row({"version": version, "t_s": events.published.get(version)} | {name: rows.get(name, {}).get(version) for name in PHASES})
    at = charts.grid("versions", table["version"], table["t_s"])
    chart = Chart("sync", "weights", "Weight sync by phase", "Milliseconds a version: means over the workers that took it in.", "ms")
    charts.add(chart, [curve(title, at, 1e3 * table[name]) for name, title in PHASES.items() if name != "loaded_s"])
    charts.add(
        Chart("loaded", "weights", "From commit to loaded", "Until the last worker had loaded the version.", "ms"),
        [curve(PHASES["loaded_s"], at, 1e3 * table["loaded_s"], "max")],
    )


def sync_rows(steps: Columns, events: EventFacts, loads: list[tuple[float, float, str]]) -> tuple[list[int], dict[str, dict[int, float]]]:
    """Versions that were published, ascending, and phase → version → seconds."""
    committed = {int(version): t_s for version, t_s in zip(events.steps["version"], events.steps["t_s"], strict=True)}
    versions = sorted(version for version in events.published if version >= 0)
    rows: dict[str, dict[int, float]] = {name: {} for name in PHASES}
    for version, copy_s in zip(steps["version"], steps["info.copy_seconds"], strict=True):
        if not np.isnan(copy_s):
            rows["copy_s"][int(version) - 1] = copy_s  # a commit carries how the version before it was copied
    for version in versions:
        if version in committed:
            rows["publish_s"][version] = max(0.0, events.published[version] - committed[version])
    for name in ("form_s", "send_s"):
        for version, seconds in zip(events.syncs["version"], events.syncs[name], strict=True):
            if not np.isnan(seconds):
                rows[name][int(version)] = seconds
    _spans(rows, versions, events.published, committed, loads)
    return versions, rows


def _spans(
    rows: dict[str, dict[int, float]],
    versions: list[int],
    published: dict[int, float],
    committed: dict[int, float],
    loads: list[tuple[float, float, str]],
) -> None:
    order = sorted(versions, key=lambda version: published[version])
    times = np.array([published[version] for version in order])
    sums: dict[tuple[str, int], list[float]] = {}
    for start_s, end_s, what in loads:
        place = int(np.searchsorted(times, end_s, side="right")) - 1
        if place < 0:
            continue
        version = order[place]
        sums.setdefault((what, version), []).append(end_s - start_s)
        if what == "load" and version in committed:
            rows["loaded_s"][version] = max(rows["loaded_s"].get(version, 0.0), end_s - committed[version])
    for (what, version), seconds in sums.items():
        rows[what][version] = float(np.mean(seconds))
