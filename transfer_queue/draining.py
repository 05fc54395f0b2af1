"""SIGTERM and Ctrl-C mean the same to every server of a queue: the first asks it to drain, once more ends its process at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

ASKING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def drains(drain: Callable[[], None], asked: bool = True) -> Iterator[None]:
    """While entered, the first of the signals calls `drain`. Main thread only; not `asked`: the signals are left alone."""
    if not asked:
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in ASKING:
            signal.signal(each, signal.SIG_DFL)
        drain()

    before = {number: signal.signal(number, on_signal) for number in ASKING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
