"""Charts of lengths: dropping what is old must not quietly drop what is long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from asyncflow.observe.report.charts import Charts
from asyncflow.observe.report.data import Chart, Curve, Grid
from asyncflow.observe.report.events import EventFacts
from asyncflow.observe.report.histogram import edges, shares


def lengths(charts: Charts, events: EventFacts, responses: Mapping[int, int]) -> None:
    """Trained against dropped groups; and single responses, where the timeline recorded them."""
    dropped: Counter[int] = Counter()
    for end, ended in events.ended.items():
        if end.startswith("dropped:"):
            dropped += ended.lengths
    trained = events.ended["trained"].lengths if "trained" in events.ended else Counter[int]()
    title, says = "Length of trained and dropped groups", "Generated tokens of a group, all its samples together."
    chart = Chart("lengths", "groups", title, says, "% of groups", x="tokens", absent="no group has ended yet")
    _histogram(charts, chart, {"trained": trained, "dropped": dropped})
    title, says = "Length of responses", "Of every finished response, trained or not."
    _histogram(charts, Chart("responses", "groups", title, says, "% of responses", x="tokens"), {"responses": responses})


def _histogram(charts: Charts, chart: Chart, counts: Mapping[str, Mapping[int, int]]) -> None:
    at = edges(list(counts.values()))
    if len(at):
        charts.grids[chart.key] = Grid({"tokens": [float(edge) for edge in at]})
    charts.add(chart, [Curve(name, chart.key, shares(count, at), "stairs") for name, count in counts.items() if count])
