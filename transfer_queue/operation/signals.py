"""Ctrl-C, SIGTERM and the end of the terminal as something that can be waited for beside sockets and process ends."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While entered, the signals are noted and make `fileno()` readable, instead of raising somewhere. Main thread only."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._read, self._write = -1, -1
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # `nohup`: the run outlives its terminal
        self._previous = {number: signal.signal(number, self._note) for number in CAUGHT if number not in ignored}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Readable when a signal came since the last `take`."""
        return self._read

    def take(self) -> list[int]:
        """Signals since the last call."""
        try:
            return list(os.read(self._read, 64))
        except BlockingIOError:
            return []

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        with contextlib.suppress(BlockingIOError):  # a full pipe of unread signals: the reader knows already
            os.write(self._write, bytes([number]))
