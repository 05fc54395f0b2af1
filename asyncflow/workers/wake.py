"""A flag that other threads raise and a poll waits on: "a reply, new weights or a new directive" is one wait, and nobody polls on a timer."""

from __future__ import annotations

import contextlib
import os


class Wake:
    """Level-triggered: `set` makes `fileno()` readable until `clear`. Any number of sets before a clear count once."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        """After `close` nobody waits, so nothing happens: a late signal or thread must not write into whatever has the number now."""
        if self._write >= 0:
            with contextlib.suppress(BlockingIOError):  # a full pipe is already readable
                os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def close(self) -> None:
        read, write = self._read, self._write
        self._read = self._write = -1
        os.close(read)
        os.close(write)
