"""What a run's files say that is new: steps, evaluations, who came and went, and how the workers spent their time."""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncflow.observe.live.tail import Decoded, LineTail
from asyncflow.observe.records import EVENTS, METRICS, TIMELINE, StepRecord, TimelineRecord
from transfer_queue.messages import Event

FREQUENT = (b'"kind":"group"', b'"kind":"topic"')  # nine lines of ten; nobody here needs them, so they are not decoded
HEAD_BYTES = 80  # of a line, within which its kind stands


class Evaluation(msgspec.Struct, frozen=True):
    """A finished evaluation of one version."""

    version: int
    accuracy: float
    t_s: float  # on the controller's clock


class News(msgspec.Struct, frozen=True):
    """Everything since the last look, in the order of the files."""

    steps: list[StepRecord]
    evaluations: list[Evaluation]
    members: list[Event]  # of kind "member"
    times: list[TimelineRecord]
    until_s: float | None  # on the controller's clock: how far the event log was read; None: it says nothing new
    lines: int  # that were new, unreadable ones included

    def __bool__(self) -> bool:
        return self.lines > 0


class RunNews:
    """Follows the three files of one run directory, which need not be there yet."""

    def __init__(self, run_dir: Path) -> None:
        self._metrics, self._events, self._timeline = (LineTail(run_dir / name) for name in (METRICS, EVENTS, TIMELINE))
        self._step, self._event, self._time = msgspec.json.Decoder(StepRecord), msgspec.json.Decoder(Event), msgspec.json.Decoder(TimelineRecord)
        self._decoded = Decoded()

    @property
    def unreadable(self) -> int:
        """Lines so far that were no record."""
        return self._decoded.unreadable

    @property
    def problem(self) -> str | None:
        """Why a file cannot be read at present."""
        return next((tail.error for tail in (self._metrics, self._events, self._timeline) if tail.error is not None), None)

    def look(self) -> News:
        """Bounded work: at most one piece of each file."""
        lines, steps, times = self._events.lines(), self._metrics.lines(), self._timeline.lines()
        events = self._decoded.of([line for line in lines if not any(kind in line[:HEAD_BYTES] for kind in FREQUENT)], self._event)
        newest = self._decoded.of(lines[-1:], self._event)
        return News(
            steps=self._decoded.of(steps, self._step),
            evaluations=[found for event in events if (found := evaluation_of(event)) is not None],
            members=[event for event in events if event.kind == "member"],
            times=self._decoded.of(times, self._time),
            until_s=newest[0].t_s if newest else None,
            lines=len(lines) + len(steps) + len(times),
        )


def evaluation_of(event: Event) -> Evaluation | None:
    """None for every event that is no evaluation's result."""
    if event.kind != "report" or "accuracy" not in event.data:
        return None
    try:
        return Evaluation(int(event.data["version"]), float(event.data["accuracy"]), event.t_s)
    except (KeyError, ValueError, OverflowError):  # another program's report, or a damaged line
        return None
