"""Numbers as strokes: a sparkline, a bar of shares, a bar of progress, in characters that the terminal can show and that differ without colour."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
from rich.text import Text

ACTIVITY_STYLE = {"busy": "green", "paused": "yellow", "wait": "bright_black"}


class Marks(msgspec.Struct, frozen=True):
    """Characters of one terminal."""

    levels: str  # of a sparkline, lowest first
    shares: dict[str, str]  # activity → a cell of a bar
    done: str
    open: str
    dot: str  # between two facts of one line
    at_most: str


UNICODE = Marks("▁▂▃▄▅▆▇█", {"busy": "█", "paused": "▒", "wait": "·"}, "━", "╌", "·", "≤")
ASCII = Marks("_.-=+*#", {"busy": "#", "paused": "=", "wait": "."}, "=", "-", "|", "<=")


def marks_for(encoding: str) -> Marks:
    """What a terminal of this encoding can show."""
    return UNICODE if encoding.lower().replace("-", "").startswith("utf") else ASCII


def sparkline(values: Sequence[float], width: int, marks: Marks) -> str:
    """The course of the values from left to right in at most `width` characters, each the mean of as many; lowest to highest over what is shown."""
    if not values or width < 1:
        return ""
    cells = min(width, len(values))
    edges = [round(cell * len(values) / cells) for cell in range(cells + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    top = len(marks.levels) - 1
    return "".join(marks.levels[round((mean - low) / span * top) if span > 0 else top // 2] for mean in means)


def share_bar(shares: Mapping[str, float], width: int, marks: Marks) -> Text:
    """`width` cells shared out by largest remainder, so that they always sum up."""
    exact = {activity: max(0.0, shares.get(activity, 0.0)) * width for activity in ACTIVITY_STYLE}
    cells = {activity: int(count) for activity, count in exact.items()}
    rest = sorted(exact, key=lambda activity: cells[activity] - exact[activity])
    for activity in rest[: max(0, width - sum(cells.values()))]:
        cells[activity] += 1
    return Text.assemble(*((marks.shares[activity] * cells[activity], ACTIVITY_STYLE[activity]) for activity in ACTIVITY_STYLE))


def progress_bar(share: float, width: int, marks: Marks) -> Text:
    """`share` of 1 done."""
    done = round(min(1.0, max(0.0, share)) * width)
    return Text.assemble((marks.done * done, "cyan"), (marks.open * (width - done), "bright_black"))


def duration(seconds: float | None) -> str:
    """As a person says it: "48 s", "3:07", "2:05:00", "3 d 4 h"; "?" where it is not known."""
    if seconds is None:
        return "?"
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 48 * 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
