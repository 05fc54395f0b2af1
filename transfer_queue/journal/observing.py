"""Who watches a controller that comes back: nobody is told anything twice, or what never happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from transfer_queue.controller.moves import Moves
from transfer_queue.controller.runtime import Observer
from transfer_queue.messages import Event


@runtime_checkable
class Keeping(Observer, Protocol):
    """An observer that keeps what it sees through the end of its process."""

    def kept(self) -> int:
        """How many calls, from the beginning of the run on, are safe with it: those behind them come again when the controller comes back. Asked
        before a snapshot too, behind which nothing can be told again, so it makes safe what it has."""
        ...

    def rewind(self, calls: int) -> None:
        """Only the first `calls` of those that it kept happened: a power cut took what the later ones tell of."""
        ...


def kept(observer: Observer) -> int | None:
    """None: it does not keep, and is told of what happens from now on only."""
    return observer.kept() if isinstance(observer, Keeping) else None


def pass_on(observer: Observer, told: Event | tuple[Moves, float]) -> None:
    """One call, as the observer takes it."""
    if isinstance(told, Event):
        observer.on_event(told)
        return
    moves, t_s = told
    together = getattr(observer, "on_moves", None)
    if together is not None:
        together(moves, t_s)
        return
    for event in moves.events(t_s):
        observer.on_event(event)


class Later:
    """In place of an observer while inputs are taken in: passes on what they made happen once they are kept. An observer that outlives the controller
    would else have seen what its next start knows nothing of.

    `look(event)`, where the observer has it, is called at once: by then it could not read the state machine as it was at the event."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._look: Callable[[Event], None] | None = getattr(observer, "look", None)
        self._held: list[Event | tuple[Moves, float]] = []

    def on_event(self, event: Event) -> None:
        if self._look is not None:
            self._look(event)
        self._held.append(event)

    def on_moves(self, moves: Moves, t_s: float) -> None:
        self._held.append((moves, t_s))

    def tell(self) -> None:
        """It is kept."""
        if self._held:
            held, self._held = self._held, []
            for told in held:
                pass_on(self.observer, told)


class Resumed:
    """In place of an observer while the past goes by once more: passes on what is new to it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._kept = kept(observer)
        self.calls = 0  # before those that come now

    def on_event(self, event: Event) -> None:
        if self._is_new():
            pass_on(self._observer, event)

    def on_moves(self, moves: Moves, t_s: float) -> None:
        if self._is_new():
            pass_on(self._observer, (moves, t_s))

    def _is_new(self) -> bool:
        self.calls += 1
        return self._kept is not None and self.calls > self._kept

    def close(self) -> None:
        """The past is over."""
        if self._kept is not None and self._kept > self.calls:
            self._observer.rewind(self.calls)  # type: ignore[attr-defined]
