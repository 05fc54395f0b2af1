"""Modelled time: waits end at absolute moments, and what a timer overshoots is taken off the next wait, so that errors do not add up."""

from __future__ import annotations

import time
from collections.abc import Callable

STALE_S = 0.02  # (real) overshoot older than this is forgotten: whoever was idle since starts when the work comes


class ModelClock:
    """Modelled seconds since this was made. The real clock and its sleep can be replaced, for tests."""

    def __init__(self, scale: float, real: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        if not scale > 0:
            raise ValueError(f"time_scale = {scale}: it must be above 0, or no wait would ever end; 50 is the most that benchmarks use")
        self.scale, self._real, self._sleep = scale, real, sleep
        self._origin_s = real()

    def now_s(self) -> float:
        return (self._real() - self._origin_s) * self.scale

    def until_s(self, modelled_s: float) -> float:
        """Real seconds until then, 0.0 when it has passed."""
        return max(0.0, (modelled_s - self.now_s()) / self.scale)

    def sleep_until(self, modelled_s: float) -> None:
        while (wait_s := self.until_s(modelled_s)) > 0:  # one sleep, unless the timer was early
            self._sleep(wait_s)


class Device:
    """The accelerators of one worker: busy for as long as a piece of work takes, one piece after the other."""

    def __init__(self, clock: ModelClock) -> None:
        self._clock = clock
        self._ended_s = 0.0  # when the last piece was over, modelled
        self._woke_s = 0.0  # when we knew of it

    def spend(self, seconds: float) -> None:
        """Wait until work of so many modelled seconds is done that could start now.

        "Now" is earlier by what the last wait overshot, if it ended just now: late timers are the emulation's fault. Time between two calls is not:
        it is what the control plane took, and it counts.
        """
        now_s = self._clock.now_s()
        overshot_s = self._woke_s - self._ended_s if now_s - self._woke_s < STALE_S * self._clock.scale else 0.0
        self._ended_s = now_s - overshot_s + seconds
        self._clock.sleep_until(self._ended_s)
        self._woke_s = self._clock.now_s()
