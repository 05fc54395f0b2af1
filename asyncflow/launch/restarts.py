"""How often a worker may be restarted: r times within w seconds, each worker for itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class RestartLimit:
    """Counts the restarts of one worker."""

    def __init__(self, times: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.times, self.window_s = times, window_s
        self._clock = clock
        self._past: deque[float] = deque()

    def allow(self) -> bool:
        """Whether one more restart is within the limit; if so it is counted. 0 times is a value: no restart at all."""
        now = self._clock()
        while self._past and now - self._past[0] >= self.window_s:
            self._past.popleft()
        if len(self._past) >= self.times:
            return False
        self._past.append(now)
        return True
