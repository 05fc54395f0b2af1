"""Where a worker's time goes. The one place that its threads tell what they do: it goes into the phase marks (now) and the timeline (since when)."""

from __future__ import annotations

from types import TracebackType

from asyncflow.workers.phase import Activity, Phase, PhaseMarks, Thread
from asyncflow.workers.timeline import Timeline


class ActivityClock:
    """One worker's activity. The main thread has exactly one at any moment, so its three totals sum to the time since the start.

    Each thread tells of itself only; the totals may be read from any thread.
    """

    def __init__(self, marks: PhaseMarks, timeline: Timeline) -> None:
        self._marks, self.timeline = marks, timeline

    def during(self, activity: Activity, what: Phase, thread: Thread = "main") -> During:
        """A context manager: until it is left the thread does this, then again what it did before."""
        return During(self, activity, what, thread)

    def set(self, activity: Activity, what: Phase, thread: Thread = "main") -> tuple[Activity, Phase]:
        """Returns what the thread did until now."""
        self._marks.set(what, thread)
        return self.timeline.switch(thread, activity, what)

    def totals(self) -> dict[str, float]:
        """Seconds since the start by activity."""
        return self.timeline.totals()


class During:
    """A class, not a generator: it is entered at every decode step, and costs half as much."""

    __slots__ = ("_before", "_clock", "_doing", "_thread")

    def __init__(self, clock: ActivityClock, activity: Activity, what: Phase, thread: Thread) -> None:
        self._clock, self._doing, self._thread = clock, (activity, what), thread

    def __enter__(self) -> None:
        self._before = self._clock.set(*self._doing, self._thread)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._clock.set(*self._before, self._thread)
