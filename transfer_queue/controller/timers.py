"""Every deadline of the controller in one heap: leases, parked requests, heartbeats, stall.

A deadline that moves (a renewed lease, a heartbeat) is not searched for: when its old time comes, its check names the new time and it is armed again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from transfer_queue.messages import Record

Check = Callable[[], float | None]
"""Called when its time has come: acts and returns None, or returns the later time at which to ask again."""


class Due(Record, frozen=True, array_like=True):
    """When a timer asks, as a snapshot keeps it."""

    when: float
    order: int  # among those that are due together: a replay asks in the same order


class Timer:
    __slots__ = ("check", "due")

    def __init__(self, check: Check, due: Due) -> None:
        self.check: Check | None = check
        self.due = due

    def freeze(self) -> Due | None:
        """None: it will not ask any more."""
        return None if self.check is None else self.due


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self.order = 0  # of the last one
        self._dead = 0

    def at(self, when: float, check: Check) -> Timer:
        """Ask `check` at `when` (seconds of the controller's clock)."""
        return self.restore(check, self.due(when))

    def restore(self, check: Check, due: Due) -> Timer:
        """A timer of a snapshot, or a new one."""
        timer = Timer(check, due)
        heapq.heappush(self._heap, (due.when, due.order, timer))
        return timer

    def due(self, when: float) -> Due:
        """A deadline behind all others of that time."""
        self.order += 1
        return Due(when, self.order)

    def thaw(self, order: int) -> None:
        """As they were when `order` were made, without any: each comes back by `restore`."""
        self._heap.clear()
        self.order, self._dead = order, 0

    def cancel(self, timer: Timer) -> None:
        """Forget a timer. Its entry goes lazily; entries of forgotten timers never outnumber the others by more than 64."""
        if timer.check is None:
            return
        timer.check = None
        self._dead += 1
        if self._dead > len(self._heap) // 2 + 64:
            self._heap = [entry for entry in self._heap if entry[2].check is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def run(self, now: float) -> None:
        """Ask every check whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            check, timer.check = timer.check, None  # not in the heap any more: forgetting it while it is asked counts nothing
            if check is None:
                self._dead -= 1
                continue
            again = check()
            if again is not None:
                # a check that is not due yet may never be asked again at once: the loop below `now` would not end
                timer.check, timer.due = check, self.due(max(again, now + 1e-6))
                heapq.heappush(self._heap, (timer.due.when, timer.due.order, timer))

    def next(self) -> float | None:
        """When the earliest check is due; None without any."""
        while self._heap and self._heap[0][2].check is None:
            heapq.heappop(self._heap)
            self._dead -= 1
        return self._heap[0][0] if self._heap else None
