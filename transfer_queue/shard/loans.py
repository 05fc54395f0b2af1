"""Arena memory that a socket is still sending. zmq lets go of a frame in a thread of its own, at any time; the shard's loop hears of it here."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import zmq

from transfer_queue.shard.store import Store

WORTH_BYTES = zmq.COPY_THRESHOLD  # below it pyzmq copies whatever it is told


class Loans:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._returned: deque[list[int]] = deque()  # its append is atomic: the only thing that another thread does

    def frame(self, runs: list[tuple[int, int]], blocks: list[int]) -> np.ndarray | bytes:
        """The bytes of `runs`, all in `blocks`: the memory itself, held until it is sent, where they are one long run; else one copy."""
        array = self._store.arena.array
        if len(runs) != 1 or runs[0][1] - runs[0][0] < WORTH_BYTES:
            return b"".join(array[begin:end].data for begin, end in runs)
        view: np.ndarray = array[slice(*runs[0])]
        self._store.hold(blocks)
        weakref.finalize(view, self._returned.append, blocks).atexit = False
        return view

    def collect(self) -> None:
        """Let go of what was sent meanwhile."""
        while self._returned:
            self._store.release(self._returned.popleft())
