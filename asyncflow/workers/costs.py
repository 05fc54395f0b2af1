"""What calls cost this worker: sums from which `a + b·size` seconds a call can be fitted later, without keeping a single call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from asyncflow.observe.records import CostSums


class CostMeter:
    """Sums since the worker's start by key: "rollout.decode", "rollout.prefill", "train", "publish", "load", a stage's name, and "KEY.io" for its
    reading and writing. Any thread may add; the heartbeat's reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, list[float]] = {}  # fields of CostSums in order

    def add(self, key: str, size: float, seconds: float, calls: float = 1.0) -> None:
        """So many calls, each of this size and duration. `size`: running requests for a decode step, else tokens; 0 where tokens do not matter."""
        with self._lock:
            sums = self._sums.setdefault(key, [0.0, 0.0, 0.0, 0.0, 0.0])
            sums[0] += calls
            sums[1] += calls * size
            sums[2] += calls * size * size
            sums[3] += calls * seconds
            sums[4] += calls * size * seconds

    @contextmanager
    def call(self, key: str, size: float = 0.0) -> Iterator[None]:
        """Measure one call that ends well; one that raises has no cost to learn from."""
        start_s = time.perf_counter()
        yield
        self.add(key, size, time.perf_counter() - start_s)

    def sums(self) -> dict[str, CostSums]:
        with self._lock:
            return {key: CostSums(*sums) for key, sums in self._sums.items()}
