"""How much slower the machine is at this moment than the one for which limits in seconds were set.

A shared machine's memory may be half as fast for hours, and everything that computes with it: the same quickstart, 67 s before, took 163 to 200 s
in such an hour, with every call 1.7 to 3 times as long. A limit in seconds would then say something about the neighbours only.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

COPY_GB_S = 10.0  # of warm memory by one thread, where the limits were set
NBYTES, TURNS = 128 << 20, 9


def slowdown() -> float:
    """At least 1: a faster machine gets no less time. To be asked while nothing of the test's own computes."""
    source, target = np.ones(NBYTES, dtype=np.uint8), np.ones(NBYTES, dtype=np.uint8)
    seconds = [_copied_s(source, target) for _ in range(TURNS)]
    return max(1.0, COPY_GB_S * statistics.median(seconds) / (NBYTES / 1e9))


def _copied_s(source: np.ndarray, target: np.ndarray) -> float:
    start = time.perf_counter()
    target[:] = source
    return time.perf_counter() - start
