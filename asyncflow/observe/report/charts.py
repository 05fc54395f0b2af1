"""Which charts the page has, what is on each, and why one is empty. Drawing them is the page's own business."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from asyncflow.observe.report.columns import Columns
from asyncflow.observe.report.data import Chart, Curve, Grid, Shape
from asyncflow.observe.report.thin import stride, thinned

VERSIONS = ("version", "seconds")  # the two axes of the page's switch


class Charts:
    """Collects charts and the grids their points lie on."""

    def __init__(self, absent: str = "not recorded") -> None:
        """`absent`: what a chart says that has nothing to show and no reason of its own."""
        self._absent = absent
        self.charts: list[Chart] = []
        self.grids: dict[str, Grid] = {}

    def grid(self, key: str, version: np.ndarray, t_s: np.ndarray) -> str:
        """A grid on both axes. A thinned point stands at its last step."""
        axes = {axis: [value or 0.0 for value in thinned(values, "last")] for axis, values in zip(VERSIONS, (version, t_s), strict=True)}
        self.grids[key] = Grid(axes, float(stride(len(version))))
        return key

    def add(self, chart: Chart, curves: Iterable[Curve]) -> None:
        """Curves without one measured value are left out; a chart without curves says why it is empty."""
        kept = [curve for curve in curves if any(value is not None for value in curve.y)]
        self.charts.append(msgspec.structs.replace(chart, curves=kept, absent="" if kept else chart.absent or self._absent))


def curve(name: str, grid: str, values: np.ndarray, how: str = "mean", shape: Shape = "line") -> Curve:
    return Curve(name, grid, thinned(values, how), shape)


def learning(charts: Charts, steps: Columns, evaluations: Columns) -> None:
    """Is it getting better?"""
    at = charts.grid("steps", steps["version"], steps["t_s"])
    held_out = charts.grid("evaluations", evaluations["version"], evaluations["t_s"])
    charts.add(
        Chart("reward", "learning", "Reward", "Mean reward of the trained samples of each step.", "reward", from_zero=False),
        [curve("reward", at, steps["reward"])],
    )
    charts.add(
        Chart("accuracy", "learning", "Held-out accuracy", "One point an evaluation, at its version.", "accuracy", absent="no evaluation"),
        [curve("accuracy", held_out, evaluations["accuracy"], shape="points")],
    )
    for name, title, says, unit, how in TRAINING:
        values = steps[f"info.{name}"]
        if not np.isnan(values).all():
            charts.add(Chart(f"info.{name}", "update", title, says, unit, from_zero=False), [curve(title.lower(), at, values, how)])


TRAINING = (
    ("loss", "Loss", "Of the policy update, over the whole batch.", "loss", "mean"),
    ("grad_norm", "Gradient norm", "Before clipping.", "norm", "max"),
    ("kl", "KL to the reference", "Mean over the trained tokens.", "nats", "mean"),
    ("old_kl", "KL to the sampling policy", "How far the update has moved from what sampled.", "nats", "mean"),
    ("entropy", "Entropy", "Mean over the trained tokens.", "nats", "mean"),
    ("ratio", "Importance ratio", "Mean over the trained tokens; 1 where trained and old policy agree.", "ratio", "mean"),
    ("clip_fraction", "Clipped tokens", "Share of the tokens whose ratio was clipped.", "share", "mean"),
    ("response_tokens_mean", "Response length", "Mean of the trained samples of each step.", "tokens", "mean"),
    ("lr", "Learning rate", "As scheduled.", "rate", "mean"),
    ("step_seconds", "Step time", "From the first wait for data to the commit.", "s", "mean"),
)


AGES = ("max", "p95", "mean")  # drawn in this order: the mean on top


def staleness(charts: Charts, steps: Columns, events: Columns) -> None:
    """How old is what is trained?"""
    at = charts.grid("steps", steps["version"], steps["t_s"])
    seen = charts.grid("commits", events["version"], events["t_s"])
    charts.add(
        Chart("staleness", "staleness", "Staleness", "Versions between the trainer and what made a token, over the tokens of a step.", "versions"),
        [curve(name, at, steps[f"staleness.{name}"], "max" if name == "max" else "mean") for name in AGES],
    )
    charts.add(
        Chart("age_versions", "staleness", "Group age in versions", "Versions from a group's oldest token to its commit.", "versions"),
        [curve(name, seen, events[f"age_versions.{name}"], "max" if name == "max" else "mean") for name in AGES],
    )
    charts.add(
        Chart("age_s", "staleness", "Age at first token", "Seconds from a group's first generation to its commit.", "seconds"),
        [curve(name, seen, events[f"age_s.{name}"], "max" if name == "max" else "mean") for name in AGES],
    )


def queue(charts: Charts, steps: Columns) -> None:
    """What waits where?"""
    at = charts.grid("steps", steps["version"], steps["t_s"])
    for key, title, says in (
        ("ready", "Rows ready for a stage", "Rows that a stage could take and has not: a queue that grows names its stage as too slow."),
        ("leased", "Rows in a stage's hands", "Rows handed out and not yet given back."),
    ):
        charts.add(Chart(key, "queue", title, says, "rows"), [curve(stage, at, rows) for stage, rows in steps.under(f"{key}.").items()])
    states = [state for state in ("admitted", "generating", "complete", "leased") if f"ledger.{state}" in steps]
    charts.add(
        Chart("states", "queue", "Open groups by state", "Groups that hold a permit, at each commit.", "groups"),
        [curve(state, at, np.nan_to_num(steps[f"ledger.{state}"])) for state in states],
    )
    charts.add(
        Chart("permits", "queue", "Permits", "Groups open, groups that may still be admitted, and prompts that wait for one.", "groups"),
        [curve("open", at, steps["open"]), curve("free", at, steps["permits"]), curve("prompts waiting", at, steps["prompts"])],
    )
    charts.add(
        Chart("bytes", "queue", "Memory reserved", "Bytes that open groups reserve at their worst case.", "MB"),
        [curve("reserved", at, steps["queue_bytes"] / 1e6, "max")],
    )


def speed(charts: Charts, steps: Columns) -> None:
    """How fast is it, and who is busy?"""
    at = charts.grid("steps", steps["version"], steps["t_s"])
    charts.add(
        Chart("throughput", "speed", "Throughput", "Trained tokens a second, from commit to commit.", "tokens/s"),
        [curve("tokens/s", at, steps["tokens_per_s"])],
    )
    busy = {name.removesuffix(".busy"): values for name, values in steps.under("share.").items() if name.endswith(".busy")}
    charts.add(
        Chart("busy", "speed", "Busy share of each role", "Share of its workers' time, from commit to commit.", "%"),
        [curve(role, at, 100 * values) for role, values in busy.items()],
    )
    dropped = {name: values for name, values in steps.under("ledger.dropped:").items() if name != "run_end"}
    charts.add(
        Chart("dropped", "groups", "Dropped groups", "Since the start, by reason.", "groups", absent="no group was dropped up to the last commit"),
        [curve(reason, at, np.nan_to_num(values), "last", "stairs") for reason, values in dropped.items()],
    )
