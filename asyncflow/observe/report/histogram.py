"""How long trained and dropped samples are: shares by length, on bins that suit the lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from asyncflow.observe.report.thin import short

BINS = 32


def edges(counts: list[Mapping[int, int]]) -> np.ndarray:
    """Bin edges over all lengths that occur, int64: even ones for a narrow range, geometric ones for a wide one. Empty without a length."""
    lengths = [length for count in counts for length in count]
    if not lengths:
        return np.array([], dtype=np.int64)
    low, high = max(0, min(lengths)), max(lengths) + 1
    if high > 16 * max(1, low) and high > 4 * BINS:
        return np.unique(np.rint(np.geomspace(max(1, low), high, BINS + 1)).astype(np.int64)) if low else _from_zero(high)
    width = max(1, -(-(high - low) // BINS))
    return np.arange(low, high + width, width, dtype=np.int64)


def _from_zero(high: int) -> np.ndarray:
    return np.unique(np.concatenate([[0], np.rint(np.geomspace(1, high, BINS)).astype(np.int64)]))


def shares(count: Mapping[int, int], at: np.ndarray) -> list[float | None]:
    """Percent of the lengths in each bin. One value more than bins: the last is repeated, for a staircase is drawn from edge to edge."""
    lengths, weights = np.array(list(count), dtype=np.int64), np.array(list(count.values()), dtype=np.float64)
    found, _ = np.histogram(lengths, bins=at, weights=weights)
    percent = [short(100 * value / weights.sum()) for value in found]
    return [*percent, percent[-1]]
