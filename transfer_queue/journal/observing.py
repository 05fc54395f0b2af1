"""Who watches a controller that comes back: nobody is told anything twice."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from transfer_queue.controller.moves import Moves
from transfer_queue.controller.runtime import Observer
from transfer_queue.messages import Event


@runtime_checkable
class Keeping(Protocol):
    """An observer that keeps what it sees through the end of its process."""

    def kept(self) -> int:
        """How many calls, from the beginning of the run on, are safe with it: those behind them come again when the controller comes back. Asked
        before a snapshot too, behind which nothing can be told again, so it makes safe what it has."""
        ...


def kept(observer: Observer) -> int | None:
    """None: it does not keep, and is told of what happens from now on only."""
    return observer.kept() if isinstance(observer, Keeping) else None


class Resumed:
    """In place of an observer while the past goes by once more: passes on what is new to it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._kept = kept(observer)
        self.calls = 0  # before those that come now

    def on_event(self, event: Event) -> None:
        if self._is_new():
            self._observer.on_event(event)

    def on_moves(self, moves: Moves, t_s: float) -> None:
        if not self._is_new():
            return
        together = getattr(self._observer, "on_moves", None)
        if together is not None:
            together(moves, t_s)
            return
        for event in moves.events(t_s):
            self._observer.on_event(event)

    def _is_new(self) -> bool:
        self.calls += 1
        return self._kept is not None and self.calls > self._kept
