"""Buffers that were used before: their pages are there already, and a copy into them runs at ten times the speed of one into fresh pages."""

from __future__ import annotations

import threading

import numpy as np

from transfer_queue.memory.export import export

KEEP_BYTES = 1 << 30  # of buffers that nobody uses: a batch as large as the last one finds its memory warm
SMALL_BYTES = 256 << 10  # below it malloc does the same by itself


class Buffers:
    """Arrays that come back by themselves when the last view of them is collected, in whichever thread that is; at most `keep_bytes` lie idle."""

    def __init__(self, keep_bytes: int = KEEP_BYTES) -> None:
        self.keep_bytes = keep_bytes
        self._idle: dict[int, np.ndarray] = {}  # by id; one that comes back while `take` looks is only ever added
        self._lock = threading.RLock()  # it may come back in the middle of `take`, in the same thread: a collection asks nobody

    @property
    def idle_bytes(self) -> int:
        return sum(memory.nbytes for memory in list(self._idle.values()))

    def take(self, nbytes: int) -> np.ndarray:
        """1-d uint8 of exactly `nbytes`; its content is whatever it was."""
        if nbytes < SMALL_BYTES:
            return np.empty(nbytes, dtype=np.uint8)
        memory = self._reuse(nbytes)
        if memory is None:
            memory = np.empty(_rounded(nbytes), dtype=np.uint8)
        return export(memory, self._back, memory)[:nbytes]

    def _reuse(self, nbytes: int) -> np.ndarray | None:
        """The smallest idle buffer with room, unless more than half of it would lie idle while it is used."""
        with self._lock:
            fitting = [memory for memory in list(self._idle.values()) if nbytes <= memory.nbytes <= 2 * nbytes]
            return self._idle.pop(id(min(fitting, key=lambda memory: memory.nbytes))) if fitting else None

    def _back(self, memory: np.ndarray) -> None:
        """Those that came back first make room: they are the sizes of reads that are over."""
        with self._lock:
            self._idle[id(memory)] = memory
            while self.idle_bytes > self.keep_bytes:
                self._idle.pop(next(iter(self._idle)))


def _rounded(nbytes: int) -> int:
    """To an eighth of the power of two below: reads of nearly one size share their buffers."""
    step = 1 << max(nbytes.bit_length() - 4, 12)
    return -(-nbytes // step) * step
