"""What a report holds about one run, typed: the contract between those who read a run's files and those who draw the page."""

from __future__ import annotations

from typing import Literal

import msgspec

Shape = Literal["line", "points", "stairs"]
Better = Literal["higher", "lower", "neither"]
Tone = Literal["good", "bad", "live", "plain"]


class Grid(msgspec.Struct, frozen=True):
    """Where the points of curves lie: the same points on one or more axes ("version", "seconds", "tokens"), all of equal length."""

    axes: dict[str, list[float]]
    steps_a_point: float = 1.0  # how many recorded values one point stands for


class Curve(msgspec.Struct, frozen=True):
    """One line of a chart. None: not measured there."""

    name: str
    grid: str  # key in RunReport.grids
    y: list[float | None]
    shape: Shape = "line"


class Chart(msgspec.Struct, frozen=True):
    """`key` is the same in every run, so that two runs share one drawing. Without curves, `absent` says why."""

    key: str
    section: str
    title: str
    says: str  # one sentence: what is to be seen here
    unit: str  # of y
    curves: list[Curve] = []
    x: str = ""  # "" = the page's switch decides between version and time; else the one axis and its unit
    absent: str = ""
    from_zero: bool = True  # y starts at 0


class Lane(msgspec.Struct, frozen=True):
    """One thread of one worker. Times are whole ticks of `Timeline.tick_s` since the controller's start, in ascending order.

    Item i covers [start[i], start[i] + length[i]] and is `kinds[kind[i]]` for `share[i]` percent of that stretch: 100 for an exact span, less where
    spans shorter than `Timeline.cell_s` were put together.
    """

    worker: str
    role: str
    thread: str
    alive: list[int]  # from, until, from, until, …: when its time was recorded; what no item covers in there was waiting
    start: list[int]  # each as the difference from the one before
    length: list[int]
    kind: list[int]
    share: list[int]
    busy_share: float | None  # of the recorded time


class Mark(msgspec.Struct, frozen=True):
    """Something that happened to a worker or to the run."""

    t_s: float
    worker: str  # "" = the whole run
    kind: str  # joined | restarted | died | left | evaluate | slow | stall | stop | failed
    text: str


class Timeline(msgspec.Struct, frozen=True):
    """What every worker did, and when."""

    tick_s: float
    cell_s: float  # resolution: shorter spans are put together by cells of this length; 0: all exact
    spans: int  # recorded ones
    until_s: float
    kinds: list[str]  # "busy compute", "paused load", …
    lanes: list[Lane]


class Figure(msgspec.Struct, frozen=True):
    """One line of the headline table. `value` is compared between runs where it is a number; `shown` is what a person reads."""

    key: str
    name: str
    shown: str
    value: float | None = None
    unit: str = ""
    better: Better = "neither"
    says: str = ""


class RoleShare(msgspec.Struct, frozen=True):
    """How a role's workers spent the run, as shares of their time."""

    role: str
    busy: float
    wait: float
    paused: float


class Ending(msgspec.Struct, frozen=True):
    """Groups by state or by how they ended. None: not known of groups that are still open."""

    state: str
    groups: int
    tokens_mean: float | None = None  # all rows of a group together
    age_mean: float | None = None  # versions


class Setting(msgspec.Struct, frozen=True):
    key: str  # dotted
    value: str  # as JSON
    default: str | None  # as JSON; None: there is none of that name


class Verdict(msgspec.Struct, frozen=True):
    """How it went, in one line, and what is to be read first where it went wrong."""

    tone: Tone
    word: str  # Completed, Failed, …
    sentence: str
    traceback: str = ""
    stall: str = ""


class Block(msgspec.Struct, frozen=True):
    """A sentence, and a table where there is one."""

    title: str
    says: str
    head: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []


class RunReport(msgspec.Struct, frozen=True):
    """One run, ready to be drawn."""

    name: str
    verdict: Verdict
    facts: list[tuple[str, str]]  # what the run was: staleness, policy, batch, …
    figures: list[Figure]
    grids: dict[str, Grid]
    charts: list[Chart]
    timeline: Timeline | None
    commits_s: list[float]
    marks: list[Mark]
    shares: list[RoleShare]
    endings: list[Ending]
    advice: list[Block]
    settings: list[Setting]
    environment: list[tuple[str, str]]
    notes: list[str]  # what could not be read, and what was left out
