"""What every part of the controller shares: the clock, the timers, the blocks, the event sink, and who has to be looked at again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from transfer_queue.controller.blocks import Blocks
from transfer_queue.controller.timers import Timers
from transfer_queue.messages import Event

Key = tuple[str, str, str]  # (kind of parked request, topic, consumer or member)


class Observer(Protocol):
    def on_event(self, event: Event) -> None:
        """Called synchronously for every event, in order. Must be cheap and must not raise."""


class Runtime:
    def __init__(self, observer: Observer, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock
        self._start = clock()
        self.timers = Timers()
        self.blocks = Blocks()
        self.changed_at = self._start  # the last change of a ledger, or other progress
        self.dirty: dict[Key, None] = {}  # parked requests to try again, in the order in which that became possible
        self.cancelled: list[tuple[str, int, int]] = []  # (owner, gid, fence) to tell
        self._serials = itertools.count(1)

    def now(self) -> float:
        return self._clock()

    def serial(self) -> int:
        """A number that was never given before: fences of attempts, ids of leases."""
        return next(self._serials)

    def touch(self) -> None:
        """Progress was made: the stall clock starts anew."""
        self.changed_at = self._clock()

    def wake(self, kind: str, topic: str = "", name: str = "") -> None:
        """Parked requests of this kind may be served now; they are tried once the present request is done."""
        self.dirty[kind, topic, name] = None

    def emit(self, kind: str, **fields: object) -> None:
        self._observer.on_event(Event(t_s=self._clock() - self._start, kind=kind, **fields))  # type: ignore[arg-type]
