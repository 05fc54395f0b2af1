"""The figures that a person compares two runs by. Read off the logs, so that they exist for a run in progress and for one that was killed."""

from __future__ import annotations

import numpy as np

from asyncflow.observe.records import Summary
from asyncflow.observe.report.columns import Columns
from asyncflow.observe.report.data import Better, Figure
from asyncflow.observe.report.events import EventFacts
from asyncflow.observe.report.verdict import duration

TAIL = 0.1  # the end of a run: its last tenth of steps


def figures(steps: Columns, events: EventFacts, summary: Summary | None, overlap: float | None) -> list[Figure]:
    """Every figure, measured or not: two runs have the same lines."""
    accuracy = events.evaluations["accuracy"]
    seconds = events.until_s
    tokens = np.nansum(steps["info.tokens"]) if "info.tokens" in steps else None
    rate = float(tokens) / seconds if tokens is not None and seconds > 0 else None
    devices = _devices(steps)
    rate_device = rate / devices if rate is not None and devices else None
    return [
        _number("accuracy_first", "Accuracy at first", _at(accuracy, 0), "", "neither", "Of the first evaluation."),
        _number("accuracy_last", "Accuracy at last", _at(accuracy, -1), "", "higher", "Of the last evaluation."),
        _number("reward_last", "Reward at the end", _tail(steps["reward"]), "", "higher", "Mean over the last tenth of the steps."),
        Figure("seconds", "Time", duration(seconds), seconds, "s", "lower", "From the controller's start to the last event."),
        _number("versions", "Versions", float(events.steps.rows), "", "neither", "Optimizer steps committed.", digits=0),
        _number("tokens", "Trained tokens", None if tokens is None else float(tokens), "", "neither", digits=0),
        _number("rate", "Throughput", rate, "tokens/s", "higher", "Trained tokens over the whole time, start and evaluations included.", digits=0),
        _number("rate_device", "Throughput a device", rate_device, "tokens/s", "higher", "The same over all devices.", digits=0),
        _number("staleness_mean", "Staleness, mean", _mean(steps["staleness.mean"]), "versions", "neither", "Over all trained tokens, by step."),
        _number("staleness_max", "Staleness, largest", _max(steps["staleness.max"]), "versions", "neither", digits=0),
        _number("age_s", "Age at first token", _mean(events.steps["age_s.mean"]), "s", "lower", "From first generation to commit, mean."),
        _number("dropped", "Groups dropped", _dropped(events), "", "lower", digits=0),
        _number("overlap", "Both busy, at least", _percent(overlap), "%", "higher", "Of the time: rollout and trainer at once.", digits=1),
        _number("restarts", "Restarts", _restarts(events, summary), "", "lower", digits=0),
    ]  # fmt: skip


def difference(first: Figure, second: Figure) -> tuple[str, str]:
    """(what to show, "good" | "bad" | "") of second against first; ("", "") where one is not measured."""
    if first.value is None or second.value is None:
        return "", ""
    change = second.value - first.value
    if change == 0:
        return "±0", ""
    part = f" ({change / abs(first.value):+.1%})".replace("-", "−") if first.value else ""
    tone = "" if second.better == "neither" else "good" if (change > 0) == (second.better == "higher") else "bad"
    return f"{signed(change)} {first.unit}".strip() + part, tone


def signed(change: float) -> str:
    return f"{'+' if change > 0 else '−'}{_digits(abs(change))}"


def _digits(value: float) -> str:
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def _number(key: str, name: str, value: float | None, unit: str, better: Better, says: str = "", digits: int = 3) -> Figure:
    shown = "not measured" if value is None else f"{value:,.{digits}f} {unit}".strip()
    return Figure(key, name, shown, value, unit, better, says)


def _at(values: np.ndarray, place: int) -> float | None:
    known = values[~np.isnan(values)]
    return float(known[place]) if len(known) else None


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _max(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def _tail(values: np.ndarray) -> float | None:
    return _mean(values[-max(1, int(len(values) * TAIL)) :])


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _devices(steps: Columns) -> float | None:
    """What the run divided its tokens per second by."""
    return _max(steps["tokens_per_s"] / np.where(steps["tokens_per_s_device"] > 0, steps["tokens_per_s_device"], np.nan))


def _dropped(events: EventFacts) -> float:
    return float(sum(count for end, count in events.ledger.items() if end.startswith("dropped:") and end != "dropped:run_end"))


def _restarts(events: EventFacts, summary: Summary | None) -> float:
    if summary is not None:
        return float(sum(summary.restarts.values()))
    return float(sum(mark.kind == "restarted" for mark in events.marks))
