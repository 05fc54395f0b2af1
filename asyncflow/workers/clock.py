"""Where a worker's time goes: cumulative seconds busy, waiting and paused, exact at every reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Activity = Literal["busy", "wait", "paused"]


class ActivityClock:
    """One worker's activity. Exactly one activity at any moment, so the three sum to the time since start. Safe to read from other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {"busy": 0.0, "wait": 0.0, "paused": 0.0}
        self._activity: Activity = "wait"
        self._since = time.monotonic()

    def enter(self, activity: Activity) -> Activity:
        """Switch; returns what was left."""
        with self._lock:
            now = time.monotonic()
            self._totals[self._activity] += now - self._since
            previous, self._activity, self._since = self._activity, activity, now
        return previous

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        previous = self.enter(activity)
        try:
            yield
        finally:
            self.enter(previous)

    def totals(self) -> dict[str, float]:
        """Seconds since start by activity."""
        with self._lock:
            totals = dict(self._totals)
            totals[self._activity] += time.monotonic() - self._since
        return totals
