"""What this connection holds on a shard: blocks whose bytes our arrays look at, and which the shard therefore neither reuses nor gives back.

A hold ends when the last array over it is collected. That may happen in any thread and in the middle of anything, so it is only noted then; the
connection's own thread tells the shard the next time it calls or polls. Where the connection is closed before its arrays are gone, they stay valid:
the socket stays open under them, and whoever collects the last one tells the shard and closes it. A process that ends, however it ends, holds
nothing: the shard watches it. A forked child inherits arrays but not the right to hold them: they are valid as long as the parent keeps its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque

import numpy as np

from transfer_queue.errors import QueueGone, QueueRefused
from transfer_queue.link import Link
from transfer_queue.memory.export import export
from transfer_queue.shard.messages import Release


class Holds:
    """Invariant: a hold is in `_alive` (arrays look at it), in `_ended` (the shard is to be told), or forgotten (told)."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._alive: set[int] = set()
        self._ended: deque[int] = deque()
        self._process = os.getpid()
        self._closed = False
        self._finishing = threading.Lock()
        self._finished = False

    def __len__(self) -> int:
        """Holds that arrays look at."""
        return len(self._alive)

    def array(self, memory: np.ndarray, hold: int) -> np.ndarray:
        """The one array over `memory` that keeps `hold`; views of it do, too."""
        self._alive.add(hold)
        return export(memory, self._end, hold)

    def give_up(self, hold: int) -> None:
        """A hold that no array looks at: its grant came too late."""
        self._ended.append(hold)

    def drain(self) -> None:
        """Tell the shard what has ended. A shard that is gone or hangs is somebody else's news: it is told again at the next call."""
        ended = list(self._ended)
        if ended and os.getpid() == self._process and self._told(ended):
            self._forget(ended)

    def _told(self, ended: list[int]) -> bool:
        try:
            self._link.post(Release(holds=ended))
        except (QueueGone, QueueRefused):
            return False
        return True

    def _forget(self, ended: list[int]) -> None:
        for _ in ended:  # those that ended meanwhile are behind them
            self._ended.popleft()

    def close(self) -> None:
        """Close the connection, now or with the last array."""
        if os.getpid() != self._process:  # the socket is the parent's
            return
        self._closed = True
        self._finish()

    def _end(self, hold: int) -> None:
        if os.getpid() != self._process:
            return
        self._alive.discard(hold)
        self._ended.append(hold)
        if self._closed:
            self._finish()

    def _finish(self) -> None:
        """Nobody polls any more. Whoever finds the lock taken leaves his part to its holder, who looks again after giving it up."""
        while not self._finished and (self._ended or not self._alive):
            if not self._finishing.acquire(blocking=False):
                return
            try:
                ended = list(self._ended)
                if ended:
                    self._told(ended)
                    self._forget(ended)
                if not self._alive:
                    self._finished = True
                    self._link.close()
            finally:
                self._finishing.release()
