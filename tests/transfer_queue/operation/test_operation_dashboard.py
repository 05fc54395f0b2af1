"""The Grafana dashboard and the page name exactly what the endpoint of a real queue exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from scripted import Sample, scrape, scripted

from transfer_queue.operation.exporter import Exporter

DOCS = Path(__file__).parents[3] / "docs"
DASHBOARD = DOCS / "grafana" / "transfer_queue.json"
WIDTH = 24  # columns of Grafana's grid
LEFT_OUT: dict[str, str] = {}  # exported without a panel → why
OF_PROMETHEUS = {"instance"}  # labels that the scrape adds


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Grafana drops what it does not know without a word."""


class Source(Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class Target(Strict):
    datasource: Source
    editorMode: Literal["code"]
    expr: str
    legendFormat: str
    range: bool
    refId: str


class Place(Strict):
    x: int
    y: int
    w: int
    h: int


class Panel(Strict):
    id: int
    type: Literal["row", "timeseries", "stat"]
    title: str
    gridPos: Place
    description: str = ""
    datasource: Source | None = None
    fieldConfig: dict[str, Any] = {}
    options: dict[str, Any] = {}
    targets: list[Target] = []
    collapsed: bool = False
    panels: list[Any] = []


class Variable(Strict):
    name: str
    label: str
    type: Literal["datasource", "query"]
    query: Any
    refresh: int
    multi: bool
    includeAll: bool
    options: list[Any]
    hide: int
    regex: str
    current: dict[str, Any]
    datasource: Source | None = None
    definition: str = ""
    sort: int = 0
    allValue: str = ""


class Templating(Strict):
    variables: list[Variable] = msgspec.field(name="list")


class Dashboard(Strict):
    annotations: dict[str, Any]
    description: str
    editable: bool
    fiscalYearStartMonth: int
    graphTooltip: int
    links: list[Any]
    panels: list[Panel]
    refresh: str
    schemaVersion: int
    tags: list[str]
    templating: Templating
    time: dict[str, str]
    timepicker: dict[str, Any]
    timezone: str
    title: str
    uid: str
    version: int
    weekStart: str


@pytest.fixture(scope="module")
def exported() -> Iterator[dict[Sample, float]]:
    with scripted() as run, Exporter(run.queue.url, None, "127.0.0.1", 0) as serving:
        yield scrape(serving.url)


@pytest.fixture(scope="module")
def dashboard() -> Dashboard:
    return msgspec.json.decode(DASHBOARD.read_bytes(), type=Dashboard)


def queries(dashboard: Dashboard) -> list[tuple[Panel, Target]]:
    return [(panel, target) for panel in dashboard.panels for target in panel.targets]


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\btransfer_queue_\w+", text))


def names(exported: dict[Sample, float]) -> set[str]:
    return {name for name, _ in exported}


def labels(exported: dict[Sample, float], name: str) -> set[str]:
    return {label for found, pairs in exported if found == name for label, _ in pairs}


def test_panels_have_numbers_of_their_own_and_do_not_overlap(dashboard: Dashboard) -> None:
    assert len({panel.id for panel in dashboard.panels}) == len(dashboard.panels)
    cells: set[tuple[int, int]] = set()
    for panel in dashboard.panels:
        place = panel.gridPos
        assert 0 <= place.x < place.x + place.w <= WIDTH, panel.title
        covered = {(x, y) for x in range(place.x, place.x + place.w) for y in range(place.y, place.y + place.h)}
        assert not covered & cells, panel.title
        cells |= covered
        assert panel.type == "row" or (panel.targets and panel.datasource and "unit" in panel.fieldConfig["defaults"]), panel.title
        assert len({target.refId for target in panel.targets}) == len(panel.targets), panel.title


def test_every_expression_names_only_what_is_exported(dashboard: Dashboard, exported: dict[Sample, float]) -> None:
    for panel, target in queries(dashboard):
        named = metrics_in(target.expr)
        assert named, panel.title
        assert named <= names(exported), panel.title
        known = set.intersection(*(labels(exported, name) | OF_PROMETHEUS for name in named))
        used = set(re.findall(r"(\w+)=~?\"", target.expr)) | set(re.findall(r"\{\{(\w+)\}\}", target.legendFormat))
        assert used - known == set(), panel.title
        assert target.expr.count("{") == target.expr.count("}"), panel.title
        assert target.expr.count("(") == target.expr.count(")"), panel.title


def test_counters_are_shown_as_rates_and_gauges_are_not(dashboard: Dashboard) -> None:
    for panel, target in queries(dashboard):
        for name in metrics_in(target.expr):
            rated = f"rate({name}{{" in target.expr
            assert rated == (name.endswith("_total") and panel.type == "timeseries"), f"{panel.title}: {target.expr}"


def test_every_exported_metric_has_a_panel(dashboard: Dashboard, exported: dict[Sample, float]) -> None:
    shown = set[str]().union(*(metrics_in(target.expr) for _, target in queries(dashboard)))
    assert names(exported) - shown == LEFT_OUT.keys()


def test_variables_ask_for_what_is_exported_and_all_of_them_are_used(dashboard: Dashboard, exported: dict[Sample, float]) -> None:
    variables = {variable.name: variable for variable in dashboard.templating.variables}
    text = DASHBOARD.read_text()
    assert all(f"${name}" in text or f"${{{name}}}" in text for name in variables)
    for variable in variables.values():
        assert metrics_in(variable.definition) <= names(exported)
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) - variables.keys() == set()


def test_the_units_are_those_of_the_names(dashboard: Dashboard) -> None:
    for panel, target in queries(dashboard):
        unit = panel.fieldConfig["defaults"]["unit"]
        for name in metrics_in(target.expr):
            if name.endswith("_bytes"):
                assert unit == "bytes", panel.title
            elif name.endswith("_seconds"):
                assert unit == "s", panel.title


def test_the_page_lists_what_is_exported_with_its_labels_and_nothing_else(exported: dict[Sample, float]) -> None:
    section = (DOCS / "transfer_queue.md").read_text().partition("### Metrics")[2]
    told: dict[str, set[str]] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            for name in re.findall(r"`(\w+)`", cells[0]):
                told[f"transfer_queue_{name}"] = set(re.findall(r"\w+", cells[1]))
    assert told.keys() == names(exported)
    either = {"transfer_queue_requests_total": {"kind"}, "transfer_queue_refused_requests_total": {"code"}}  # told in one line: "kind; code"
    assert {name: either.get(name, found) for name, found in told.items()} == {name: labels(exported, name) for name in told}
