"""What every part of the controller shares: the clock, the timers, the blocks, the event sink, and who has to be looked at again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from transfer_queue.controller.blocks import Blocks
from transfer_queue.controller.moves import Moves
from transfer_queue.controller.repeats import Repeats
from transfer_queue.controller.timers import Timers
from transfer_queue.messages import Event, Record
from transfer_queue.samplers.choice import Ask, Choice, Choices, asked

Key = tuple[str, str, str]  # (kind of parked request, topic, consumer or member)


class Observer(Protocol):
    def on_event(self, event: Event) -> None:
        """Called synchronously for every event, in order. Must be cheap and must not raise."""


class BatchObserver(Observer, Protocol):
    def on_moves(self, moves: Moves, t_s: float) -> None:
        """Instead of an event for each of several groups. `t_s`: seconds since the controller's start."""


TraceSink = Callable[[str, str, bytes, float], None]
"""(owner, role, trace, arrival in seconds since the controller's start): gets what heartbeats carry, once each. It must be cheap and not raise."""


class FrozenRuntime(Record, frozen=True):
    """What a snapshot keeps."""

    start: float
    frozen_s: float
    changed_at: float
    serials: int
    emitted: int
    order: int  # of timers


class Runtime:
    def __init__(self, observer: Observer, clock: Callable[[], float]) -> None:
        self.observe(observer)
        self._clock = clock
        self._start = clock()
        self._frozen_s = 0.0
        self.trace_sink: TraceSink | None = None
        self.timers = Timers()
        self.blocks = Blocks()
        self.repeats = Repeats()
        self.changed_at = self._start  # the last progress: something somewhere went forward
        self.dirty: dict[Key, None] = {}  # parked requests to try again, in the order in which that became possible
        self.cancelled: list[tuple[str, int, int]] = []  # (owner, gid, fence) to tell
        self.serials = 0  # numbers given
        self.emitted = 0  # calls of the observer: a number for each, so that it may know which it has seen
        self.choices: Choices = asked

    def observe(self, observer: Observer) -> None:
        """It sees what happens from now on."""
        self._observer = observer
        self._moved: Callable[[Moves, float], None] = getattr(observer, "on_moves", self._one_by_one)

    def now(self) -> float:
        """What deadlines are counted in: seconds of the clock without those for which the controller itself was stopped."""
        return self._clock() - self._frozen_s

    def frozen(self, seconds: float) -> None:
        """The controller did not run for so long: nobody could be heard, so every deadline is later by as much."""
        self._frozen_s += seconds
        self.emit("run", reason="frozen", data={"seconds": seconds})

    def on_clock(self, when: float) -> float:
        """A time of `now` on the clock that the controller was given."""
        return when + self._frozen_s

    def elapsed(self) -> float:
        """Seconds since the start, those included for which the controller itself was stopped."""
        return self._clock() - self._start

    def skip_serials(self, count: int) -> None:
        """So many numbers may have been given that nobody remembers."""
        self.serials += count

    def serial(self) -> int:
        """A number that was never given before: fences of attempts, ids of leases."""
        self.serials += 1
        return self.serials

    def numbers(self, count: int) -> np.ndarray:
        """So many of them, ascending."""
        first = self.serials + 1
        self.serials += count
        return np.arange(first, first + count)

    def choice(self, ask: Ask) -> Choice:
        """What a sampler of somebody's own says, by `ask`, or said when all this was before."""
        return self.choices(ask)

    def touch(self) -> None:
        """Progress was made: the stall clock starts anew."""
        self.changed_at = self.now()

    def wake(self, kind: str, topic: str = "", name: str = "") -> None:
        """Parked requests of this kind may be served now; they are tried once the present request is done."""
        self.dirty[kind, topic, name] = None

    def trace(self, owner: str, role: str, trace: bytes) -> None:
        if self.trace_sink is not None:
            self.trace_sink(owner, role, trace, self._clock() - self._start)

    def emit(self, kind: str, **fields: object) -> None:
        self.emitted += 1
        self._observer.on_event(Event(t_s=self._clock() - self._start, kind=kind, **fields))  # type: ignore[arg-type]

    def emit_moves(self, moves: Moves) -> None:
        self.emitted += 1
        self._moved(moves, self._clock() - self._start)

    def emit_move(self, event_of: Callable[[float], Event]) -> None:
        """The same of one group alone: an event for any observer. `event_of` makes it at so many seconds since the start."""
        self.emitted += 1
        self._observer.on_event(event_of(self._clock() - self._start))

    def freeze(self) -> FrozenRuntime:
        return FrozenRuntime(self._start, self._frozen_s, self.changed_at, self.serials, self.emitted, self.timers.order)

    def thaw(self, frozen: FrozenRuntime) -> None:
        """Everything but timers and blocks, which come back with what they belong to."""
        self._start, self._frozen_s, self.changed_at = frozen.start, frozen.frozen_s, frozen.changed_at
        self.serials, self.emitted = frozen.serials, frozen.emitted
        self.timers.thaw(frozen.order)

    def _one_by_one(self, moves: Moves, t_s: float) -> None:
        for event in moves.events(t_s):
            self._observer.on_event(event)
