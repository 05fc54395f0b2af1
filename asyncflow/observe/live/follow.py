"""`RunState`: what is known of a run from its files, kept small however long the run gets."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from pathlib import Path

import msgspec

from asyncflow.observe.live.news import Evaluation, News, RunNews
from asyncflow.observe.records import EVENTS, StepRecord, TimelineRecord
from asyncflow.observe.shares import ACTIVITIES
from transfer_queue.messages import Event

STEPS_KEPT = 400  # for the sparkline
MEDIAN_OF = 20  # steps, for the time that is left
SHARES_S = 10.0  # over which a worker's shares are taken

Seconds = dict[str, float]  # activity → seconds
Shares = dict[str, float]  # activity → share of the time; they sum to 1


class Member(msgspec.Struct):
    """One member by its name, which stays the same across restarts."""

    role: str
    restarts: int = 0  # its incarnation
    left: str | None = None  # how it went: "left", or why it is dead; None: it is there
    recent: deque[Seconds] = msgspec.field(default_factory=lambda: deque(maxlen=256))  # of its present incarnation, newest last
    all: Seconds = msgspec.field(default_factory=dict)  # of every incarnation

    def spend(self, seconds: Seconds) -> None:
        self.recent.append(seconds)
        add(self.all, seconds)

    def shares(self) -> Shares | None:
        """Over its last ten seconds or so; None: nothing was recorded."""
        total: Seconds = {}
        for seconds in reversed(self.recent):
            if sum(total.values()) >= SHARES_S:
                break
            add(total, seconds)
        return shares_of(total)


class RunState:
    """Fed by `advance`; everything else is for reading."""

    def __init__(self, run_dir: Path) -> None:
        self.step: StepRecord | None = None  # the newest
        self.rewards: deque[float] = deque(maxlen=STEPS_KEPT)
        self.evaluations: deque[Evaluation] = deque(maxlen=STEPS_KEPT)
        self.members: dict[str, Member] = {}
        self._role_seconds: dict[str, Seconds] = {}
        self._run_dir = run_dir
        self._news = RunNews(run_dir)
        self._ends_s: deque[float] = deque(maxlen=MEDIAN_OF + 1)  # of the last steps
        self.until_s: float | None = None  # on the controller's clock: the newest line of the event log
        self._started_at: float | None = None  # wall clock at the controller's second 0

    @property
    def unreadable(self) -> int:
        return self._news.unreadable

    @property
    def problem(self) -> str | None:
        """Why a file of the run cannot be read at present."""
        return self._news.problem

    def advance(self) -> bool:
        """Take in what is new, a bounded piece of it. True: something was."""
        news = self._news.look()
        self._take(news)
        return bool(news)

    def _take(self, news: News) -> None:
        for step in news.steps:
            self._roles(step)
            self.step = step
            self._ends_s.append(step.t_s)
            if step.reward_mean is not None:
                self.rewards.append(step.reward_mean)
        self.evaluations.extend(news.evaluations)
        for event in news.members:
            self._member(event)
        for record in news.times:
            self._time(record)
        if news.until_s is not None:
            self.until_s = news.until_s
            self._started_at = self._start(news.until_s)

    def _member(self, event: Event) -> None:
        name, _, incarnation = event.member.rpartition("#")
        if event.reason == "joined":
            member = self.members.setdefault(name, Member(role=str(event.data.get("role", ""))))
            member.restarts, member.left = int(incarnation) if incarnation.isdecimal() else 0, None
            member.recent.clear()
        elif "cause" in event.data and name in self.members:
            self.members[name].left = str(event.data["cause"]) or event.reason

    def _time(self, record: TimelineRecord) -> None:
        member = self.members.get(record.member.rpartition("#")[0])
        if member is not None:
            member.spend(seconds_of(record))

    def _roles(self, step: StepRecord) -> None:
        """A step's shares are those of the time since the step before it."""
        since_s = step.t_s - (self.step.t_s if self.step is not None else 0.0)
        for role, shares in step.shares.items():
            add(self._role_seconds.setdefault(role, {}), {activity: share * since_s for activity, share in shares.items()})

    def lately(self, name: str, role: str) -> Shares | None:
        """A worker's shares of its last seconds; those of its role in the last step where its own were not recorded."""
        own = self.members[name].shares() if name in self.members else None
        return own if own is not None or self.step is None else self.step.shares.get(role)

    def in_all(self, name: str, role: str) -> Shares | None:
        """The same over the whole run."""
        own = shares_of(self.members[name].all) if name in self.members else None
        return own if own is not None else shares_of(self._role_seconds.get(role, {}))

    def _start(self, t_s: float) -> float | None:
        """A line reaches the file within half a second, so the smallest difference that was seen between file time and line time is the best."""
        try:
            seen = (self._run_dir / EVENTS).stat().st_mtime - t_s
        except OSError:
            return self._started_at
        return seen if self._started_at is None else min(seen, self._started_at)

    def elapsed_s(self) -> float | None:
        """Seconds since the controller's start; None before it."""
        return None if self._started_at is None else max(0.0, time.time() - self._started_at)

    def step_s(self) -> float | None:
        """Median time of the last steps, so that an evaluation or a pause among them does not count; None before the second step."""
        ends = list(self._ends_s)
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends)) if len(ends) > 1 else None

    def left_s(self, total_steps: int) -> float | None:
        """Seconds until the last version at the pace of the last steps; None where that is not known."""
        pace_s, elapsed_s = self.step_s(), self.elapsed_s()
        if self.step is None or pace_s is None or elapsed_s is None:
            return None
        since_s = min(pace_s, max(0.0, elapsed_s - self.step.t_s))
        return max(0.0, (total_steps - self.step.version) * pace_s - since_s)


def add(total: Seconds, more: Seconds) -> None:
    for activity, seconds in more.items():
        total[activity] = total.get(activity, 0.0) + seconds


def shares_of(seconds: Seconds) -> Shares | None:
    """None where no time was recorded."""
    whole = sum(seconds.values())
    return {activity: seconds.get(activity, 0.0) / whole for activity in ACTIVITIES} if whole > 0 else None


def seconds_of(record: TimelineRecord) -> Seconds:
    """Seconds of a worker's main thread by activity; what no span covers was spent waiting."""
    seconds = dict.fromkeys(ACTIVITIES, 0.0)
    for span in record.spans:
        if span.thread == "main" and span.activity in seconds:
            seconds[span.activity] += span.end_s - span.start_s
    seconds["wait"] = max(0.0, record.until_s - record.from_s - seconds["busy"] - seconds["paused"])
    return seconds
