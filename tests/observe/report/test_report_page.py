"""The page: one file, nothing from outside, nothing of a run is read as markup, and a browser draws it without an error."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncflow.observe.records import EVENTS, METRICS, SUMMARY, TIMELINE, Span, Summary, TimelineRecord
from asyncflow.observe.report.build import report_of
from asyncflow.observe.report.page import ASSETS, SCRIPTS, asset, render
from asyncflow.observe.summary import read_metrics
from tests.observe.report.browser import open_page
from tests.observe.report.run_files import whole_run
from transfer_queue.messages import Event

pytestmark = pytest.mark.tools

NASTY = """</script></pre><script>document.documentElement.dataset.pwned = 1</script>
<img src=x onerror="document.title='pwned'">&lt;b&gt; "'`${x}$title"""


class Outline(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    return found


def nasty_run(folder: Path) -> Path:
    """Every text that a run can bring holds markup."""
    run_dir = whole_run(folder)
    summary = msgspec.json.decode((run_dir / SUMMARY).read_bytes(), type=Summary)
    (run_dir / SUMMARY).write_bytes(msgspec.json.encode(msgspec.structs.replace(summary, exit_reason=NASTY, traceback=NASTY, restarts={NASTY: 2})))
    (run_dir / "stall.txt").write_text(NASTY)
    config = json.loads((run_dir / "config.json").read_text())
    config["run"]["name"] = NASTY
    config["models"][NASTY] = {NASTY: NASTY}
    (run_dir / "config.json").write_text(json.dumps(config))
    with (run_dir / EVENTS).open("ab") as file:
        file.write(msgspec.json.encode(Event(t_s=1.0, kind="member", reason="died", member=f"{NASTY}#1", data={"cause": NASTY})) + b"\n")
        file.write(msgspec.json.encode(Event(t_s=1.0, kind="group", gid=999, dst="dropped", reason=NASTY, data={"tokens": 1, "age": 0})) + b"\n")
    with (run_dir / TIMELINE).open("ab") as file:
        file.write(msgspec.json.encode(TimelineRecord(f"{NASTY}#0", NASTY, 0.0, 1.0, [Span(NASTY, NASTY, NASTY, 0.1, 0.5)])) + b"\n")
    steps = read_metrics(run_dir)
    nasty = [msgspec.structs.replace(step, shares={**step.shares, NASTY: {"busy": 1.0, "wait": 0.0, "paused": 0.0}}) for step in steps]
    (run_dir / METRICS).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in nasty))
    return run_dir


def test_a_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    found = outline(render([report_of(whole_run(tmp_path))]))
    assert all(link.startswith("#") for link in found.links)
    assert "link" not in found.tags
    assert found.tags.count("script") == len(SCRIPTS) + 1


def test_texts_of_a_run_are_never_markup(tmp_path: Path) -> None:
    harmless = outline(render([report_of(whole_run(tmp_path))]))
    (tmp_path / "nasty").mkdir()
    nasty = outline(render([report_of(nasty_run(tmp_path / "nasty"))]))
    assert nasty.tags.count("script") == harmless.tags.count("script")
    assert "img" not in nasty.tags
    assert nasty.handlers == []


def test_a_page_of_nasty_texts_is_drawn_and_runs_none_of_them(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render([report_of(nasty_run(tmp_path))]))
    opened = open_page(page, tmp_path / "profile")
    assert opened.data("report") == "drawn", opened.console
    assert opened.data("pwned") is None
    assert "<title>pwned" not in opened.dom
    assert opened.console == []


def test_a_browser_draws_every_chart_and_the_timeline(tmp_path: Path) -> None:
    report = report_of(whole_run(tmp_path))
    page = tmp_path / "report.html"
    page.write_text(render([report]))
    opened = open_page(page, tmp_path / "profile")
    assert opened.data("report") == "drawn", opened.console
    assert opened.console == []
    assert opened.data("charts") == str(sum(bool(chart.curves) for chart in report.charts))
    assert opened.data("timelines") == "1"
    assert opened.dom.count("<canvas") == int(opened.data("charts") or 0) + 1


def test_a_browser_draws_two_runs_side_by_side(tmp_path: Path) -> None:
    runs = []
    for seed, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        runs.append(report_of(whole_run(tmp_path / name, seed, steps=3 + seed).rename(tmp_path / f"{name}-run")))
    page = tmp_path / "report.html"
    page.write_text(render(runs))
    opened = open_page(page, tmp_path / "profile")
    assert opened.data("report") == "drawn", opened.console
    assert opened.console == []
    assert opened.data("timelines") == "2"
    assert re.search(r"<th[^>]*>Versions</th><td>3</td><td>4</td><td[^>]*>\+1 \(\+33.3%\)</td>", opened.dom)
    assert re.search(r'<th[^>]*>run.steps</th><td>3</td><td>4</td>', opened.dom), "the configuration shows what differs"


def test_a_run_of_ten_hours_makes_a_page_below_8_mb(tmp_path: Path) -> None:
    """A million spans, 20,000 steps, twenty workers; both runs of a comparison."""
    run_dir = whole_run(tmp_path)
    dice = np.random.default_rng(0)
    with (run_dir / TIMELINE).open("wb") as file:
        for worker in range(20):
            edges = np.sort(dice.uniform(0, 36_000, 2 * 50_000)).reshape(50, -1)
            for turn, row in enumerate(edges):
                spans = [Span("main", "busy", "compute", start, end) for start, end in zip(row[::2].tolist(), row[1::2].tolist(), strict=True)]
                record = TimelineRecord(f"rollout-{worker}#0", "rollout", 720.0 * turn, 720.0 * (turn + 1), spans, [3, 4])
                file.write(msgspec.json.encode(record) + b"\n")
    step = read_metrics(run_dir)[-1]
    with (run_dir / METRICS).open("wb") as file:
        for version in range(1, 20_001):
            file.write(msgspec.json.encode(msgspec.structs.replace(step, version=version, t_s=1.8 * version)) + b"\n")
    report = report_of(run_dir)
    assert report.timeline is not None
    assert report.timeline.spans == 1_000_000
    assert 0 < report.timeline.cell_s <= 10
    page = render([report, report])
    assert len(page.encode()) < 8e6
    (tmp_path / "report.html").write_text(page)
    assert open_page(tmp_path / "report.html", tmp_path / "profile").data("report") == "drawn"


def test_scripts_cannot_end_their_element() -> None:
    for name in SCRIPTS:
        assert "</script" not in asset(name).lower()
        assert "<!--" not in asset(name)


def test_the_licence_of_the_chart_library_lies_beside_it() -> None:
    assert "MIT License" in (ASSETS / "uPlot.LICENSE").read_text()
    assert "Leon Sorokin" in asset("page.html"), "and the page names its author"


@pytest.mark.parametrize("word", ["http:", "https:", "//cdn", "@import", "fetch(", "XMLHttpRequest", "WebSocket", "import("])
def test_our_own_assets_fetch_nothing(word: str) -> None:
    for name in (*SCRIPTS[1:], "page.css", "page.html"):
        assert word not in asset(name), name
