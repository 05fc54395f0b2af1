"""One HTML file out of one or two reports: no server, no network, nothing to install. A content policy lets only the page's own scripts run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

import msgspec

from asyncflow.observe.report import tables
from asyncflow.observe.report.data import Chart, Grid, Mark, RunReport, Timeline

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = ("uPlot.iife.min.js", "theme.js", "charts.js", "timeline.js", "page.js")
ASSETS = files("asyncflow.observe.report") / "assets"
SECTIONS = {  # section of charts → heading, in the order of the page
    "learning": "Learning",
    "speed": "Workers and speed",
    "staleness": "Staleness",
    "queue": "Queue",
    "weights": "Weights",
    "groups": "Groups",
    "sizing": "Sizing",
    "update": "Update",
}


class DrawnRun(msgspec.Struct, frozen=True):
    """What the page's scripts need of a run; the rest of the page is HTML already."""

    name: str
    grids: dict[str, Grid]
    charts: list[Chart]
    timeline: Timeline | None
    commits_s: list[float]
    marks: list[Mark]


def render(runs: Sequence[RunReport]) -> str:
    """The page of one run, or of two side by side. At most 8 MB: series, timeline and marks are bounded where they are made."""
    scripts = [asset(name) for name in SCRIPTS]
    names = " and ".join(run.name for run in runs)
    return Template(asset("page.html")).substitute(
        title=escape(f"{names}: AsyncFlow report"),
        policy=policy(scripts),
        style="\n".join(asset(name) for name in STYLES),
        compared="compared" if len(runs) > 1 else "",
        verdict=tables.verdict(runs),
        trouble=tables.trouble(runs),
        headline=tables.headline(runs),
        sections="".join(section(key, title, runs) for key, title in SECTIONS.items()),
        configuration=tables.settings(runs),
        environment=tables.environment(runs),
        notes=tables.notes(runs),
        data=embedded(runs),
        scripts="".join(f"<script>{script}</script>" for script in scripts),
    )


def section(key: str, title: str, runs: Sequence[RunReport]) -> str:
    """Its charts are put into `.charts` by the page's script."""
    before = {"speed": timeline_part(runs), "groups": tables.endings(runs), "sizing": tables.advice(runs)}.get(key, "")
    if not before and not any(chart.section == key for run in runs for chart in run.charts):
        return ""
    return f'<section id="{key}"><h2>{title}</h2>{before}<div class="charts" data-section="{key}"></div></section>'


def timeline_part(runs: Sequence[RunReport]) -> str:
    shares = f'<h3>Where the time went</h3><p class="says">By role, until the last commit.</p>{tables.shares(runs)}'
    return f'<h3>What every worker did</h3><div id="timeline"></div>{shares}'


def embedded(runs: Sequence[RunReport]) -> str:
    """JSON that no text of a run can leave: within a script element only `<` could end it."""
    drawn = [DrawnRun(run.name, run.grids, run.charts, run.timeline, run.commits_s, run.marks) for run in runs]
    return msgspec.json.encode(drawn).decode().replace("<", "\\u003c")


def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def policy(scripts: Sequence[str]) -> str:
    """Only these scripts, by their hash; nothing is fetched from anywhere."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
