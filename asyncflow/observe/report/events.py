"""One walk over the event log: how old groups were when they were trained, how they ended, when versions came, what happened to workers."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np

from asyncflow.observe.outcomes import RUN_END
from asyncflow.observe.report.columns import Columns
from asyncflow.observe.report.data import Mark
from transfer_queue.messages import Event

OPEN = ("admitted", "generating", "complete", "leased")
MARKS_BOUND = 5000  # restarts and evaluations of a long run; beyond it only the first are kept


def number(value: object) -> float | None:
    """A finite number, also one that the log had to spell as a word. None: no number."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


class Ended(msgspec.Struct):
    """Groups with one end: sums, and how many had how many tokens (all rows of the group together)."""

    groups: int = 0
    tokens: float = 0.0
    age: float = 0.0  # versions
    lengths: Counter[int] = msgspec.field(default_factory=Counter)


class EventFacts:
    """Feed every event in order."""

    def __init__(self) -> None:
        self.until_s = 0.0
        self.ledger: Counter[str] = Counter()  # groups by state, dropped ones as "dropped:reason"
        self.ended: dict[str, Ended] = {}
        self.steps = Columns()  # one row a commit: version, t_s, age_s.*, age_versions.*
        self.evaluations = Columns()  # version, t_s, accuracy
        self.syncs = Columns()  # one row a broadcast: version, form_s, send_s, receivers, bytes
        self.published: dict[int, float] = {}  # version → seconds
        self.failed_syncs = 0
        self.marks: list[Mark] = []
        self.stop_reason: str | None = None
        self.traceback = self.stall = ""
        self.lost_leases = self.late = 0
        self._started: dict[tuple[str, int], float] = {}  # open groups → when they first began to generate
        self._ages_s: list[float] = []  # of the groups trained since the last commit
        self._ages: list[float] = []

    def apply(self, event: Event) -> None:
        self.until_s = max(self.until_s, event.t_s)
        handle = getattr(self, f"_on_{event.kind}", None)  # kinds of a newer program are passed over
        if handle is not None:
            handle(event)

    # ------------------------------------------------------------ groups

    def _on_group(self, event: Event) -> None:
        if event.src:
            self.ledger[event.src] -= 1
        end = f"dropped:{event.reason}" if event.dst == "dropped" else event.dst
        self.ledger[end] += 1
        group = (event.topic, event.gid)
        if event.dst == "generating":
            self._started.setdefault(group, event.t_s)
        elif event.dst not in OPEN:
            started = self._started.pop(group, None)
            if event.dst == "trained":
                self._trained(event, started)
            self._end(end, event)

    def _trained(self, event: Event, started: float | None) -> None:
        if started is not None:
            self._ages_s.append(event.t_s - started)
        if (age := number(event.data.get("age"))) is not None:
            self._ages.append(age)

    def _end(self, end: str, event: Event) -> None:
        tokens, age = number(event.data.get("tokens")), number(event.data.get("age"))
        if tokens is None or age is None or event.reason == RUN_END:  # what was left over at the end says nothing about dropping
            return
        ended = self.ended.setdefault(end, Ended())
        ended.groups, ended.tokens, ended.age = ended.groups + 1, ended.tokens + tokens, ended.age + age
        ended.lengths[int(tokens)] += 1

    # ------------------------------------------------------------ versions

    def _on_commit(self, event: Event) -> None:
        row: dict[str, float | None] = {"version": event.version, "t_s": event.t_s}
        for name, ages in (("age_s", self._ages_s), ("age_versions", self._ages)):
            if ages:
                row |= {f"{name}.mean": float(np.mean(ages)), f"{name}.p95": float(np.percentile(ages, 95)), f"{name}.max": max(ages)}
        self.steps.row(row)
        self._ages_s, self._ages = [], []

    def _on_published(self, event: Event) -> None:
        self.published[event.version] = event.t_s

    def _on_report(self, event: Event) -> None:
        data = event.data
        version = number(data.get("version"))
        if event.reason == "sync" and version is not None:
            self.failed_syncs += bool(data.get("error"))
            self.syncs.row({"version": version} | {name: number(data.get(name)) for name in ("form_s", "send_s", "receivers", "bytes")})
        elif "accuracy" in data and version is not None:
            self.evaluations.row({"version": version, "t_s": event.t_s, "accuracy": number(data["accuracy"])})

    # ------------------------------------------------------------ workers and the run

    def _on_member(self, event: Event) -> None:
        name, _, incarnation = event.member.partition("#")
        cause = str(event.data.get("cause", ""))
        if event.reason == "joined":
            again = incarnation not in ("", "0")
            self._mark(event, name, "restarted" if again else "joined", f"{event.member} {'joined again' if again else 'joined'}")
        elif event.reason in ("died", "replaced"):
            self._mark(event, name, "died", f"{event.member} {event.reason}{f': {cause}' if cause else ''}")
        elif event.reason == "left":
            self._mark(event, name, "left", f"{event.member} left")
        elif event.reason.startswith("duty:"):
            self._mark(event, name, event.reason.removeprefix("duty:"), f"{name}: {event.reason.removeprefix('duty:')} version {event.version}")

    def _on_topic(self, event: Event) -> None:
        self.lost_leases += event.reason == "lease_expired"
        self.late += event.reason == "late"

    def _on_stall(self, event: Event) -> None:
        self.stall = self.stall or event.reason
        self._mark(event, "", "stall", "no progress: stall report")

    def _on_slow(self, event: Event) -> None:
        self._mark(event, "", "slow", event.reason)

    def _on_run(self, event: Event) -> None:
        self.traceback = self.traceback or str(event.data.get("traceback", ""))
        if event.dst == "stop":
            self.stop_reason = self.stop_reason if self.stop_reason is not None else event.reason
            self._mark(event, "", "stop", f"stop: {event.reason}")
        elif event.reason == "restarted":
            self._mark(event, "", "restarted", "the controller was started again, out of its journal")
        elif event.reason == "frozen":
            seconds = number(event.data.get("seconds"))
            self._mark(event, "", "slow", f"the controller did not run{'' if seconds is None else f' for {seconds:.1f} s'}")
        else:
            self._mark(event, event.member.partition("#")[0], "failed", event.reason)

    def _mark(self, event: Event, worker: str, kind: str, text: str) -> None:
        if len(self.marks) < MARKS_BOUND:
            self.marks.append(Mark(event.t_s, worker, kind, text[:500]))
