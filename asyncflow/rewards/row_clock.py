"""What a row waits for without being to blame: a scorer that is loaded, or started anew, stops the row's clock meanwhile, and that of its lease.

The row's clock runs in the thread that waits for the score, the loading happens in the thread that scores; a scorer's signature has no place for a
clock, so the scoring thread carries it. In the same way the waiting thread carries the clock of the lease, which the controller keeps.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import msgspec


class Stopped(msgspec.Struct, frozen=True):
    """The row's clock stands still from here on, for at most `within_s` seconds; `what`: in words."""

    what: str
    within_s: float


class Running(msgspec.Struct, frozen=True):
    """The row's clock goes on."""


Tell = Callable[[Stopped | Running], None]
_thread = threading.local()


def carry(tell: Tell) -> None:
    """From now on this thread scores for whoever hears `tell`."""
    _thread.tell = tell


@contextlib.contextmanager
def told(tell: Tell) -> Iterator[None]:
    """Within it `tell` hears of what this thread does not have counted."""
    before: Tell | None = getattr(_thread, "tell", None)
    _thread.tell = tell
    try:
        yield
    finally:
        _thread.tell = before


@contextlib.contextmanager
def uncounted(what: str, within_s: float) -> Iterator[None]:
    """Nothing of what happens in here is the row's own time, and past `within_s` seconds it ends the run by name. Without effect where no deadline
    is kept. Not to be nested."""
    tell: Tell | None = getattr(_thread, "tell", None)
    if tell is None:
        yield
        return
    tell(Stopped(what, within_s))
    try:
        yield
    finally:
        tell(Running())
