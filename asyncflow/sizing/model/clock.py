"""Simulated time: what happens next happens now."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class SimClock:
    """Events of one moment happen in the order in which they were asked for, so that a simulation is a function of its inputs."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._serial = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, happen: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, happen))

    def step(self) -> bool:
        """Let the next event happen. False when there is none."""
        if not self._events:
            return False
        self.now, _, happen = heapq.heappop(self._events)
        happen()
        return True
