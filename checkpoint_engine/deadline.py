"""How long a peer may make us wait or hold something for it."""

from __future__ import annotations

import math

MOST_WAIT_S = 3600.0


def clamp_s(seconds: float, most_s: float = MOST_WAIT_S) -> float:
    """0 … `most_s`. NaN is no time at all: a deadline made of it would never come, and what waits for it would wait for ever."""
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), most_s)
